"""Configure a ZeRO engine: stage, precision, accumulation, overlap, buffers, AdamW."""

from dataclasses import dataclass, field
from enum import StrEnum

import torch

STAGES = (0, 1, 2, 3)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Keep(StrEnum):
    """Units that keep their gathered parameters between forward and backward in stage 3."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class AdamKernel(StrEnum):
    """Kernel that runs AdamW: the engine's CUDA kernel, torch's fused AdamW, or the first if it is
    available.
    """

    AUTO = "auto"
    TORCH = "torch"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """The dynamic loss scale of float16 (Micikevicius et al., arXiv 1710.03740, section 3.2).

    The scale starts at ``initial``.  ``growth_interval`` steps in a row without an overflow multiply it by
    ``growth_factor``.  A step with an overflow multiplies it by ``backoff_factor`` and changes nothing else.

    Raises:
        ValueError: a number is out of range; the message names it.
    """

    initial: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        if not 0 < self.initial < float("inf"):
            raise ValueError(f"loss scale initial is {self.initial!r}; it must be above 0")
        if not 1 <= self.growth_factor < float("inf"):
            raise ValueError(f"loss scale growth_factor is {self.growth_factor!r}; it must be 1 or more")
        if not 0 < self.backoff_factor <= 1:
            raise ValueError(f"loss scale backoff_factor is {self.backoff_factor!r}; it must be in (0, 1]")
        _check_at_least("loss scale growth_interval", self.growth_interval, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroConfig:
    """Settings of one engine; equal on all ranks.

    Raises:
        ValueError: a setting is out of range; the message names it.
    """

    stage: int = 0
    """What is sharded: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters."""

    dtype: torch.dtype = torch.float32
    """Of parameters, gradients and the wire.  The 16-bit types keep fp32 master weights in the optimizer."""
    reduce_dtype: torch.dtype | None = None
    """Gradients are summed over the ranks in this type; None: in ``dtype``.  float32 moves twice the bytes
    of a 16-bit type, and in stages 2 and 3 the gradient shards have this type too."""
    loss_scale: LossScale = field(default_factory=LossScale)
    """float16 only."""
    clip_norm: float | None = None
    """Scale gradients down to this norm, taken over all ranks; None: never.  Moves 8 bytes per step more."""

    micro_batches: int = 1
    """Backward passes to a step; gradients are the mean over them."""
    reduce_each_micro_batch: bool | None = None
    """Whether every backward communicates.  None: as the stage needs it.  Stages 0 and 1 keep whole gradients
    anyway and reduce once per step.  Stages 2 and 3 reduce each time, because only shards are kept; False
    there (others call it no_sync) communicates once per step, and keeps whole gradients until then."""

    forward_prefetch: int = 1
    """Stage 3: units gathered ahead of the forward; 0 turns it off."""
    backward_prefetch: int = 1
    """Stage 3: units gathered ahead of the backward; 0 turns it off."""
    keep_after_forward: Keep = Keep.NONE
    """Stage 3: what is not gathered a second time for the backward.  ``all`` moves 2 psi instead of 3 psi and
    holds the whole model from forward to backward."""
    overlap_reduce: bool = True
    """Reduce gradients beside the rest of the backward, not by waiting for each."""
    overlap_gather: bool = True
    """Stages 1 and 2: gather updated parameters beside the next forward, not at the end of the step."""

    reduce_buckets: int = 2
    """Reductions in flight before the backward waits for the oldest (bounds the memory of their buffers)."""
    constant_buffers: int | None = None
    """CB: elements of a fused buffer, whatever the size of the model: gradients are reduced, and copied to
    fp32 for AdamW, in pieces of at most so many.  None: buffers have the size of the unit."""
    defragment: bool = False
    """MD: whole gradients are copied into memory that was allocated once, as they are produced."""

    adam: AdamKernel = AdamKernel.AUTO
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    alignment: int = 8
    """Elements: every rank's shard is a multiple of it (8 x 2 bytes = 16, a vector load)."""

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise ValueError(f"stage is {self.stage!r}; it must be 0, 1, 2 or 3")
        self._check_dtypes()
        self._check_choices()
        for name, minimum in (
            ("micro_batches", 1),
            ("forward_prefetch", 0),
            ("backward_prefetch", 0),
            ("reduce_buckets", 1),
            ("alignment", 1),
        ):
            _check_at_least(name, getattr(self, name), minimum)
        if self.constant_buffers is not None:
            _check_at_least("constant_buffers", self.constant_buffers, 1)
        self._check_adamw()

    @property
    def wire_dtype(self) -> torch.dtype:
        """Dtype of gradients while they are reduced."""
        return self.dtype if self.reduce_dtype is None else self.reduce_dtype

    @property
    def scales_loss(self) -> bool:
        """True if gradients carry a loss scale."""
        return self.dtype == torch.float16

    @property
    def reduces_each_micro_batch(self) -> bool:
        """``reduce_each_micro_batch``, or the default of the stage."""
        return self.stage >= 2 if self.reduce_each_micro_batch is None else self.reduce_each_micro_batch

    def _check_dtypes(self) -> None:
        names = ", ".join(str(dtype) for dtype in DTYPES)
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype}; it must be one of {names}")
        if self.reduce_dtype not in (None, self.dtype, torch.float32):
            raise ValueError(f"reduce_dtype is {self.reduce_dtype}; it must be {self.dtype} or torch.float32")

    def _check_choices(self) -> None:
        for name, choices in (("keep_after_forward", Keep), ("adam", AdamKernel)):
            value = getattr(self, name)
            if value not in list(choices):
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
            object.__setattr__(self, name, choices(value))  # its string value is accepted too

    def _check_adamw(self) -> None:
        for name in ("learning_rate", "eps", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be 0 or more")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas is {self.betas!r}; it must be two numbers in [0, 1)")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm is {self.clip_norm!r}; it must be above 0")


def _check_at_least(name: str, value: object, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name} is {value!r}; it must be a whole number, {minimum} or more")
