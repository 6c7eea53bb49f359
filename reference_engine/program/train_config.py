"""What a training run is made of."""

from dataclasses import dataclass, field

from zprof.reference_engine.comm import LinkModel
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.program.gpt import GPTConfig
from zprof.reference_engine.program.modelled_compute import ComputeModel


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A whole training run; equal on all ranks.

    ``batch`` is global, so that losses do not depend on the number of ranks.  No ``link`` is the native
    transport, no ``compute`` the real one.

    Raises:
        ValueError: a number is out of range; the message names it.
    """

    zero: ZeroConfig = field(default_factory=ZeroConfig)
    gpt: GPTConfig = field(default_factory=GPTConfig)
    steps: int = 20
    batch: int = 8
    seed: int = 0
    link: LinkModel | None = None
    compute: ComputeModel | None = None
    timeout_s: float = 300.0
    """After that long without an answer from a peer a collective fails."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")

    def check_ranks(self, ranks: int) -> None:
        """Refuse a number of ranks that the run cannot be split over.

        Raises:
            ValueError: one line that says what does not fit.
        """
        if self.batch % ranks:
            raise ValueError(f"batch is {self.batch}; it must be a multiple of the {ranks} ranks")
        straggler = None if self.compute is None else self.compute.straggler_rank
        if straggler is not None and not 0 <= straggler < ranks:
            raise ValueError(f"straggler_rank is {straggler}; there are ranks 0 to {ranks - 1}")

    @property
    def modelled(self) -> tuple[str, ...]:
        """What is simulated rather than run."""
        return tuple(name for name in ("link", "compute") if getattr(self, name) is not None)
