"""Compute that takes a chosen time: each block sleeps in its forward and in its backward.

On a machine with fewer cores than ranks, real compute and communication fight for the cores, and no overlap
is seen.  A sleeping block leaves its core to the others, as a GPU does.  Numbers are not changed.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zprof.reference_engine import ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeModel:
    """Time of each block, and a delay that one rank has in the forward of one block (a planted straggler)."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    straggler_rank: int | None = None
    straggler_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "straggler_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")


def attach(blocks: Mapping[str, nn.Module], model: ComputeModel, *, rank: int) -> None:
    """Make the blocks sleep.  Call it before the engine hooks them: a block sleeps with its parameters there.

    The straggler's delay is in the middle block, once a step.
    """
    middle = list(blocks)[len(blocks) // 2] if rank == model.straggler_rank else None
    for name, block in blocks.items():
        delay = model.straggler_s if name == middle else 0.0
        block.register_forward_hook(_sleeper(name, model.forward_s + delay, model.backward_s))


def _sleeper(unit: str, forward_s: float, backward_s: float) -> Any:
    def after_forward(module: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> Any:
        return _Sleep.apply(output, unit, forward_s, backward_s)  # type: ignore[no-untyped-call]

    return after_forward


class _Sleep(torch.autograd.Function):
    """The identity, after some time."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, unit: str, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.unit, ctx.seconds = unit, backward_s
        _sleep("forward", unit, forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _sleep("backward", ctx.unit, ctx.seconds)
        return gradients[0], None, None, None


def _sleep(phase: str, unit: str, seconds: float) -> None:
    with ranges.compute(phase, unit):
        time.sleep(seconds)
