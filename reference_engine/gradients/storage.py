"""Store a unit's unreduced gradients: in place, per parameter, or in a bounded pool of buckets.

With constant-size buffers (CB, arXiv 1910.02054, section 6.2) a flat gradient is reduced in pieces.  A piece
is the same range of elements in every shard, so that one reduce-scatter gives each rank that range of its own
shard:

    |   shard 0   |   shard 1   |  ...         buffer: ranks x (last - first) elements
        |piece|       |piece|                  piece: [first, last) of each shard
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from zprof.reference_engine.comm.collective import Handle
from zprof.reference_engine.flat_unit import FlatUnit, Layout


class BucketMemory(Protocol):
    """Allocates buckets."""

    def acquire(self, elements: int) -> torch.Tensor | None:
        """Return an uninitialized bucket of that size, or None if one must be returned first."""

    def allocate(self, elements: int) -> torch.Tensor:
        """Allocate a new bucket regardless of how many exist."""

    def give_back(self, bucket: torch.Tensor) -> None:
        """Make a bucket available again."""

    def reset(self) -> None:
        """Mark all buckets as free."""


class TransientBucketMemory:
    """Buckets that are freed after each backward pass."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._free: list[torch.Tensor] = []

    def acquire(self, elements: int) -> torch.Tensor | None:
        """See :class:`BucketMemory`."""
        for index, bucket in enumerate(self._free):
            if bucket.numel() == elements:
                return self._free.pop(index)
        self._free.clear()  # otherwise the pool would end up with a bucket of every unit's size
        return self.allocate(elements)

    def allocate(self, elements: int) -> torch.Tensor:
        """See :class:`BucketMemory`."""
        return torch.empty(elements, dtype=self._dtype, device=self._device)

    def give_back(self, bucket: torch.Tensor) -> None:
        """See :class:`BucketMemory`."""
        self._free.append(bucket)

    def reset(self) -> None:
        """Free all memory."""
        self._free.clear()


class PersistentBucketMemory:
    """Chunks that are allocated once; a bucket is the first part of a chunk."""

    def __init__(self, sizes: Iterable[int], dtype: torch.dtype, device: torch.device) -> None:
        """Allocate chunks of these sizes, in elements."""
        self._chunks = [torch.empty(size, dtype=dtype, device=device) for size in sizes]
        self._free = list(self._chunks)
        self._dtype = dtype
        self._device = device

    def acquire(self, elements: int) -> torch.Tensor | None:
        """Return the first part of the smallest free chunk that is large enough, or None."""
        candidates = [chunk for chunk in self._free if chunk.numel() >= elements]
        if not candidates:
            return None
        smallest = min(candidates, key=torch.Tensor.numel)
        self._free = [chunk for chunk in self._free if chunk is not smallest]
        return smallest[:elements]

    def allocate(self, elements: int) -> torch.Tensor:
        """Add a chunk, for a backward with more units in flight than :func:`compute_chunk_sizes` expects."""
        chunk = torch.empty(elements, dtype=self._dtype, device=self._device)
        self._chunks.append(chunk)
        return chunk[:]

    def give_back(self, bucket: torch.Tensor) -> None:
        """See :class:`BucketMemory`."""
        self._free += [chunk for chunk in self._chunks if chunk.data_ptr() == bucket.data_ptr()]

    def reset(self) -> None:
        """Mark all chunks as free."""
        self._free = list(self._chunks)


class BucketPool:
    """Buckets that are filled with gradients, reduced, and reused; at most ``limit`` are in flight."""

    def __init__(self, memory: BucketMemory, limit: int) -> None:
        """Allow ``limit`` buckets in flight."""
        self._memory = memory
        self._limit = limit
        self._in_flight: deque[tuple[torch.Tensor, Handle]] = deque()

    def acquire(self, elements: int) -> torch.Tensor:
        """Return an uninitialized bucket of that size; may wait for the oldest reduction."""
        while len(self._in_flight) >= self._limit:
            self._wait_oldest()
        bucket = self._memory.acquire(elements)
        while bucket is None and self._in_flight:
            self._wait_oldest()
            bucket = self._memory.acquire(elements)
        return self._memory.allocate(elements) if bucket is None else bucket

    def lend(self, bucket: torch.Tensor, handle: Handle) -> None:
        """Reserve the bucket until the reduction behind ``handle`` is complete."""
        self._in_flight.append((bucket, handle))

    def give_back(self, bucket: torch.Tensor) -> None:
        """Make a bucket available again that no reduction uses."""
        self._memory.give_back(bucket)

    def drain(self) -> None:
        """Wait for all reductions and free all buckets."""
        while self._in_flight:
            self._wait_oldest()
        self._memory.reset()

    def _wait_oldest(self) -> None:
        bucket, handle = self._in_flight.popleft()
        handle.wait()
        self._memory.give_back(bucket)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementRange:
    """Elements [first, last)."""

    first: int
    last: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.last - self.first

    @property
    def slice(self) -> slice:
        """The range as a Python slice."""
        return slice(self.first, self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementRun:
    """Elements that are contiguous both in a piece's buffer and in one parameter (None for padding)."""

    buffer: ElementRange
    parameter: int | None
    elements: ElementRange


def round_buffer_elements(limit: int, *, ranks: int, alignment: int) -> int:
    """Round ``limit`` down to a multiple of ranks x alignment.

    Raises:
        ValueError: ``limit`` is smaller than ranks x alignment.
    """
    block = ranks * alignment
    if limit < block:
        raise ValueError(f"constant_buffers is {limit} elements; make it {block} (ranks x alignment) or more")
    return limit // block * block


def split_into_ranges(elements: int, max_elements: int) -> tuple[ElementRange, ...]:
    """Split [0, elements) into consecutive ranges of at most ``max_elements`` elements."""
    return tuple(
        ElementRange(first=first, last=min(first + max_elements, elements))
        for first in range(0, elements, max_elements)
    )


def find_runs(layout: Layout, piece: ElementRange) -> tuple[ElementRun, ...]:
    """Find the runs that fill a buffer with elements ``piece`` of every shard, in order and without gaps."""
    runs: list[ElementRun] = []
    for rank in range(layout.ranks):
        start = layout.shard(rank).start + piece.first
        for parameter, first, last in _iter_overlaps(layout, start, start + piece.elements):
            position = rank * piece.elements + first - start
            offset = first if parameter is None else layout.slots[parameter].offset
            runs.append(
                ElementRun(
                    buffer=ElementRange(first=position, last=position + last - first),
                    parameter=parameter,
                    elements=ElementRange(first=first - offset, last=last - offset),
                )
            )
    return tuple(runs)


def _iter_overlaps(layout: Layout, start: int, stop: int) -> Iterator[tuple[int | None, int, int]]:
    """Yield (parameter index or None for padding, first, last) for the flat elements [start, stop)."""
    first_slot = bisect_right([slot.offset + slot.numel for slot in layout.slots], start)
    for index in range(first_slot, len(layout.slots)):
        slot = layout.slots[index]
        first, last = max(slot.offset, start), min(slot.offset + slot.numel, stop)
        if slot.offset >= stop:
            break
        if first < last:
            yield index, first, last
    if stop > max(start, layout.numel):
        yield None, max(start, layout.numel), stop


class FlatGrads:
    """Keeps one flat tensor: every ``.grad`` is a view into it, and autograd accumulates in place."""

    def __init__(self, unit: FlatUnit) -> None:
        self._unit = unit
        self.flat = torch.zeros_like(unit.full)
        self._views = tuple(unit.views(self.flat))
        self._attach()

    def collect(self, index: int) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.UnreducedGrads`."""
        view, parameter = self._views[index], self._unit.parameters[index]
        if parameter.grad is not view:  # the user set it to None, so autograd allocated a new one
            assert parameter.grad is not None
            view.copy_(parameter.grad)
            parameter.grad = view

    def complete(self, missing: Iterable[int]) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.UnreducedGrads`."""
        for index in missing:
            if self._unit.parameters[index].grad is None:
                self._views[index].zero_()
            else:
                self.collect(index)  # left by an earlier micro-batch
        self._attach()

    def read(self, piece: ElementRange, buffer: torch.Tensor) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.ReadableGrads`."""
        part = self.part(piece)
        buffer.view(part.shape).copy_(part)

    def part(self, piece: ElementRange) -> torch.Tensor:
        """Return elements ``piece`` of every shard, as a (ranks, elements) view."""
        return view_by_shard(self.flat, self._unit, piece)

    def close(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.ReadableGrads`."""

    def zero(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.UnreducedGrads`."""
        self.flat.zero_()
        self._attach()

    def _attach(self) -> None:
        for parameter, view in zip(self._unit.parameters, self._views, strict=True):
            parameter.grad = view


class BucketAfterBackward:
    """Keeps each ``.grad`` as autograd allocated it until the unit's backward ends, then fills a bucket.

    The bucket is allocated last, after the unit's activations and gathered parameters have been freed.
    """

    def __init__(self, unit: FlatUnit, pool: BucketPool) -> None:
        self._unit = unit
        self._pool = pool

    def collect(self, index: int) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.UnreducedGrads`."""

    def complete(self, missing: Iterable[int]) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.UnreducedGrads`."""

    def take_bucket(self) -> torch.Tensor:
        """See :class:`~zprof.reference_engine.gradients.reductions.BucketedGrads`."""
        layout = self._unit.layout
        bucket = self._pool.acquire(layout.padded)
        bucket[layout.numel :].zero_()
        for view, parameter in zip(self._unit.views(bucket), self._unit.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
                parameter.grad = None
        return bucket

    def zero(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.UnreducedGrads`."""
        _drop_gradients(self._unit)


class BucketDuringBackward:
    """Copies each gradient into a bucket as soon as it is ready, and frees it."""

    def __init__(self, unit: FlatUnit, pool: BucketPool) -> None:
        self._unit = unit
        self._pool = pool
        self._bucket: torch.Tensor | None = None

    def collect(self, index: int) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.UnreducedGrads`."""
        parameter = self._unit.parameters[index]
        assert parameter.grad is not None
        self._view_slot(index).copy_(parameter.grad)
        parameter.grad = None

    def complete(self, missing: Iterable[int]) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.UnreducedGrads`."""
        for index in missing:
            if self._unit.parameters[index].grad is None:
                self._view_slot(index).zero_()
            else:
                self.collect(index)  # left by an earlier micro-batch

    def read(self, piece: ElementRange, buffer: torch.Tensor) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.ReadableGrads`."""
        part = view_by_shard(self._get_bucket(), self._unit, piece)
        buffer.view(part.shape).copy_(part)

    def close(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.ReadableGrads`."""
        self._pool.give_back(self.take_bucket())

    def take_bucket(self) -> torch.Tensor:
        """See :class:`~zprof.reference_engine.gradients.reductions.BucketedGrads`."""
        bucket, self._bucket = self._get_bucket(), None
        return bucket

    def zero(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.UnreducedGrads`."""
        self._bucket = None  # draining the pool frees its memory
        _drop_gradients(self._unit)

    def _view_slot(self, index: int) -> torch.Tensor:
        slot = self._unit.layout.slots[index]
        return self._get_bucket()[slot.offset : slot.offset + slot.numel].view(slot.shape)

    def _get_bucket(self) -> torch.Tensor:
        if self._bucket is None:
            self._bucket = self._pool.acquire(self._unit.layout.padded)
            self._bucket[self._unit.layout.numel :].zero_()
        return self._bucket


class PerParamGrads:
    """Keeps the ``.grad`` that autograd allocated for each parameter."""

    def __init__(self, unit: FlatUnit, pieces: Sequence[ElementRange]) -> None:
        """Precompute the runs of ``pieces``, the only ranges that will be read."""
        self._unit = unit
        self._runs = {piece: find_runs(unit.layout, piece) for piece in pieces}

    def collect(self, index: int) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.UnreducedGrads`."""

    def complete(self, missing: Iterable[int]) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.UnreducedGrads`."""

    def read(self, piece: ElementRange, buffer: torch.Tensor) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.ReadableGrads`."""
        for run in self._runs[piece]:
            target = buffer[run.buffer.slice]
            gradient = None if run.parameter is None else self._unit.parameters[run.parameter].grad
            if gradient is None:
                target.zero_()
            else:
                target.copy_(gradient.reshape(-1)[run.elements.slice])

    def close(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.ReadableGrads`."""
        _drop_gradients(self._unit)

    def zero(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.reductions.UnreducedGrads`."""
        _drop_gradients(self._unit)


def view_by_shard(flat: torch.Tensor, unit: FlatUnit, piece: ElementRange) -> torch.Tensor:
    """Return elements ``piece`` of every shard of a unit's flat tensor, as a (ranks, elements) view."""
    return flat.view(unit.layout.ranks, -1)[:, piece.slice]


def _drop_gradients(unit: FlatUnit) -> None:
    for parameter in unit.parameters:
        parameter.grad = None
