"""Configure a training run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from zprof.reference_engine.activation_checkpointing import ActivationConfig
from zprof.reference_engine.comm.modelled import LinkModel
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.program.gpt import GPTConfig
from zprof.reference_engine.program.host_faults import HostFaults
from zprof.reference_engine.program.modelled_compute import ComputeModel


class Units(StrEnum):
    """Modules that are gathered and reduced as a whole."""

    BLOCKS = "blocks"
    LAYERS = "layers"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A whole training run; equal on all ranks.

    ``batch`` is global, so that losses depend neither on the number of ranks nor on accumulation.  Without
    ``link`` the native transport runs, without ``compute`` the real compute.

    Raises:
        ValueError: a number is out of range; the message names it.
    """

    zero: ZeroConfig = field(default_factory=ZeroConfig)
    activations: ActivationConfig = field(default_factory=ActivationConfig)
    gpt: GPTConfig = field(default_factory=GPTConfig)
    units: Units = Units.BLOCKS
    """Blocks, every layer with parameters by itself, or the whole model at once."""
    dp: int | None = None
    """Data-parallel ranks; None: all ranks / mp."""
    mp: int = 1
    """Ranks that share a model by tensor parallelism; they are neighbours."""
    steps: int = 20
    batch: int = 8
    seed: int = 0
    save: Path | None = None
    resume: Path | None = None
    link: LinkModel | None = None
    compute: ComputeModel | None = None
    host: HostFaults = field(default_factory=HostFaults)
    shortened: float = 0.0
    """Sequences of all data-parallel ranks but the first are shorter by this share."""
    evened: bool = False
    """The same tokens dealt out evenly: every rank has sequences of the mean length."""
    plant: str | None = None
    """The cause that was planted in this run."""
    timeout_s: float = 300.0
    """After that long without an answer from a peer a collective fails."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "mp"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.dp is not None and self.dp < 1:
            raise ValueError(f"dp is {self.dp}; it must be 1 or more")
        if not 0 <= self.shortened < 1:
            raise ValueError(f"shortened is {self.shortened}; it must be in [0, 1)")

    def check_ranks(self, ranks: int) -> None:
        """Check that the run can be split over this number of ranks.

        Raises:
            ValueError: the one-line message says what does not fit.
        """
        dp = self.data_parallel(ranks)
        self.gpt.check_model_parallel(self.mp)
        self.activations.check_model_parallel(self.mp)
        parts = dp * self.zero.micro_batches
        if self.batch % parts:
            raise ValueError(f"batch is {self.batch}; it must be a multiple of {self._parts(dp)}")
        straggler = None if self.compute is None else self.compute.straggler_rank
        if straggler is not None and not 0 <= straggler < ranks:
            raise ValueError(f"straggler_rank is {straggler}; there are ranks 0 to {ranks - 1}")

    def data_parallel(self, ranks: int) -> int:
        """Return the number of data-parallel ranks among ``ranks``.

        Raises:
            ValueError: the ranks do not form whole groups.
        """
        if self.dp is not None and self.dp * self.mp != ranks:
            raise ValueError(
                f"dp {self.dp} x mp {self.mp} makes {self.dp * self.mp} ranks; there are {ranks}"
            )
        if ranks % self.mp:
            raise ValueError(f"mp is {self.mp}; it must divide the {ranks} ranks")
        return ranks // self.mp

    def length(self, dp_rank: int, dp: int) -> int:
        """Return the tokens in each sequence of one of ``dp`` data-parallel ranks."""
        context = self.gpt.context
        shorter = max(1, round(context * (1 - self.shortened)))
        if self.evened:
            return round((context + (dp - 1) * shorter) / dp)
        return context if dp_rank == 0 else shorter

    def tokens_per_step(self, dp: int) -> int:
        """Return the tokens that all data-parallel ranks together process in one optimizer step."""
        return self.batch // dp * sum(self.length(rank, dp) for rank in range(dp))

    @property
    def modelled(self) -> tuple[str, ...]:
        """Names of the parts that are modelled instead of run."""
        return tuple(name for name in ("link", "compute") if getattr(self, name) is not None)

    def _parts(self, dp: int) -> str:
        micro_batches = self.zero.micro_batches
        ranks = f"the {dp} {'ranks' if self.mp == 1 else 'data-parallel ranks'}"
        return ranks if micro_batches == 1 else f"{ranks} x {micro_batches} micro-batches"


#: Parts of a config that are absent by default, and the type that their first field creates.
_OPTIONAL_PARTS: Mapping[str, type[Any]] = {"link": LinkModel, "compute": ComputeModel}


def replace_fields(config: TrainConfig, fields: Mapping[str, object]) -> TrainConfig:
    """Return the config with fields changed by dotted name: ``{"zero.stage": 3}``.

    Raises:
        ValueError: a value is out of range.
        TypeError: there is no such field.
    """
    changed: TrainConfig = _replace_fields(config, fields.items())
    return changed


def _replace_fields(part: Any, fields: Iterable[tuple[str, object]]) -> Any:
    own: dict[str, object] = {}
    inner: dict[str, dict[str, object]] = {}
    for path, value in fields:
        name, _, rest = path.partition(".")
        if rest:
            inner.setdefault(name, {})[rest] = value
        else:
            own[name] = value
    for name, values in inner.items():
        old = getattr(part, name)
        own[name] = _OPTIONAL_PARTS[name](**values) if old is None else _replace_fields(old, values.items())
    return replace(part, **own)
