"""Reconstruct block lifetimes (match frees to allocations) and block sizes within segments.

A block that is freed in the trace but not allocated in it existed before the history started; so did a block
in use at the end that is not allocated in the trace. Lifetimes are therefore exact from the first entry on,
even if a ring buffer of limited length has lost earlier entries.

The allocator (``CUDACachingAllocator.cpp``) rounds a request up to 512 bytes, takes the front of a free
block, and splits off the remainder if it is large enough: 512 bytes in the small pool (up to 1 MiB) and in
expandable segments, more than 1 MiB in the large pool. Free neighbors are always merged, so the free block at
an address extends to the next block in use, or to the end of the segment:

    block = rounded             if free - rounded > 1 MiB
          = free                else (large pool; the remainder stays part of the block)

This is exact except for large blocks allocated before the history with more than 1 MiB free after them: their
size is a lower bound.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from zprof.collectors.snapshot.columns import Integers
from zprof.collectors.snapshot.segments import NO_ENTRY, FinalBlocks, SegmentSpan
from zprof.collectors.snapshot.trace import DeviceTrace, TraceAction

#: No event: the block is still in use, or existed before the first entry.
NO_EVENT = -1
#: The free was requested before the first entry.
BEFORE_TRACE = -2


@dataclass(slots=True, kw_only=True)
class BlockLifetimes:
    """One row per block lifetime; values are indices of trace entries.

    ``entry``: the allocation, or, if that is not in the trace (``before``), the first event of the block;
    ``NO_EVENT`` if only the segments list it; then ``final_block`` is its index in the segments.
    ``requested``: free_requested. ``completed``: free_completed.
    """

    entry: list[int] = field(default_factory=list)
    before: list[bool] = field(default_factory=list)
    requested: list[int] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    final_block: list[int] = field(default_factory=list)
    #: Allocations at an address whose previous lifetime does not end in the trace.
    overlaps: int = 0
    #: Blocks in use according to the trace that are missing in the segments, or have another size there.
    missing_in_segments: int = 0
    resized: int = 0
    #: True if the trace lacks this kind of entry.
    has_no_requests: bool = False
    has_no_completions: bool = False

    def add(self, entry: int, *, before: bool, requested: int = NO_EVENT, completed: int = NO_EVENT) -> int:
        """Add a lifetime and return its row."""
        self.entry.append(entry)
        self.before.append(before)
        self.requested.append(requested)
        self.completed.append(completed)
        self.final_block.append(NO_EVENT)
        return len(self.entry) - 1

    def to_arrays(self) -> tuple[Integers, Integers, Integers, Integers]:
        """Return ``entry``, ``requested``, ``completed`` and ``final_block`` as arrays."""
        columns = (self.entry, self.requested, self.completed, self.final_block)
        first, second, third, fourth = (np.array(each, dtype=np.int64) for each in columns)
        return first, second, third, fourth


class BlockReplay:
    """Replay the entries of one device; ``open_rows`` has the row of each block in use, by address."""

    def __init__(self, trace: DeviceTrace) -> None:
        self.lifetimes = BlockLifetimes()
        self.open_rows: dict[int, int] = {}
        self._trace = trace
        self._has_no_completions = not trace.has_action(TraceAction.FREE_COMPLETED)

    def run(self) -> None:
        """Replay all entries, in order."""
        handlers = {
            TraceAction.ALLOC: self._on_alloc,
            TraceAction.FREE_REQUESTED: self._on_free_requested,
            TraceAction.FREE_COMPLETED: self._on_free_completed,
        }
        entries = np.flatnonzero(np.isin(self._trace.action, list(handlers)))
        actions = self._trace.action[entries].tolist()
        addresses = self._trace.address[entries].tolist()
        for index, action, address in zip(entries.tolist(), actions, addresses, strict=True):
            handlers[action](index, address)

    def _on_alloc(self, index: int, address: int) -> None:
        row = self.open_rows.get(address)
        if row is not None:
            self._end_overlapped(row, index)
        self.open_rows[address] = self.lifetimes.add(index, before=False)

    def _end_overlapped(self, row: int, index: int) -> None:
        """End the last lifetime at an address that is allocated again."""
        if self.lifetimes.requested[row] == NO_EVENT:
            self.lifetimes.requested[row] = index
        elif self._has_no_completions:
            return
        self.lifetimes.overlaps += 1
        self.lifetimes.completed[row] = index

    def _on_free_requested(self, index: int, address: int) -> None:
        row = self.open_rows.get(address)
        if row is None:
            self.open_rows[address] = self.lifetimes.add(index, before=True, requested=index)
        elif self.lifetimes.requested[row] == NO_EVENT:
            self.lifetimes.requested[row] = index

    def _on_free_completed(self, index: int, address: int) -> None:
        row = self.open_rows.pop(address, None)
        if row is None:
            row = self.lifetimes.add(index, before=True)
        self.lifetimes.completed[row] = index


def join_final_blocks(replay: BlockReplay, trace: DeviceTrace, blocks: FinalBlocks) -> None:
    """Join the blocks in use at the end to the open lifetimes; others were allocated before the trace."""
    lifetimes = replay.lifetimes
    rest = dict(replay.open_rows)
    columns = zip(blocks.address.tolist(), blocks.requested.tolist(), blocks.awaiting.tolist(), strict=True)
    for number, (address, requested, awaiting) in enumerate(columns):
        row = rest.pop(address, None)
        if row is None:
            row = lifetimes.add(NO_EVENT, before=True, requested=BEFORE_TRACE if awaiting else NO_EVENT)
        elif int(trace.size[lifetimes.entry[row]]) != requested:
            lifetimes.resized += 1
        lifetimes.final_block[row] = number


def close_open_lifetimes(lifetimes: BlockLifetimes, trace: DeviceTrace) -> None:
    """End the lifetimes that stay open because one kind of entry was not recorded.

    A completed free implies a requested free. If that entry is missing for a block allocated in the trace,
    the trace has no free_requested entries, and both events are assumed to be simultaneous; otherwise the
    block was freed before the history. The reverse applies to a trace without free_completed entries, except
    for blocks that the segments list as awaiting their free.
    """
    _, requested, completed, final_block = lifetimes.to_arrays()
    before = np.array(lifetimes.before, dtype=np.bool_)
    missing_request = (completed >= 0) & (requested == NO_EVENT)
    lifetimes.has_no_requests = bool((missing_request & ~before).any())
    requested[missing_request] = completed[missing_request] if lifetimes.has_no_requests else BEFORE_TRACE
    if not trace.has_action(TraceAction.FREE_COMPLETED):
        missing_completion = (requested >= 0) & (completed == NO_EVENT) & (final_block == NO_EVENT)
        lifetimes.has_no_completions = bool(missing_completion.any())
        completed[missing_completion] = requested[missing_completion]
    lifetimes.missing_in_segments = int(((completed == NO_EVENT) & (final_block == NO_EVENT)).sum())
    lifetimes.requested, lifetimes.completed = requested.tolist(), completed.tolist()


UNIT_BYTES = 512
SMALL_BYTES = 1 << 20
#: Kinds of events, in their order at one entry. Blocks from before the first entry are measured once all of
#: them are in place (_OCCUPY, _MEASURE), a new block when it is allocated.
_UNMAP, _RELEASE, _MAP, _OCCUPY, _MEASURE, _ALLOCATE = range(6)


def round_requests(requested: Integers) -> Integers:
    """Round requests up to the minimum block size of the allocator."""
    return np.maximum((requested + UNIT_BYTES - 1) // UNIT_BYTES * UNIT_BYTES, UNIT_BYTES)


def measure_blocks(
    address: Integers,
    requested: Integers,
    allocated: Integers,
    released: Integers,
    segment_spans: Sequence[SegmentSpan],
) -> Integers:
    """Return the size of each block.

    ``allocated`` and ``released`` are entries; ``NO_ENTRY`` means before the first entry, or not yet
    released.
    """
    sizes = round_requests(requested)
    large = sizes > SMALL_BYTES
    events = _order_events(np.flatnonzero(large), allocated, released, segment_spans)
    space = _AddressSpace(address, segment_spans)
    for kind, index in events:
        if kind != _MEASURE:
            space.apply(kind, index)
        if kind >= _MEASURE:
            remainder = space.get_free_bytes_after(index) - int(sizes[index])
            if 0 < remainder <= SMALL_BYTES:
                sizes[index] += remainder
    return sizes


def _order_events(
    large: Integers, allocated: Integers, released: Integers, segment_spans: Sequence[SegmentSpan]
) -> list[tuple[int, int]]:
    """Return the events as (kind, block or segment span), in the order of the entries."""
    fixed_segments = [number for number, span in enumerate(segment_spans) if not span.expandable]
    begin = np.array([segment_spans[number].begin for number in fixed_segments], dtype=np.int64)
    end = np.array([segment_spans[number].end for number in fixed_segments], dtype=np.int64)
    is_unmapped, is_freed = end != NO_ENTRY, released[large] >= 0
    preexisting, newly_allocated = large[allocated[large] == NO_ENTRY], large[allocated[large] != NO_ENTRY]
    parts = [
        (_MAP, np.array(fixed_segments, dtype=np.int64), begin),
        (_UNMAP, np.array(fixed_segments, dtype=np.int64)[is_unmapped], end[is_unmapped]),
        (_OCCUPY, preexisting, allocated[preexisting]),
        (_MEASURE, preexisting, allocated[preexisting]),
        (_ALLOCATE, newly_allocated, allocated[newly_allocated]),
        (_RELEASE, large[is_freed], released[large][is_freed]),
    ]
    kinds = np.concatenate([np.full(len(index), kind, dtype=np.int64) for kind, index, _ in parts])
    index = np.concatenate([each for _, each, _ in parts])
    entry = np.concatenate([each for _, _, each in parts])
    order = np.lexsort((kinds, entry))
    return list(zip(kinds[order].tolist(), index[order].tolist(), strict=True))


class _AddressSpace:
    """Track the large blocks in use and the mapped segments at one point in the replay."""

    def __init__(self, address: Integers, segment_spans: Sequence[SegmentSpan]) -> None:
        self._address: list[int] = address.tolist()
        self._stretches = segment_spans
        self._used: list[int] = []
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}

    def apply(self, kind: int, index: int) -> None:
        """Apply an event."""
        if kind in (_ALLOCATE, _OCCUPY):
            insort(self._used, self._address[index])
        elif kind == _RELEASE:
            _remove_sorted(self._used, self._address[index])
        elif kind == _MAP:
            span = self._stretches[index]
            insort(self._starts, span.address)
            self._ends[span.address] = span.address + span.size
        else:
            _remove_sorted(self._starts, self._stretches[index].address)

    def get_free_bytes_after(self, index: int) -> int:
        """Return the bytes from a block to the next one in use or its segment's end; <= 0 if unknown."""
        address = self._address[index]
        at = bisect_right(self._starts, address) - 1
        end = self._ends[self._starts[at]] if at >= 0 else 0
        next_index = bisect_right(self._used, address)
        if next_index < len(self._used):
            end = min(end, self._used[next_index])
        return end - address


def _remove_sorted(values: list[int], value: int) -> None:
    at = bisect_right(values, value) - 1
    if at >= 0 and values[at] == value:
        del values[at]
