"""Compute that takes a chosen time: each block sleeps in its forward and in its backward.

On a machine with fewer cores than ranks, real compute and communication fight for the cores, and no overlap
is seen.  A sleeping block leaves its core to the others, as a GPU does.  Numbers are not changed.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from zprof.reference_engine import ranges
from zprof.reference_engine.program.block_visit import Visit, visit


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeModel:
    """Time of each block, and a delay that one rank has in the forward of one block (a planted straggler)."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    straggler_rank: int | None = None
    straggler_s: float = 0.0
    straggler_rotates: bool = False
    """Another rank is late in each step, in turn, and its host is why: it stalls, no compute takes longer."""

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "straggler_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if self.straggler_rotates and self.straggler_rank is not None:
            raise ValueError("straggler_rank is given and straggler_rotates is on; choose one of the two")

    def is_late(self, rank: int, step: int, ranks: int) -> bool:
        """Whether this rank is the straggler of this step."""
        return rank == (step % ranks if self.straggler_rotates else self.straggler_rank)


def attach(
    blocks: Mapping[str, nn.Module],
    model: ComputeModel,
    *,
    rank: int,
    ranks: int = 1,
    full_length: int | None = None,
) -> "ModelledCompute":
    """Make the blocks sleep.  Call it before the engine hooks them: a block sleeps with its parameters there.

    Times are those of sequences of ``full_length`` tokens; a block sleeps less on shorter ones.
    """
    compute = ModelledCompute(blocks, model, rank=rank, ranks=ranks, full_length=full_length)
    for name, block in blocks.items():
        visit(block, after_forward=compute.forward(name), before_backward=compute.backward(name))
    return compute


class ModelledCompute:
    """Sleeps for the blocks.  The straggler's delay is in the middle block, once a step."""

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
        """The loop begins a step."""
        self._late = self._model.is_late(self._rank, step, self._ranks)

    def forward(self, name: str) -> Visit:
        """What the block does after its forward; a recomputation takes the time again, but no delay."""

        def sleep(x: torch.Tensor) -> None:
            late_s = self._late_s(name)
            if self._model.straggler_rotates:
                time.sleep(late_s)  # the host stalls: no range says that it computes
                late_s = 0.0
            _sleep("forward", name, self._model.forward_s * self._share(x) + late_s)

        return sleep

    def backward(self, name: str) -> Visit:
        """What the block does before its backward."""
        return lambda x: _sleep("backward", name, self._model.backward_s * self._share(x))

    def _late_s(self, name: str) -> float:
        """The straggler's delay where it is due, once."""
        due = self._late and name == self._middle
        self._late = self._late and not due
        return self._model.straggler_s if due else 0.0

    def _share(self, x: torch.Tensor) -> float:
        return 1.0 if self._full_length is None else x.shape[1] / self._full_length


def _sleep(phase: str, unit: str, seconds: float) -> None:
    with ranges.compute(phase, unit):
        time.sleep(seconds)
