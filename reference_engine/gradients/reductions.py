"""Average gradients over the ranks, by all-reduce or reduce-scatter.

Stage 0 all-reduces (2 psi per pass).  Stages 1 to 3 reduce-scatter into this rank's shard (psi per pass).

If stage 0 reduces after each micro-batch, the flat gradient is the running mean, equal on all ranks, plus the
gradients of the next micro-batch.  Summing it over N ranks and dividing by N gives the next running mean; the
last pass also divides by the number of micro-batches.
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
from zprof.reference_engine.gradients.storage import BucketPool, ElementRange, FlatGrads


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionPass:
    """Position of a reduction within its step: the only one (first and last), or one per micro-batch."""

    first: bool = True
    last: bool = True


class UnreducedGrads(Protocol):
    """Storage of a unit's full gradients between autograd and their reduction."""

    def collect(self, index: int) -> None:
        """Store the gradient of parameter ``index``, which autograd has written to ``.grad``."""

    def complete(self, missing: Iterable[int]) -> None:
        """Finish the pass; a parameter in ``missing`` without any gradient counts as zero."""

    def zero(self) -> None:
        """Zero or drop all gradients."""


class ReadableGrads(UnreducedGrads, Protocol):
    """Full gradients that are read piece by piece."""

    def read(self, piece: ElementRange, buffer: torch.Tensor) -> None:
        """Copy elements ``piece`` of every shard into ``buffer``, one shard after the other."""

    def close(self) -> None:
        """Free memory that is not needed after the last read."""


class BucketedGrads(UnreducedGrads, Protocol):
    """Full gradients that are moved to a bucket with the layout of the unit."""

    def take_bucket(self) -> torch.Tensor:
        """Return the bucket; the caller reduces it and returns it to the pool."""


class GradShard(Protocol):
    """This rank's shard of the mean gradient, which its optimizer reads."""

    @property
    def tensor(self) -> torch.Tensor:
        """The shard's memory; uninitialized until a reduction has written to it."""

    def zero(self) -> None:
        """Zero the shard at the end of a step."""


class Reduction(Protocol):
    """Averages a unit's full gradients over the ranks into what this rank keeps."""

    def start(self, reduction_pass: ReductionPass) -> Handle:
        """Launch the collectives; the mean is complete after ``wait()`` on the returned handle."""


class ReduceScatterInPlace:
    """Reduce-scatters the persistent flat gradient itself, once per step."""

    def __init__(
        self,
        full_grads: FlatGrads,
        presence: Presence,
        grad_shard: GradShard,
        comm: Comm,
        name: str,
        *,
        divisor: int,
    ) -> None:
        """Set up the reduction; ``grad_shard`` may be this rank's slice of the flat gradient."""
        self._full_grads = full_grads
        self._presence = presence
        self._grad_shard = grad_shard
        self._comm = comm
        self._name = name
        self._divisor = divisor

    def start(self, reduction_pass: ReductionPass) -> Handle:
        """See :class:`Reduction`."""
        flat = self._full_grads.flat
        self._presence.average(flat, self._divisor)
        return self._comm.reduce_scatter(self._grad_shard.tensor, flat, self._name)


class ReduceScatterBucket:
    """Reduce-scatters a bucket with all gradients of a unit."""

    def __init__(
        self,
        full_grads: BucketedGrads,
        presence: Presence,
        grad_shard: GradShard,
        comm: Comm,
        unit: FlatUnit,
        *,
        divisor: int,
        pool: BucketPool,
    ) -> None:
        self._full_grads = full_grads
        self._presence = presence
        self._grad_shard = grad_shard
        self._comm = comm
        self._unit = unit
        self._divisor = divisor
        self._pool = pool

    def start(self, reduction_pass: ReductionPass) -> Handle:
        """See :class:`Reduction`."""
        bucket = self._full_grads.take_bucket()
        self._presence.average(bucket, self._divisor)
        handle = self._reduce_into_shard(bucket) if reduction_pass.first else self._add_to_shard(bucket)
        self._pool.lend(bucket, handle)
        return handle

    def _reduce_into_shard(self, bucket: torch.Tensor) -> Handle:
        return self._comm.reduce_scatter(self._grad_shard.tensor, bucket, self._unit.name)

    def _add_to_shard(self, bucket: torch.Tensor) -> Handle:
        mean = bucket[self._unit.shard_range]
        collective = self._comm.reduce_scatter(mean, bucket, self._unit.name)
        return ChainedHandle(collective, partial(self._grad_shard.tensor.add_, mean))


class ReduceScatterThroughBuffers:
    """Reduce-scatters piece by piece, through buffers of another dtype or of constant size."""

    def __init__(
        self,
        full_grads: ReadableGrads,
        presence: Presence,
        grad_shard: GradShard,
        comm: Comm,
        name: str,
        *,
        divisor: int,
        pieces: Sequence[ElementRange],
        pool: BucketPool,
    ) -> None:
        """Set up the reduction; each of ``pieces`` is a range within every shard."""
        self._full_grads = full_grads
        self._presence = presence
        self._grad_shard = grad_shard
        self._comm = comm
        self._name = name
        self._divisor = divisor
        self._pieces = pieces
        self._pool = pool

    def start(self, reduction_pass: ReductionPass) -> Handle:
        """See :class:`Reduction`."""
        handles = [self._reduce_piece(piece, reduction_pass) for piece in self._pieces]
        self._full_grads.close()
        return HandleGroup(handles)

    def _reduce_piece(self, piece: ElementRange, reduction_pass: ReductionPass) -> Handle:
        buffer = self._pool.acquire(piece.elements * self._comm.world_size)
        self._full_grads.read(piece, buffer)
        self._presence.average(buffer, self._divisor, piece)
        mean = buffer[self._comm.rank * piece.elements : (self._comm.rank + 1) * piece.elements]
        collective = self._comm.reduce_scatter(mean, buffer, self._name)
        handle = ChainedHandle(
            collective, partial(self._accumulate, mean, self._grad_shard.tensor, piece, reduction_pass)
        )
        self._pool.lend(buffer, handle)
        return handle

    def _accumulate(
        self, mean: torch.Tensor, grad_shard: torch.Tensor, piece: ElementRange, reduction_pass: ReductionPass
    ) -> None:
        if reduction_pass.first:
            grad_shard[piece.slice].copy_(mean)
            self._presence.restore_signs(grad_shard, mean, piece, shard=self._comm.rank)
        else:
            grad_shard[piece.slice].add_(mean)


class AccumulatedReduction:
    """Reduces in stage 1 after each micro-batch.

    After a reduce-scatter, only this rank's shard of the flat gradient is reduced, and the rest must not be
    summed again.  So the shards are accumulated separately (1/N of the gradients in extra memory), and the
    flat gradient is zeroed before the next backward.
    """

    def __init__(self, reduction: Reduction, full_grads: FlatGrads, grad_shard: GradShard) -> None:
        """Set up the reduction; ``reduction`` writes one micro-batch's part of the mean to ``grad_shard``."""
        self._reduction = reduction
        self._full_grads = full_grads
        self._grad_shard = grad_shard
        self._sum = torch.zeros_like(grad_shard.tensor)

    def start(self, reduction_pass: ReductionPass) -> Handle:
        """See :class:`Reduction`."""
        return ChainedHandle(
            self._reduction.start(ReductionPass()), partial(self._accumulate, reduction_pass)
        )

    def _accumulate(self, reduction_pass: ReductionPass) -> None:
        if reduction_pass.first:
            self._sum.copy_(self._grad_shard.tensor)
        else:
            self._sum.add_(self._grad_shard.tensor)
        if reduction_pass.last:
            self._grad_shard.tensor.copy_(self._sum)
        else:
            self._full_grads.flat.zero_()


class AllReduceInPlace:
    """All-reduces the flat gradient itself, in one or more pieces."""

    def __init__(
        self,
        full_grads: FlatGrads,
        presence: Presence,
        comm: Comm,
        name: str,
        *,
        micro_batches: int,
        pieces: Sequence[ElementRange],
    ) -> None:
        """Set up the reduction; ``pieces`` are ranges of the flat tensor."""
        self._full_grads = full_grads
        self._presence = presence
        self._comm = comm
        self._name = name
        self._micro_batches = micro_batches
        self._pieces = pieces

    def start(self, reduction_pass: ReductionPass) -> Handle:
        """See :class:`Reduction`."""
        flat = self._full_grads.flat
        divisor = _compute_divisor(self._comm, self._micro_batches, reduction_pass)
        self._presence.average(flat, divisor, first_sum=reduction_pass.first)
        return HandleGroup([self._comm.all_reduce(flat[piece.slice], self._name) for piece in self._pieces])


class AllReduceThroughBuffers:
    """All-reduces through buffers of another dtype or of constant size, and copies back."""

    def __init__(
        self,
        full_grads: FlatGrads,
        presence: Presence,
        comm: Comm,
        name: str,
        *,
        micro_batches: int,
        pieces: Sequence[ElementRange],
        pool: BucketPool,
    ) -> None:
        """Set up the reduction; each of ``pieces`` is a range within every shard."""
        self._full_grads = full_grads
        self._presence = presence
        self._comm = comm
        self._name = name
        self._micro_batches = micro_batches
        self._pieces = pieces
        self._pool = pool

    def start(self, reduction_pass: ReductionPass) -> Handle:
        """See :class:`Reduction`."""
        return HandleGroup([self._reduce_piece(piece, reduction_pass) for piece in self._pieces])

    def _reduce_piece(self, piece: ElementRange, reduction_pass: ReductionPass) -> Handle:
        buffer = self._pool.acquire(piece.elements * self._comm.world_size)
        self._full_grads.read(piece, buffer)
        divisor = _compute_divisor(self._comm, self._micro_batches, reduction_pass)
        self._presence.average(buffer, divisor, piece, first_sum=reduction_pass.first)
        collective = self._comm.all_reduce(buffer, self._name)
        handle = ChainedHandle(collective, partial(self._write_back, piece, buffer))
        self._pool.lend(buffer, handle)
        return handle

    def _write_back(self, piece: ElementRange, buffer: torch.Tensor) -> None:
        part = self._full_grads.part(piece)
        part.copy_(buffer.view(part.shape))
        self._presence.restore_signs(self._full_grads.flat, buffer, piece, shard=None)


def _compute_divisor(comm: Comm, micro_batches: int, reduction_pass: ReductionPass) -> int:
    return comm.world_size * (micro_batches if reduction_pass.last else 1)


class PersistentGradShard:
    """A gradient shard with persistent memory, zeroed between steps."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def zero(self) -> None:
        """See :class:`GradShard`."""
        self.tensor.zero_()


class TransientGradShard:
    """A gradient shard, allocated by a step's first reduction and freed by ``zero_grad()``, as in torch.

    The memory peak of a step is often at the start of its backward, when no gradients exist yet.
    """

    def __init__(self, unit: FlatUnit, dtype: torch.dtype) -> None:
        self._grad_holder = select_grad_holder(unit, dtype)
        self._dtype = dtype
        self._tensor: torch.Tensor | None = None

    @property
    def tensor(self) -> torch.Tensor:
        """See :class:`GradShard`."""
        if self._tensor is None:
            self._tensor = torch.empty_like(self._grad_holder.detach(), dtype=self._dtype)
            self._grad_holder.grad = self._tensor
        return self._tensor

    def zero(self) -> None:
        """See :class:`GradShard`."""
        self._tensor = self._grad_holder.grad = None


def make_persistent_shard(unit: FlatUnit, dtype: torch.dtype) -> PersistentGradShard:
    """Allocate a gradient shard with persistent memory."""
    holder = select_grad_holder(unit, dtype)
    holder.grad = torch.zeros_like(holder.detach(), dtype=dtype)
    return PersistentGradShard(holder.grad)


def select_grad_holder(unit: FlatUnit, dtype: torch.dtype) -> nn.Parameter:
    """Return the parameter whose ``.grad`` is the gradient shard: torch requires the same dtype.

    That is the parameter shard, or else the fp32 master weights.
    """
    if dtype == unit.shard.dtype:
        return unit.shard
    assert unit.weights is not None  # only trainable units have gradients
    return unit.weights


class ChainedHandle:
    """Runs a callback once, in the first ``wait()``, after the collective is complete."""

    def __init__(self, handle: Handle, on_complete: Callable[[], object]) -> None:
        self._handle = handle
        self._on_complete: Callable[[], object] | None = on_complete

    def wait(self) -> None:
        """See :class:`~zprof.reference_engine.comm.collective.Handle`."""
        if self._on_complete is not None:
            self._handle.wait()
            on_complete, self._on_complete = self._on_complete, None
            on_complete()


class HandleGroup:
    """Waits for several collectives in launch order; an empty group is complete immediately."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._handles = tuple(handles)

    def wait(self) -> None:
        """See :class:`~zprof.reference_engine.comm.collective.Handle`."""
        handles, self._handles = self._handles, ()
        for handle in handles:
            handle.wait()
