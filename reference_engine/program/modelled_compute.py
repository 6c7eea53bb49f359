"""Model compute time with sleeping blocks, for machines with fewer cores than ranks.

On such machines, compute and communication compete for the cores, and overlap is not visible.  A sleeping
block leaves the core free, as compute on a GPU does.  Results do not change.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zprof.reference_engine.comm import native

BlockCallback = Callable[[torch.Tensor], None]


def add_block_callbacks(
    block: nn.Module,
    *,
    before_forward: BlockCallback | None = None,
    after_forward: BlockCallback | None = None,
    before_backward: BlockCallback | None = None,
) -> None:
    """Register callbacks that get the block's input, its output, or the gradient of its output.

    Call it before the engine hooks the block, so that parameters are gathered in all callbacks.
    """

    def run_before(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if before_forward is not None:
            before_forward(arguments[0])

    def run_after(module: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> Any:
        if after_forward is not None:
            after_forward(output)
        if before_backward is None:
            return output
        return _Identity.apply(output, before_backward)  # type: ignore[no-untyped-call]

    block.register_forward_pre_hook(run_before)
    block.register_forward_hook(run_after)


class _Identity(torch.autograd.Function):
    """Identity that runs a callback at the start of its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, before_backward: BlockCallback) -> torch.Tensor:
        ctx.before_backward = before_backward
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.before_backward(gradients[0])
        return gradients[0], None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeModel:
    """Time per block, and a straggler's delay in the forward of one block."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    straggler_rank: int | None = None
    straggler_s: float = 0.0
    straggler_rotates: bool = False
    """The straggler changes in every step, round robin, and its host stalls instead of its compute."""

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "straggler_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if self.straggler_rotates and self.straggler_rank is not None:
            raise ValueError("straggler_rank and straggler_rotates are both set; set only one")

    def is_late(self, rank: int, step: int, ranks: int) -> bool:
        """Return True if this rank is the straggler of this step."""
        return rank == (step % ranks if self.straggler_rotates else self.straggler_rank)


def attach_modelled_compute(
    blocks: Mapping[str, nn.Module],
    model: ComputeModel,
    *,
    rank: int,
    ranks: int = 1,
    full_length: int | None = None,
) -> "ModelledCompute":
    """Make the blocks sleep; call it before the engine hooks them, so that parameters are gathered.

    Times are for sequences of ``full_length`` tokens; for shorter ones a block sleeps proportionally less.
    """
    compute = ModelledCompute(blocks, model, rank=rank, ranks=ranks, full_length=full_length)
    for name, block in blocks.items():
        add_block_callbacks(
            block, after_forward=compute.forward(name), before_backward=compute.backward(name)
        )
    return compute


class ModelledCompute:
    """Callbacks in which blocks sleep; the straggler's delay is in the middle block, once per step."""

    def __init__(
        self,
        blocks: Mapping[str, nn.Module],
        model: ComputeModel,
        *,
        rank: int,
        ranks: int,
        full_length: int | None,
    ) -> None:
        self._middle = list(blocks)[len(blocks) // 2]
        self._model, self._rank, self._ranks = model, rank, ranks
        self._full_length = full_length
        self.begin_step(0)

    def begin_step(self, step: int) -> None:
        """Start a step, and determine if this rank is its straggler."""
        self._delay_pending = self._model.is_late(self._rank, step, self._ranks)

    def forward(self, name: str) -> BlockCallback:
        """Return the callback after the block's forward; a recomputation sleeps again, without the delay."""

        def sleep(x: torch.Tensor) -> None:
            # The straggler's delay in seconds if it is due in this block; it is due once per step.
            due = self._delay_pending and name == self._middle
            self._delay_pending = self._delay_pending and not due
            delay_s = self._model.straggler_s if due else 0.0
            if self._model.straggler_rotates:
                time.sleep(delay_s)  # a stall of the host, without a compute range
                delay_s = 0.0
            _sleep("forward", name, self._model.forward_s * self._length_ratio(x) + delay_s)

        return sleep

    def backward(self, name: str) -> BlockCallback:
        """Return the callback before the block's backward."""
        return lambda x: _sleep("backward", name, self._model.backward_s * self._length_ratio(x))

    def _length_ratio(self, x: torch.Tensor) -> float:
        return 1.0 if self._full_length is None else x.shape[1] / self._full_length


def _sleep(phase: str, unit: str, seconds: float) -> None:
    with native.compute_range(phase, unit):
        time.sleep(seconds)
