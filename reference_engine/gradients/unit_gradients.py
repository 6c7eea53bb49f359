"""Where a unit's gradients live, and how they become the mean over the ranks.

Replicated (stages 0 and 1): every parameter's ``.grad`` is a view into one flat buffer, autograd adds into
it, and the buffer is reduced in place.  Sharded (stages 2 and 3): each gradient is copied into a bucket as
soon as it is there, and dropped; the bucket is reduce-scattered into the 1/N that this rank keeps.

The mean is taken before the sum (g / N, then sum), so that low precision does not overflow.
"""

from collections.abc import Iterable
from typing import Protocol

import torch

from zprof.reference_engine.comm import Comm, Handle
from zprof.reference_engine.gradients.buckets import BucketPool
from zprof.reference_engine.units.flat_unit import FlatUnit


class UnitGradients(Protocol):
    """The gradients of one unit."""

    @property
    def owned(self) -> torch.Tensor:
        """What this rank's optimizer reads, after the reduction."""

    def take(self, index: int) -> None:
        """The parameter of this index has its gradient."""

    def reduce(self, missing: Iterable[int]) -> Handle:
        """Start to average over the ranks; parameters in ``missing`` had no gradient and count as zero."""

    def zero(self) -> None:
        """Set all gradients to zero, in place."""


class ReplicatedGradients:
    """All gradients on every rank; after a reduce-scatter only this rank's part is the mean."""

    def __init__(self, unit: FlatUnit, comm: Comm) -> None:
        self._unit = unit
        self._comm = comm
        self._flat = torch.zeros_like(unit.full)
        self._views = tuple(unit.views(self._flat))
        self.owned = self._flat[unit.owned_range]
        self._attach()

    def take(self, index: int) -> None:
        """See :class:`UnitGradients`."""
        view, parameter = self._views[index], self._unit.parameters[index]
        if parameter.grad is not view:  # somebody dropped it (set_to_none), and autograd made a new one
            assert parameter.grad is not None
            view.copy_(parameter.grad)
            parameter.grad = view

    def reduce(self, missing: Iterable[int]) -> Handle:
        """See :class:`UnitGradients`."""
        for index in missing:
            if self._unit.parameters[index].grad is None:
                self._views[index].zero_()
        self._attach()
        self._flat.div_(self._comm.world_size)
        if self._unit.policy.shard_optimizer:
            return self._comm.reduce_scatter(self.owned, self._flat, self._unit.name)
        return self._comm.all_reduce(self._flat, self._unit.name)

    def zero(self) -> None:
        """See :class:`UnitGradients`."""
        self._flat.zero_()
        self._attach()

    def _attach(self) -> None:
        for parameter, view in zip(self._unit.parameters, self._views, strict=True):
            parameter.grad = view


class ShardedGradients:
    """This rank's part only; whole gradients pass through a bucket."""

    def __init__(self, unit: FlatUnit, comm: Comm, pool: BucketPool) -> None:
        self._unit = unit
        self._comm = comm
        self._pool = pool
        self._bucket: torch.Tensor | None = None
        self.owned = torch.zeros_like(unit.shard.detach())

    def take(self, index: int) -> None:
        """See :class:`UnitGradients`."""
        parameter = self._unit.parameters[index]
        assert parameter.grad is not None
        self._slot(index).copy_(parameter.grad)
        parameter.grad = None

    def reduce(self, missing: Iterable[int]) -> Handle:
        """See :class:`UnitGradients`."""
        for index in missing:
            self._slot(index).zero_()
        bucket, self._bucket = self._open(), None
        bucket.div_(self._comm.world_size)
        handle = self._comm.reduce_scatter(self.owned, bucket, self._unit.name)
        self._pool.lend(bucket, handle)
        return handle

    def zero(self) -> None:
        """See :class:`UnitGradients`."""
        self.owned.zero_()
        self._bucket = None

    def _slot(self, index: int) -> torch.Tensor:
        slot = self._unit.layout.slots[index]
        return self._open()[slot.offset : slot.offset + slot.numel].view(slot.shape)

    def _open(self) -> torch.Tensor:
        if self._bucket is None:
            self._bucket = self._pool.take(self._unit.full)
            self._bucket[self._unit.layout.numel :].zero_()
        return self._bucket
