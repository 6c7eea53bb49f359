"""Stages 1 to 3: every rank has the mean of the part that its optimizer owns.  Moves psi a turn.

A step's later turns are added to the first: ``owned`` is complete after the last.
"""

from collections.abc import Sequence
from functools import partial

import torch

from zprof.reference_engine.comm import Comm, Handle
from zprof.reference_engine.gradients.buckets import BucketPool
from zprof.reference_engine.gradients.handles import AllOf, Then
from zprof.reference_engine.gradients.pieces import Cut
from zprof.reference_engine.gradients.presence import Presence
from zprof.reference_engine.gradients.protocol import Bucketed, Owned, Readable, Reduction, Turn
from zprof.reference_engine.gradients.whole import FlatWhole
from zprof.reference_engine.units.flat_unit import FlatUnit


class ReduceScatterInPlace:
    """A flat gradient that stays goes over the network itself; once a step."""

    def __init__(
        self, whole: FlatWhole, presence: Presence, owned: Owned, comm: Comm, name: str, *, divisor: int
    ) -> None:
        """``owned`` may lie in the flat gradient, as this rank's part."""
        self._whole = whole
        self._presence = presence
        self._owned = owned
        self._comm = comm
        self._name = name
        self._divisor = divisor

    def start(self, turn: Turn) -> Handle:
        """See :class:`~zprof.reference_engine.gradients.protocol.Reduction`."""
        flat = self._whole.flat
        self._presence.average(flat, self._divisor)
        return self._comm.reduce_scatter(self._owned.tensor, flat, self._name)


class ReduceScatterBucket:
    """A bucket with all of a unit's gradients goes over the network."""

    def __init__(
        self,
        whole: Bucketed,
        presence: Presence,
        owned: Owned,
        comm: Comm,
        unit: FlatUnit,
        *,
        divisor: int,
        pool: BucketPool,
    ) -> None:
        self._whole = whole
        self._presence = presence
        self._owned = owned
        self._comm = comm
        self._unit = unit
        self._divisor = divisor
        self._pool = pool

    def start(self, turn: Turn) -> Handle:
        """See :class:`~zprof.reference_engine.gradients.protocol.Reduction`."""
        bucket = self._whole.hand_over()
        self._presence.average(bucket, self._divisor)
        handle = self._first(bucket) if turn.first else self._later(bucket)
        self._pool.lend(bucket, handle)
        return handle

    def _first(self, bucket: torch.Tensor) -> Handle:
        return self._comm.reduce_scatter(self._owned.tensor, bucket, self._unit.name)

    def _later(self, bucket: torch.Tensor) -> Handle:
        mean = bucket[self._unit.shard_range]
        launched = self._comm.reduce_scatter(mean, bucket, self._unit.name)
        return Then(launched, partial(self._owned.tensor.add_, mean))


class ReduceScatterThroughBuffers:
    """Piece by piece through buffers of another type, or of a constant size."""

    def __init__(
        self,
        whole: Readable,
        presence: Presence,
        owned: Owned,
        comm: Comm,
        name: str,
        *,
        divisor: int,
        pieces: Sequence[Cut],
        pool: BucketPool,
    ) -> None:
        """``pieces`` are of every shard."""
        self._whole = whole
        self._presence = presence
        self._owned = owned
        self._comm = comm
        self._name = name
        self._divisor = divisor
        self._pieces = pieces
        self._pool = pool

    def start(self, turn: Turn) -> Handle:
        """See :class:`~zprof.reference_engine.gradients.protocol.Reduction`."""
        handles = [self._piece(cut, turn) for cut in self._pieces]
        self._whole.close()
        return AllOf(handles)

    def _piece(self, cut: Cut, turn: Turn) -> Handle:
        buffer = self._pool.take(cut.elements * self._comm.world_size)
        self._whole.read(cut, buffer)
        self._presence.average(buffer, self._divisor, cut)
        mean = buffer[self._comm.rank * cut.elements : (self._comm.rank + 1) * cut.elements]
        launched = self._comm.reduce_scatter(mean, buffer, self._name)
        handle = Then(launched, partial(self._account, mean, self._owned.tensor, cut, turn))
        self._pool.lend(buffer, handle)
        return handle

    def _account(self, mean: torch.Tensor, owned: torch.Tensor, cut: Cut, turn: Turn) -> None:
        if turn.first:
            owned[cut.slice].copy_(mean)
            self._presence.keep_signs(owned, mean, cut, shard=self._comm.rank)
        else:
            owned[cut.slice].add_(mean)


class SumOfTurns:
    """Stage 1 where every micro-batch has a turn.

    After a reduce-scatter this rank's part of the flat gradient is a mean, and the rest may not be summed
    again.  So the mean is put aside, 1/N of the gradients more, and the next backward adds to zeros.
    """

    def __init__(self, each: Reduction, whole: FlatWhole, owned: Owned) -> None:
        """``each`` leaves one micro-batch's share of the mean in ``owned``."""
        self._each = each
        self._whole = whole
        self._owned = owned
        self._sum = torch.zeros_like(owned.tensor)

    def start(self, turn: Turn) -> Handle:
        """See :class:`~zprof.reference_engine.gradients.protocol.Reduction`."""
        return Then(self._each.start(Turn()), partial(self._account, turn))

    def _account(self, turn: Turn) -> None:
        if turn.first:
            self._sum.copy_(self._owned.tensor)
        else:
            self._sum.add_(self._owned.tensor)
        if turn.last:
            self._owned.tensor.copy_(self._sum)
        else:
            self._whole.flat.zero_()
