"""Keep a unit's gradients in one persistent flat tensor, and reduce it in place (stages 0 and 1)."""

from collections.abc import Iterable, Sequence
from functools import partial

import torch

from zprof.reference_engine.comm.collective import Handle
from zprof.reference_engine.flat_layout import ElementRange
from zprof.reference_engine.flat_unit import FlatUnit
from zprof.reference_engine.gradients.unit_gradients import (
    ChainedHandle,
    FullGrads,
    ReductionContext,
    ReductionPass,
    UnitGradients,
)


class FlatGrads(FullGrads):
    """Keeps one flat tensor: every ``.grad`` is a view into it, and autograd accumulates in place."""

    def __init__(self, unit: FlatUnit) -> None:
        super().__init__(unit)
        self.flat = torch.zeros_like(unit.full)
        self._views = tuple(unit.views(self.flat))
        self._attach()

    def collect(self, index: int) -> None:
        """Copy the gradient of parameter ``index`` if autograd allocated a new one."""
        view, parameter = self._views[index], self._unit.parameters[index]
        if parameter.grad is not view:  # the user set it to None
            assert parameter.grad is not None
            view.copy_(parameter.grad)
            parameter.grad = view

    def complete(self, missing: Iterable[int]) -> None:
        """Zero gradients that the user set to None and that were not computed since."""
        for index in missing:
            if self._unit.parameters[index].grad is None:
                self._views[index].zero_()
            else:
                self.collect(index)  # left by an earlier micro-batch
        self._attach()

    def read(self, piece: ElementRange, buffer: torch.Tensor) -> None:
        """Copy elements ``piece`` of every shard into ``buffer``, one shard after the other."""
        part = self.part(piece)
        buffer.view(part.shape).copy_(part)

    def part(self, piece: ElementRange) -> torch.Tensor:
        """Return elements ``piece`` of every shard, as a (ranks, elements) view."""
        return self.flat.view(self._unit.layout.ranks, -1)[:, piece.slice]

    def close(self) -> None:
        """Keep the memory after the last read."""

    def zero(self) -> None:
        """Zero all gradients."""
        self.flat.zero_()
        self._attach()

    def _attach(self) -> None:
        for parameter, view in zip(self._unit.parameters, self._views, strict=True):
            parameter.grad = view


class InPlaceGradients(UnitGradients):
    """Reduces the flat gradient itself: reduce-scatter into the shard, or in stage 0 all-reduce."""

    def __init__(
        self,
        unit: FlatUnit,
        full_grads: FlatGrads,
        context: ReductionContext,
        shard: torch.Tensor | None,
        *,
        pieces: Sequence[ElementRange],
    ) -> None:
        """All-reduce each of ``pieces``, ranges of the flat tensor."""
        super().__init__(unit, full_grads, context, shard)
        self._flat = full_grads.flat
        self._pieces = pieces

    def launch(self, reduction_pass: ReductionPass) -> Handle:
        """Launch the collectives."""
        flat, name = self._flat, self.unit.name
        self.average(flat, reduction_pass)
        if self.unit.policy.shard_optimizer:
            return self._comm.reduce_scatter(self.mean_shard, flat, name)
        return HandleGroup([self._comm.all_reduce(flat[piece.slice], name) for piece in self._pieces])


class SummedGradients(UnitGradients):
    """Reduces in stage 1 after each micro-batch.

    After a reduce-scatter, only this rank's shard of the flat gradient is reduced, and the rest must not be
    summed again.  So the shards are accumulated separately (1/N of the gradients in extra memory), and the
    flat gradient is zeroed before the next backward.
    """

    def __init__(
        self, gradients: UnitGradients, full_grads: FlatGrads, context: ReductionContext, shard: torch.Tensor
    ) -> None:
        """Sum what ``gradients``, of the same unit and memory, reduces: a micro-batch's part of the mean."""
        super().__init__(gradients.unit, full_grads, context, shard)
        self._with_gradient = gradients._with_gradient
        self._launch_pass = gradients.launch
        self._flat = full_grads.flat
        self._sum = torch.zeros_like(shard)

    def launch(self, reduction_pass: ReductionPass) -> Handle:
        """Launch the collectives of one micro-batch."""
        return ChainedHandle(self._launch_pass(ReductionPass()), partial(self._accumulate, reduction_pass))

    def _accumulate(self, reduction_pass: ReductionPass) -> None:
        if reduction_pass.first:
            self._sum.copy_(self.mean_shard)
        else:
            self._sum.add_(self.mean_shard)
        if reduction_pass.last:
            self.mean_shard.copy_(self._sum)
        else:
            self._flat.zero_()


class HandleGroup:
    """Waits for several collectives in launch order; an empty group is complete immediately."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._handles = tuple(handles)

    def wait(self) -> None:
        """Wait for all collectives."""
        handles, self._handles = self._handles, ()
        for handle in handles:
            handle.wait()
