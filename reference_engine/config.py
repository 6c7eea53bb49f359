"""What a user may choose about a ZeRO engine: the stage, the overlap switches and AdamW's numbers."""

from dataclasses import dataclass

import torch

STAGES = (0, 1, 2, 3)
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroConfig:
    """Settings of one engine; equal on all ranks.

    Every switch changes when bytes move, none changes what is computed.

    Raises:
        ValueError: a setting is out of range; the message names it.
    """

    stage: int = 0
    """What is sharded: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters."""
    dtype: torch.dtype = torch.float32
    """Of parameters, gradients and the wire.  bfloat16 keeps fp32 master weights in the optimizer."""
    forward_prefetch: int = 1
    """Stage 3: units gathered ahead of the forward; 0 turns it off."""
    backward_prefetch: int = 1
    """Stage 3: units gathered ahead of the backward; 0 turns it off."""
    overlap_reduce: bool = True
    """Reduce gradients beside the rest of the backward, not by waiting for each."""
    overlap_gather: bool = True
    """Stages 1 and 2: gather updated parameters beside the next forward, not at the end of the step."""
    reduce_buckets: int = 2
    """Stages 2 and 3: reductions in flight before the backward waits for the oldest (bounds their memory)."""
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    alignment: int = 8
    """Elements: every rank's shard is a multiple of it (8 x 2 bytes = 16, a vector load)."""

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise ValueError(f"stage is {self.stage!r}; it must be 0, 1, 2 or 3")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype}; it must be torch.float32 or torch.bfloat16")
        for name, least in (
            ("forward_prefetch", 0),
            ("backward_prefetch", 0),
            ("reduce_buckets", 1),
            ("alignment", 1),
        ):
            _at_least(name, getattr(self, name), least)
        self._check_adamw()

    def _check_adamw(self) -> None:
        for name in ("learning_rate", "eps", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be 0 or more")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas is {self.betas!r}; it must be two numbers in [0, 1)")


def _at_least(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number, {least} or more")
