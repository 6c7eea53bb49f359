"""Configure a ZeRO engine: stage, precision, accumulation, overlap, buffers, AdamW."""

from dataclasses import dataclass, field
from enum import StrEnum

import torch

STAGES = (0, 1, 2, 3)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Keep(StrEnum):
    """Units that stay gathered between forward and backward in stage 3."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class AdamKernel(StrEnum):
    """Kernel that runs AdamW: the engine's CUDA kernel or torch's fused AdamW; ``auto`` prefers the first."""

    AUTO = "auto"
    TORCH = "torch"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """Dynamic loss scaling for float16 (Micikevicius et al., arXiv 1710.03740, section 3.2).

    The scale starts at ``initial`` and is multiplied by ``growth_factor`` after ``growth_interval``
    consecutive steps without overflow.  A step with an overflow multiplies it by ``backoff_factor`` and is
    skipped.

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
    """What is sharded: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters."""

    dtype: torch.dtype = torch.float32
    """Dtype of parameters, gradients and communication.  With 16-bit types, the optimizer keeps fp32 master
    weights."""
    reduce_dtype: torch.dtype | None = None
    """Dtype in which gradients are reduced; None: ``dtype``.  float32 moves twice the bytes of a 16-bit type.
    In stages 2 and 3 the gradient shards have this dtype too."""
    loss_scale: LossScale = field(default_factory=LossScale)
    """Used with float16 only."""
    clip_norm: float | None = None
    """Clip gradients to this global norm; None: no clipping.  Adds an all-reduce of 8 bytes per step."""

    micro_batches: int = 1
    """Backward passes per step (gradient accumulation); gradients are the mean over them."""
    reduce_each_micro_batch: bool | None = None
    """Reduce gradients in every backward.  None: the default of the stage.  Stages 0 and 1 keep full
    gradients anyway and reduce once per step.  Stages 2 and 3 reduce each time, because they keep only
    shards; False (no_sync in DDP and FSDP) reduces once per step and keeps full gradients until then."""

    forward_prefetch: int = 1
    """Stage 3: number of units prefetched in the forward; 0 disables prefetching."""
    backward_prefetch: int = 1
    """Stage 3: number of units prefetched in the backward; 0 disables prefetching."""
    keep_after_forward: Keep = Keep.NONE
    """Stage 3: units that are not gathered again for the backward.  ``all`` moves 2 psi instead of 3 psi, but
    keeps the entire model in memory from forward to backward."""
    overlap_reduce: bool = True
    """Overlap reductions with the backward instead of waiting for each."""
    overlap_gather: bool = True
    """Stages 1 and 2: overlap the all-gather of updated parameters with the next forward instead of waiting
    for it at the end of the step."""

    reduce_buckets: int = 2
    """Reductions in flight before the backward waits for the oldest; this bounds the memory of buckets."""
    constant_buffers: int | None = None
    """CB: elements in a fused buffer, independent of the model size.  Gradients are reduced, and copied to
    fp32 for AdamW, in pieces of at most this size.  None: buffers have the size of the unit."""
    defragment: bool = False
    """MD: copy full gradients into preallocated memory as soon as they are ready."""

    adam: AdamKernel = AdamKernel.AUTO
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    compare_all_weights: bool = False
    """Stages 0 to 2, for debugging: compare all 16-bit parameters with their master weights in each step,
    instead of a sample at the start of the forward, to find every edit through ``.data``.  Reads and writes
    10 bytes per element."""
    alignment: int = 8
    """Every rank's shard is a multiple of this number of elements (8 x 2 bytes = 16, a vector load)."""

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
        """Dtype in which gradients are reduced."""
        return self.dtype if self.reduce_dtype is None else self.reduce_dtype

    @property
    def scales_loss(self) -> bool:
        """True if loss scaling is used."""
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
            object.__setattr__(self, name, choices(value))  # strings are accepted too

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
        raise ValueError(f"{name} is {value!r}; it must be an integer, {minimum} or more")
