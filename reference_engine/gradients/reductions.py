"""Average gradients over the ranks, by all-reduce or reduce-scatter.

Stage 0 all-reduces (2 psi per pass).  Stages 1 to 3 reduce-scatter into this rank's shard (psi per pass).

If each micro-batch has its own pass, the flat gradient is the mean so far, equal on all ranks, plus what the
next micro-batch adds.  Summed over N ranks and divided by N, that is again the mean so far; only the last
pass also divides by the number of micro-batches.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import nn

from zprof.reference_engine.comm.collective import Comm, Handle
from zprof.reference_engine.flat_unit import FlatUnit
from zprof.reference_engine.gradients.presence import Presence
from zprof.reference_engine.gradients.storage import BucketPool, Cut, FlatGrads


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionPass:
    """Position of a reduction within its step: the only one (first and last), or one per micro-batch."""

    first: bool = True
    last: bool = True


class UnreducedGrads(Protocol):
    """Storage of a unit's full gradients from autograd until their reduction."""

    def take(self, index: int) -> None:
        """Take the gradient of this parameter, which is in ``.grad``."""

    def complete(self, missing: Iterable[int]) -> None:
        """Finish the pass; a parameter in ``missing`` that has no gradient at all counts as zero."""

    def zero(self) -> None:
        """Zero or drop all gradients."""


class ReadableGrads(UnreducedGrads, Protocol):
    """Full gradients that are read piece by piece."""

    def read(self, cut: Cut, buffer: torch.Tensor) -> None:
        """Copy elements ``cut`` of every shard into ``buffer``, one shard after the other."""

    def close(self) -> None:
        """Release what is no longer needed after the last read."""


class BucketedGrads(UnreducedGrads, Protocol):
    """Full gradients that end up in a bucket, laid out as in the unit."""

    def hand_over(self) -> torch.Tensor:
        """Return the bucket; the caller reduces it and gives it back to the pool."""


class GradShard(Protocol):
    """This rank's part of the mean, which its optimizer reads."""

    @property
    def tensor(self) -> torch.Tensor:
        """The shard's memory; elements that no reduction wrote are arbitrary."""

    def zero(self) -> None:
        """Zero the shard at the end of a step."""


class Reduction(Protocol):
    """Average a unit's full gradients into the mean that this rank keeps."""

    def start(self, this_pass: ReductionPass) -> Handle:
        """Start to average over the ranks; the mean is complete once the handle has been waited for."""


class ReduceScatterInPlace:
    """Reduce-scatter the persistent flat gradient itself, once per step."""

    def __init__(
        self, whole: FlatGrads, presence: Presence, owned: GradShard, comm: Comm, name: str, *, divisor: int
    ) -> None:
        """Set up the reduction; ``owned`` may be this rank's part of the flat gradient."""
        self._whole = whole
        self._presence = presence
        self._owned = owned
        self._comm = comm
        self._name = name
        self._divisor = divisor

    def start(self, this_pass: ReductionPass) -> Handle:
        """See :class:`Reduction`."""
        flat = self._whole.flat
        self._presence.average(flat, self._divisor)
        return self._comm.reduce_scatter(self._owned.tensor, flat, self._name)


class ReduceScatterBucket:
    """Reduce-scatter a bucket with all of a unit's gradients."""

    def __init__(
        self,
        whole: BucketedGrads,
        presence: Presence,
        owned: GradShard,
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

    def start(self, this_pass: ReductionPass) -> Handle:
        """See :class:`Reduction`."""
        bucket = self._whole.hand_over()
        self._presence.average(bucket, self._divisor)
        handle = self._first(bucket) if this_pass.first else self._later(bucket)
        self._pool.lend(bucket, handle)
        return handle

    def _first(self, bucket: torch.Tensor) -> Handle:
        return self._comm.reduce_scatter(self._owned.tensor, bucket, self._unit.name)

    def _later(self, bucket: torch.Tensor) -> Handle:
        mean = bucket[self._unit.shard_range]
        launched = self._comm.reduce_scatter(mean, bucket, self._unit.name)
        return ChainedHandle(launched, partial(self._owned.tensor.add_, mean))


class ReduceScatterThroughBuffers:
    """Reduce-scatter piece by piece, through buffers of another type or of a constant size."""

    def __init__(
        self,
        whole: ReadableGrads,
        presence: Presence,
        owned: GradShard,
        comm: Comm,
        name: str,
        *,
        divisor: int,
        pieces: Sequence[Cut],
        pool: BucketPool,
    ) -> None:
        """Set up the reduction; each of ``pieces`` is a range within every shard."""
        self._whole = whole
        self._presence = presence
        self._owned = owned
        self._comm = comm
        self._name = name
        self._divisor = divisor
        self._pieces = pieces
        self._pool = pool

    def start(self, this_pass: ReductionPass) -> Handle:
        """See :class:`Reduction`."""
        handles = [self._piece(cut, this_pass) for cut in self._pieces]
        self._whole.close()
        return HandleGroup(handles)

    def _piece(self, cut: Cut, this_pass: ReductionPass) -> Handle:
        buffer = self._pool.take(cut.elements * self._comm.world_size)
        self._whole.read(cut, buffer)
        self._presence.average(buffer, self._divisor, cut)
        mean = buffer[self._comm.rank * cut.elements : (self._comm.rank + 1) * cut.elements]
        launched = self._comm.reduce_scatter(mean, buffer, self._name)
        handle = ChainedHandle(launched, partial(self._account, mean, self._owned.tensor, cut, this_pass))
        self._pool.lend(buffer, handle)
        return handle

    def _account(self, mean: torch.Tensor, owned: torch.Tensor, cut: Cut, this_pass: ReductionPass) -> None:
        if this_pass.first:
            owned[cut.slice].copy_(mean)
            self._presence.keep_signs(owned, mean, cut, shard=self._comm.rank)
        else:
            owned[cut.slice].add_(mean)


class AccumulatedReduction:
    """Reduce in stage 1 with one pass per micro-batch.

    After a reduce-scatter, this rank's part of the flat gradient is a mean, and the rest must not be summed
    again.  So the mean is kept in a separate sum (1/N of the gradients in extra memory), and the next
    backward adds to zeros.
    """

    def __init__(self, each: Reduction, whole: FlatGrads, owned: GradShard) -> None:
        """Set up the reduction; ``each`` leaves one micro-batch's share of the mean in ``owned``."""
        self._each = each
        self._whole = whole
        self._owned = owned
        self._sum = torch.zeros_like(owned.tensor)

    def start(self, this_pass: ReductionPass) -> Handle:
        """See :class:`Reduction`."""
        return ChainedHandle(self._each.start(ReductionPass()), partial(self._account, this_pass))

    def _account(self, this_pass: ReductionPass) -> None:
        if this_pass.first:
            self._sum.copy_(self._owned.tensor)
        else:
            self._sum.add_(self._owned.tensor)
        if this_pass.last:
            self._owned.tensor.copy_(self._sum)
        else:
            self._whole.flat.zero_()


class AllReduceInPlace:
    """All-reduce the flat gradient itself, in one piece or in several."""

    def __init__(
        self,
        whole: FlatGrads,
        presence: Presence,
        comm: Comm,
        name: str,
        *,
        micro_batches: int,
        pieces: Sequence[Cut],
    ) -> None:
        """Set up the reduction; ``pieces`` are ranges of the whole flat tensor."""
        self._whole = whole
        self._presence = presence
        self._comm = comm
        self._name = name
        self._micro_batches = micro_batches
        self._pieces = pieces

    def start(self, this_pass: ReductionPass) -> Handle:
        """See :class:`Reduction`."""
        flat = self._whole.flat
        divisor = _compute_divisor(self._comm, self._micro_batches, this_pass)
        self._presence.average(flat, divisor, first_sum=this_pass.first)
        return HandleGroup([self._comm.all_reduce(flat[cut.slice], self._name) for cut in self._pieces])


class AllReduceThroughBuffers:
    """All-reduce through buffers of another type or of a constant size, and copy back."""

    def __init__(
        self,
        whole: FlatGrads,
        presence: Presence,
        comm: Comm,
        name: str,
        *,
        micro_batches: int,
        pieces: Sequence[Cut],
        pool: BucketPool,
    ) -> None:
        """Set up the reduction; each of ``pieces`` is a range within every shard."""
        self._whole = whole
        self._presence = presence
        self._comm = comm
        self._name = name
        self._micro_batches = micro_batches
        self._pieces = pieces
        self._pool = pool

    def start(self, this_pass: ReductionPass) -> Handle:
        """See :class:`Reduction`."""
        return HandleGroup([self._piece(cut, this_pass) for cut in self._pieces])

    def _piece(self, cut: Cut, this_pass: ReductionPass) -> Handle:
        buffer = self._pool.take(cut.elements * self._comm.world_size)
        self._whole.read(cut, buffer)
        divisor = _compute_divisor(self._comm, self._micro_batches, this_pass)
        self._presence.average(buffer, divisor, cut, first_sum=this_pass.first)
        launched = self._comm.all_reduce(buffer, self._name)
        handle = ChainedHandle(launched, partial(self._write_back, cut, buffer))
        self._pool.lend(buffer, handle)
        return handle

    def _write_back(self, cut: Cut, buffer: torch.Tensor) -> None:
        part = self._whole.part(cut)
        part.copy_(buffer.view(part.shape))
        self._presence.keep_signs(self._whole.flat, buffer, cut, shard=None)


def _compute_divisor(comm: Comm, micro_batches: int, this_pass: ReductionPass) -> int:
    return comm.world_size * (micro_batches if this_pass.last else 1)


class PersistentGradShard:
    """A gradient shard with persistent memory, zeroed at the end of a step."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def zero(self) -> None:
        """See :class:`GradShard`."""
        self.tensor.zero_()


class TransientGradShard:
    """A gradient shard with memory from a step's first reduction until ``zero_grad()``, as in torch.

    A step's peak is often at the start of its backward, when there are no gradients yet.
    """

    def __init__(self, unit: FlatUnit, dtype: torch.dtype) -> None:
        self._holder = select_grad_holder(unit, dtype)
        self._dtype = dtype
        self._tensor: torch.Tensor | None = None

    @property
    def tensor(self) -> torch.Tensor:
        """See :class:`GradShard`."""
        if self._tensor is None:
            self._tensor = torch.empty_like(self._holder.detach(), dtype=self._dtype)
            self._holder.grad = self._tensor
        return self._tensor

    def zero(self) -> None:
        """See :class:`GradShard`."""
        self._tensor = self._holder.grad = None


def make_persistent_shard(unit: FlatUnit, dtype: torch.dtype) -> PersistentGradShard:
    """Return a gradient shard with persistent memory."""
    holder = select_grad_holder(unit, dtype)
    holder.grad = torch.zeros_like(holder.detach(), dtype=dtype)
    return PersistentGradShard(holder.grad)


def select_grad_holder(unit: FlatUnit, dtype: torch.dtype) -> nn.Parameter:
    """Return the parameter that holds the shard in ``.grad``: the one of the same dtype.

    That is the unit's shard, or else its fp32 master weights.
    """
    if dtype == unit.shard.dtype:
        return unit.shard
    assert unit.weights is not None  # only trainable units have gradients
    return unit.weights


class ChainedHandle:
    """Run a callback on a collective's result, once, in the first ``wait()``."""

    def __init__(self, handle: Handle, then: Callable[[], object]) -> None:
        self._handle = handle
        self._then: Callable[[], object] | None = then

    def wait(self) -> None:
        """See :class:`~zprof.reference_engine.comm.collective.Handle`."""
        if self._then is not None:
            self._handle.wait()
            then, self._then = self._then, None
            then()


class HandleGroup:
    """Wait for several collectives in launch order; an empty group is complete at once."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._handles = tuple(handles)

    def wait(self) -> None:
        """See :class:`~zprof.reference_engine.comm.collective.Handle`."""
        handles, self._handles = self._handles, ()
        for handle in handles:
            handle.wait()
