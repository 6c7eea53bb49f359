"""Where a unit's whole gradients lie until they are reduced: in memory that stays, in a bucket, or loose."""

from collections.abc import Iterable, Sequence

import torch

from zprof.reference_engine.gradients.buckets import BucketPool
from zprof.reference_engine.gradients.pieces import Cut, runs
from zprof.reference_engine.units.flat_unit import FlatUnit


class FlatWhole:
    """One flat tensor that stays: every ``.grad`` is a view into it, and autograd adds."""

    def __init__(self, unit: FlatUnit) -> None:
        self._unit = unit
        self.flat = torch.zeros_like(unit.full)
        self._views = tuple(unit.views(self.flat))
        self._attach()

    def take(self, index: int) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Whole`."""
        view, parameter = self._views[index], self._unit.parameters[index]
        if parameter.grad is not view:  # somebody dropped it (set_to_none), and autograd made a new one
            assert parameter.grad is not None
            view.copy_(parameter.grad)
            parameter.grad = view

    def complete(self, missing: Iterable[int]) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Whole`."""
        for index in missing:
            if self._unit.parameters[index].grad is None:
                self._views[index].zero_()
            else:
                self.take(index)  # of an earlier micro-batch
        self._attach()

    def read(self, cut: Cut, buffer: torch.Tensor) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Readable`."""
        part = self.part(cut)
        buffer.view(part.shape).copy_(part)

    def part(self, cut: Cut) -> torch.Tensor:
        """Elements ``cut`` of every shard, as ranks x elements."""
        return of_every_shard(self.flat, self._unit, cut)

    def close(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Readable`."""

    def zero(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Whole`."""
        self.flat.zero_()
        self._attach()

    def _attach(self) -> None:
        for parameter, view in zip(self._unit.parameters, self._views, strict=True):
            parameter.grad = view


class LateBucketWhole:
    """``.grad`` as autograd made it until all are there, then one after the other into a bucket, and dropped.

    While a unit runs backward, its activations go and its gradients come; the bucket is taken after that,
    when the unit's parameters are given back too.
    """

    def __init__(self, unit: FlatUnit, pool: BucketPool) -> None:
        self._unit = unit
        self._pool = pool

    def take(self, index: int) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Whole`."""

    def complete(self, missing: Iterable[int]) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Whole`."""

    def hand_over(self) -> torch.Tensor:
        """See :class:`~zprof.reference_engine.gradients.protocol.Bucketed`."""
        layout = self._unit.layout
        bucket = self._pool.take(layout.padded)
        bucket[layout.numel :].zero_()
        for view, parameter in zip(self._unit.views(bucket), self._unit.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
                parameter.grad = None
        return bucket

    def zero(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Whole`."""
        _drop(self._unit)


class BucketWhole:
    """A bucket of a pool: each gradient is copied in as soon as it is there, and dropped."""

    def __init__(self, unit: FlatUnit, pool: BucketPool) -> None:
        self._unit = unit
        self._pool = pool
        self._bucket: torch.Tensor | None = None

    def take(self, index: int) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Whole`."""
        parameter = self._unit.parameters[index]
        assert parameter.grad is not None
        self._slot(index).copy_(parameter.grad)
        parameter.grad = None

    def complete(self, missing: Iterable[int]) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Whole`."""
        for index in missing:
            if self._unit.parameters[index].grad is None:
                self._slot(index).zero_()
            else:
                self.take(index)  # of an earlier micro-batch

    def read(self, cut: Cut, buffer: torch.Tensor) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Readable`."""
        part = of_every_shard(self._open(), self._unit, cut)
        buffer.view(part.shape).copy_(part)

    def close(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Readable`."""
        self._pool.give_back(self.hand_over())

    def hand_over(self) -> torch.Tensor:
        """See :class:`~zprof.reference_engine.gradients.protocol.Bucketed`."""
        bucket, self._bucket = self._open(), None
        return bucket

    def zero(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Whole`."""
        self._bucket = None  # its memory goes back when the pool is drained
        _drop(self._unit)

    def _slot(self, index: int) -> torch.Tensor:
        slot = self._unit.layout.slots[index]
        return self._open()[slot.offset : slot.offset + slot.numel].view(slot.shape)

    def _open(self) -> torch.Tensor:
        if self._bucket is None:
            self._bucket = self._pool.take(self._unit.layout.padded)
            self._bucket[self._unit.layout.numel :].zero_()
        return self._bucket


class LooseWhole:
    """``.grad`` of each parameter, as autograd made it."""

    def __init__(self, unit: FlatUnit, pieces: Sequence[Cut]) -> None:
        """``pieces`` are those that will be read."""
        self._unit = unit
        self._runs = {cut: runs(unit.layout, cut) for cut in pieces}

    def take(self, index: int) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Whole`."""

    def complete(self, missing: Iterable[int]) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Whole`."""

    def read(self, cut: Cut, buffer: torch.Tensor) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Readable`."""
        for run in self._runs[cut]:
            target = buffer[run.buffer.slice]
            gradient = None if run.parameter is None else self._unit.parameters[run.parameter].grad
            if gradient is None:
                target.zero_()
            else:
                target.copy_(gradient.reshape(-1)[run.elements.slice])

    def close(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Readable`."""
        _drop(self._unit)

    def zero(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Whole`."""
        _drop(self._unit)


def of_every_shard(flat: torch.Tensor, unit: FlatUnit, cut: Cut) -> torch.Tensor:
    """Elements ``cut`` of every shard of a unit's flat tensor, as ranks x elements."""
    return flat.view(unit.layout.ranks, -1)[:, cut.slice]


def _drop(unit: FlatUnit) -> None:
    for parameter in unit.parameters:
        parameter.grad = None
