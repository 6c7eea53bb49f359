"""Stage 0: every rank has the mean of all gradients.  Moves 2 psi a turn.

Where each micro-batch has a turn, the flat gradient is the mean so far, equal on all ranks, plus what the
next micro-batch adds.  Summed over N ranks and divided by N that is again the mean so far; only the last
turn divides by the number of micro-batches too.
"""

from collections.abc import Sequence
from functools import partial

import torch

from zprof.reference_engine.comm import Comm, Handle
from zprof.reference_engine.gradients.buckets import BucketPool
from zprof.reference_engine.gradients.handles import AllOf, Then
from zprof.reference_engine.gradients.pieces import Cut
from zprof.reference_engine.gradients.presence import Presence
from zprof.reference_engine.gradients.protocol import Turn
from zprof.reference_engine.gradients.whole import FlatWhole


class AllReduceInPlace:
    """The flat gradient itself goes over the network, in one piece or in several."""

    def __init__(
        self,
        whole: FlatWhole,
        presence: Presence,
        comm: Comm,
        name: str,
        *,
        micro_batches: int,
        pieces: Sequence[Cut],
    ) -> None:
        """``pieces`` are of the whole flat tensor."""
        self._whole = whole
        self._presence = presence
        self._comm = comm
        self._name = name
        self._micro_batches = micro_batches
        self._pieces = pieces

    def start(self, turn: Turn) -> Handle:
        """See :class:`~zprof.reference_engine.gradients.protocol.Reduction`."""
        flat = self._whole.flat
        divisor = _divisor(self._comm, self._micro_batches, turn)
        self._presence.average(flat, divisor, first_sum=turn.first)
        return AllOf([self._comm.all_reduce(flat[cut.slice], self._name) for cut in self._pieces])


class AllReduceThroughBuffers:
    """Through buffers of another type, or of a constant size, and back."""

    def __init__(
        self,
        whole: FlatWhole,
        presence: Presence,
        comm: Comm,
        name: str,
        *,
        micro_batches: int,
        pieces: Sequence[Cut],
        pool: BucketPool,
    ) -> None:
        """``pieces`` are of every shard."""
        self._whole = whole
        self._presence = presence
        self._comm = comm
        self._name = name
        self._micro_batches = micro_batches
        self._pieces = pieces
        self._pool = pool

    def start(self, turn: Turn) -> Handle:
        """See :class:`~zprof.reference_engine.gradients.protocol.Reduction`."""
        return AllOf([self._piece(cut, turn) for cut in self._pieces])

    def _piece(self, cut: Cut, turn: Turn) -> Handle:
        buffer = self._pool.take(cut.elements * self._comm.world_size)
        self._whole.read(cut, buffer)
        divisor = _divisor(self._comm, self._micro_batches, turn)
        self._presence.average(buffer, divisor, cut, first_sum=turn.first)
        launched = self._comm.all_reduce(buffer, self._name)
        handle = Then(launched, partial(self._write_back, cut, buffer))
        self._pool.lend(buffer, handle)
        return handle

    def _write_back(self, cut: Cut, buffer: torch.Tensor) -> None:
        part = self._whole.part(cut)
        part.copy_(buffer.view(part.shape))
        self._presence.keep_signs(self._whole.flat, buffer, cut, shard=None)


def _divisor(comm: Comm, micro_batches: int, turn: Turn) -> int:
    return comm.world_size * (micro_batches if turn.last else 1)
