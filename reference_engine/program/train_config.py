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

#: Parts of a config that are None by default, and their types.
_OPTIONAL_PARTS: Mapping[str, type[Any]] = {"link": LinkModel, "compute": ComputeModel}


class Units(StrEnum):
    """Modules that are gathered and reduced as one."""

    BLOCKS = "blocks"
    LAYERS = "layers"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Settings of a training run; equal on all ranks.

    ``batch`` is global, so that losses depend neither on the number of ranks nor on accumulation.  Without
    ``link`` the real network is used, without ``compute`` the blocks' real compute time.

    Raises:
        ValueError: a number is out of range; the message names it.
    """

    zero: ZeroConfig = field(default_factory=ZeroConfig)
    activations: ActivationConfig = field(default_factory=ActivationConfig)
    gpt: GPTConfig = field(default_factory=GPTConfig)
    units: Units = Units.BLOCKS
    """Each block, each layer with parameters, or the entire model is one unit."""
    dp: int | None = None
    """Number of data-parallel ranks; None: all ranks / mp."""
    mp: int = 1
    """Number of tensor-parallel ranks that share a model; they are adjacent."""
    steps: int = 20
    batch: int = 8
    seed: int = 0
    save: Path | None = None
    resume: Path | None = None
    link: LinkModel | None = None
    compute: ComputeModel | None = None
    host: HostFaults = field(default_factory=HostFaults)
    shortened: float = 0.0
    """Sequences are shorter by this fraction on all data-parallel ranks except the first."""
    evened: bool = False
    """Distribute the same tokens evenly: every rank has sequences of the mean length."""
    plant: str | None = None
    """Cause planted in this run."""
    timeout_s: float = 300.0
    """Timeout of collectives."""

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
            ValueError: it cannot; the one-line message names the setting.
        """
        dp = self.data_parallel(ranks)
        self.gpt.check_model_parallel(self.mp)
        self.activations.check_model_parallel(self.mp)
        parts = dp * self.zero.micro_batches
        if self.batch % parts:
            raise ValueError(f"batch is {self.batch}; it must be a multiple of {self._describe_divisor(dp)}")
        straggler = None if self.compute is None else self.compute.straggler_rank
        if straggler is not None and not 0 <= straggler < ranks:
            raise ValueError(f"straggler_rank is {straggler}; there are ranks 0 to {ranks - 1}")

    def data_parallel(self, ranks: int) -> int:
        """Return the number of data-parallel ranks among ``ranks``.

        Raises:
            ValueError: the number of ranks is not dp x mp.
        """
        if self.dp is not None and self.dp * self.mp != ranks:
            raise ValueError(
                f"dp {self.dp} x mp {self.mp} makes {self.dp * self.mp} ranks; there are {ranks}"
            )
        if ranks % self.mp:
            raise ValueError(f"mp is {self.mp}; it must divide the {ranks} ranks")
        return ranks // self.mp

    def length(self, dp_rank: int, dp: int) -> int:
        """Return the number of tokens per sequence of a rank among ``dp`` data-parallel ranks."""
        context = self.gpt.context
        shorter = max(1, round(context * (1 - self.shortened)))
        if self.evened:
            return round((context + (dp - 1) * shorter) / dp)
        return context if dp_rank == 0 else shorter

    def tokens_per_step(self, dp: int) -> int:
        """Return the number of tokens that all data-parallel ranks process in one optimizer step."""
        return self.batch // dp * sum(self.length(rank, dp) for rank in range(dp))

    @property
    def modelled(self) -> tuple[str, ...]:
        """Names of the parts that are modelled."""
        return tuple(name for name in ("link", "compute") if getattr(self, name) is not None)

    def _describe_divisor(self, dp: int) -> str:
        micro_batches = self.zero.micro_batches
        ranks = f"the {dp} {'ranks' if self.mp == 1 else 'data-parallel ranks'}"
        return ranks if micro_batches == 1 else f"{ranks} x {micro_batches} micro-batches"


def replace_fields(config: TrainConfig, fields: Mapping[str, object]) -> TrainConfig:
    """Return the config with fields replaced by dotted name: ``{"zero.stage": 3}``.

    Raises:
        ValueError: a value is out of range.
        TypeError: there is no such field.
    """
    return _replace_fields(config, fields.items())


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
