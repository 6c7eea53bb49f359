"""Build the tables ``block`` and ``segment`` of one device in a snapshot.

Lifetimes come from matching frees to allocations, by address. A block that is freed in the trace but not
allocated in it existed before the history started; so did a block in use at the end that is not allocated
in the trace. Lifetimes are therefore exact from the first entry on, even if a ring buffer of limited
length has lost earlier entries.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.collectors.read.snapshot.block_sizes import AllocatorSettings, measure_blocks
from zprof.collectors.read.snapshot.columns import (
    Flags,
    Integers,
    Row,
    StackTable,
    factorize_texts,
    nullable_integers,
    read_column,
    read_texts,
)
from zprof.collectors.read.snapshot.segments import (
    FinalBlocks,
    FinalSegments,
    SegmentSpan,
    find_segment_spans,
    read_pools,
)
from zprof.collectors.read.snapshot.trace import DeviceTrace, TraceAction

#: No event: the block is still in use, or existed before the first entry.
NO_EVENT = -1
#: The free was requested before the first entry.
BEFORE_TRACE = -2
_BLOCK_ACTIONS = (TraceAction.ALLOC, TraceAction.FREE_REQUESTED, TraceAction.FREE_COMPLETED)


class BlockLifetimes(Struct, frozen=True, kw_only=True):
    """One row per block lifetime; values are indices of trace entries.

    ``entry``: the allocation, or, if that is not in the trace (``before``), the first event of the block;
    ``NO_EVENT`` if only the segments list it; then ``final_block`` is its index in the segments.
    ``requested``: free_requested. ``completed``: free_completed.

    ``overlaps``: allocations at an address whose previous lifetime does not end in the trace.
    ``missing_in_segments``, ``resized``: blocks in use according to the trace that are missing in the
    segments, or have another size there. ``has_no_requests``, ``has_no_completions``: True if the trace lacks
    this kind of entry.
    """

    entry: Integers
    before: Flags
    requested: Integers
    completed: Integers
    final_block: Integers
    overlaps: int
    missing_in_segments: int = 0
    resized: int = 0
    has_no_requests: bool = False
    has_no_completions: bool = False


class DeviceTables(Struct, frozen=True, kw_only=True):
    """Tables of one device, the start of its history, and the data from which gaps are made."""

    name: str
    begin_ns: int
    block: dict[str, Any]
    segment: dict[str, Any]
    lifetimes: BlockLifetimes
    trace: DeviceTrace
    final_segments: FinalSegments
    inconsistent_segments: int
    size_mismatches: int


def build_device_tables(
    name: str,
    trace: DeviceTrace,
    held: FinalSegments,
    stacks: StackTable,
    fallback_ns: int,
    settings: AllocatorSettings,
) -> DeviceTables:
    """Replay the trace and join it with the segments held at the end.

    The history starts a nanosecond before its first entry, so that a block freed by that entry exists then.
    ``fallback_ns`` is the start of the history if the trace is empty.
    """
    begin_ns = int(trace.time_ns[0]) - 1 if len(trace.time_ns) else fallback_ns
    lifetimes = match_lifetimes(trace, held.blocks)
    segment_spans, inconsistent = find_segment_spans(trace, held)
    blocks = _BlockColumns(trace, held, lifetimes, begin_ns, segment_spans)
    return DeviceTables(
        name=name,
        begin_ns=begin_ns,
        block=blocks.columns(name, stacks, settings),
        segment=_build_segment_columns(name, trace, held, segment_spans, begin_ns),
        lifetimes=lifetimes,
        trace=trace,
        final_segments=held,
        inconsistent_segments=inconsistent,
        size_mismatches=blocks.size_mismatches,
    )


class _BlockColumns:
    """Build the columns of the table ``block``."""

    def __init__(
        self,
        trace: DeviceTrace,
        held: FinalSegments,
        lifetimes: BlockLifetimes,
        begin_ns: int,
        segment_spans: Sequence[SegmentSpan],
    ) -> None:
        self._trace, self._final_segments, self._begin_ns, self._segment_spans = (
            trace,
            held,
            begin_ns,
            segment_spans,
        )
        self._entry, self._requested = lifetimes.entry, lifetimes.requested
        self._completed, self._final_block = lifetimes.completed, lifetimes.final_block
        self._before: Flags = lifetimes.before
        self._allocation_rows: list[Row] = [
            trace.rows[entry] for entry in self._entry[~self._before].tolist()
        ]
        #: Blocks in use at the end whose size in the segments differs from the result of ``measure_blocks``.
        self.size_mismatches = 0

    def columns(self, name: str, stacks: StackTable, settings: AllocatorSettings) -> dict[str, Any]:
        requested = self._merge_sources(self._trace.size, self._final_segments.blocks.requested)
        is_held = self._final_block >= 0
        block = measure_blocks(
            self._address(),
            requested,
            self._allocation_entries(),
            self._completed,
            self._segment_spans,
            settings,
        )
        recorded_sizes = self._final_segments.blocks.size[self._final_block[is_held]]
        self.size_mismatches = int((block[is_held] != recorded_sizes)[~self._before[is_held]].sum())
        block[is_held] = recorded_sizes
        return {
            "device": factorize_texts([name] * len(self._entry)),
            "address": self._address(),
            "requested_bytes": requested,
            "block_bytes": block,
            "allocated_ns": np.where(self._before, self._begin_ns, self._entry_times(self._entry)),
            "freed_ns": nullable_integers(self._entry_times(self._requested)),
            "released_ns": nullable_integers(self._entry_times(self._completed)),
            "before_history": self._before,
            "stream": self._merge_sources(
                self._trace.stream, self._final_segments.stream[self._final_segments.blocks.segment]
            ),
            "pool": self._pools(),
            "stack": nullable_integers(self._stacks(stacks, name)),
            "tag": self._texts("user_metadata"),
            "compile_context": self._texts("compile_context"),
        }

    def _address(self) -> Integers:
        return self._merge_sources(self._trace.address, self._final_segments.blocks.address)

    def _merge_sources(self, traced: Integers, held: Integers) -> Integers:
        """Return one value per lifetime: from its trace entry, else from its final block."""
        if not len(held):
            return traced[self._entry]
        if not len(traced):
            return held[self._final_block]
        return np.where(self._entry == NO_EVENT, held[self._final_block], traced[self._entry])

    def _entry_times(self, entries: Integers) -> Integers:
        """Return the times of these entries, or -1."""
        if not len(self._trace.time_ns):
            return np.where(entries == BEFORE_TRACE, self._begin_ns, -1)
        times = np.where(entries >= 0, self._trace.time_ns[np.maximum(entries, 0)], -1)
        return np.where(entries == BEFORE_TRACE, self._begin_ns, times)

    def _texts(self, key: str) -> Any:
        """Return a column with a text per allocation.

        It is null for blocks from before the trace and for torch's empty values.
        """
        texts = read_texts(self._allocation_rows, key, "trace")
        return factorize_texts(texts, absent=("", "N/A"), rows=~self._before)

    def _allocation_entries(self) -> Integers:
        return np.where(self._before, NO_EVENT, self._entry)

    def _stacks(self, stacks: StackTable, name: str) -> Integers:
        """Return the stack of each block's allocation. The stack of a free is not used."""
        found = np.full(len(self._entry), -1, dtype=np.int64)
        found[~self._before] = stacks.numbers(read_column(self._allocation_rows, "frames"), name)
        missing = np.flatnonzero((found < 0) & (self._final_block >= 0))
        blocks = [
            self._final_segments.blocks.rows[index].get("frames")
            for index in self._final_block[missing].tolist()
        ]
        found[missing] = stacks.numbers(blocks, name)
        return found

    def _pools(self) -> Any:
        """Return the column of each block's pool: from its entry, else from its final segment."""
        is_traced = self._entry >= 0
        rows = [self._trace.rows[entry] for entry in self._entry[is_traced].tolist()]
        found = read_pools(rows, "pool_id", "trace")
        if is_traced.all() and None not in found:
            return factorize_texts(found)
        traced = iter(found)
        pools = [next(traced) if is_entry else None for is_entry in is_traced.tolist()]
        return factorize_texts(
            [
                self._final_segments.pool[segment] if pool is None and segment >= 0 else pool
                for pool, segment in zip(pools, self._segments().tolist(), strict=True)
            ]
        )

    def _segments(self) -> Integers:
        """Return the final segment that contains each block, or -1 if unknown."""
        final_spans = sorted(
            (s for s in self._segment_spans if s.held >= 0 and s.end == NO_EVENT), key=lambda s: s.address
        )
        unknown = np.full(len(self._entry), -1, dtype=np.int64)
        if not final_spans:
            return unknown
        start, size, begin, held = (
            np.array([getattr(s, key) for s in final_spans], dtype=np.int64)
            for key in ("address", "size", "begin", "held")
        )
        address = self._address()
        index = np.searchsorted(start, address, side="right") - 1
        is_inside = (
            (index >= 0)
            & (address < start[index] + size[index])
            & (begin[index] <= self._allocation_entries())
        )
        return np.where(is_inside, held[index], unknown)


def _build_segment_columns(
    name: str, trace: DeviceTrace, held: FinalSegments, segment_spans: Sequence[SegmentSpan], begin_ns: int
) -> dict[str, Any]:
    times = trace.time_ns.tolist()
    streams = trace.stream.tolist()
    unmapping_entries = [{} if s.held >= 0 else trace.rows[s.end] for s in segment_spans]
    unmapped_pools = read_pools(unmapping_entries, "pool_id", "trace")
    pools = [
        held.pool[s.held] if s.held >= 0 else pool
        for s, pool in zip(segment_spans, unmapped_pools, strict=True)
    ]
    return {
        "device": factorize_texts([name] * len(segment_spans)),
        "address": np.array([s.address for s in segment_spans], dtype=np.int64),
        "bytes": np.array([s.size for s in segment_spans], dtype=np.int64),
        "mapped_ns": np.array(
            [begin_ns if s.begin == NO_EVENT else times[s.begin] for s in segment_spans], np.int64
        ),
        "unmapped_ns": nullable_integers(
            np.array([-1 if s.end == NO_EVENT else times[s.end] for s in segment_spans], np.int64)
        ),
        "before_history": np.array([s.begin == NO_EVENT for s in segment_spans], dtype=np.bool_),
        "stream": np.array(
            [int(held.stream[s.held]) if s.held >= 0 else streams[s.end] for s in segment_spans], np.int64
        ),
        "pool": factorize_texts(pools),
        "expandable": np.array([s.expandable for s in segment_spans], dtype=np.bool_),
    }


def match_lifetimes(trace: DeviceTrace, blocks: FinalBlocks) -> BlockLifetimes:
    """Return the lifetimes of all blocks in the trace or in the segments at the end."""
    lifetimes, is_open = _match_entries(trace)
    return _close_open_lifetimes(_join_final_blocks(lifetimes, is_open, trace, blocks), trace)


def _match_entries(trace: DeviceTrace) -> tuple[BlockLifetimes, Flags]:
    """Return the lifetimes in the trace, and which of them are open after its last entry.

    At each address, a lifetime starts with an allocation, with the first entry, or with the first entry after
    a free_completed. A further free_requested within a lifetime changes nothing.
    """
    entries = np.flatnonzero(np.isin(trace.action, _BLOCK_ACTIONS))
    entries = entries[np.argsort(trace.address[entries], kind="stable")]
    action, address = trace.action[entries], trace.address[entries]
    is_first = np.append(True, address[1:] != address[:-1])[: len(address)]
    after_completion = np.append(True, action[:-1] == TraceAction.FREE_COMPLETED)[: len(address)]
    is_start = is_first | after_completion | (action == TraceAction.ALLOC)
    start = np.flatnonzero(is_start)
    row = np.cumsum(is_start) - 1
    last = np.append(start[1:] - 1, len(entries) - 1)[: len(start)]
    requested, completed = (np.full(len(start), NO_EVENT, dtype=np.int64) for _ in range(2))
    requests = np.flatnonzero(action == TraceAction.FREE_REQUESTED)[::-1]
    requested[row[requests]] = entries[requests]  # the one written last is the first in the trace
    is_complete = action[last] == TraceAction.FREE_COMPLETED
    completed[is_complete] = entries[last[is_complete]]
    is_last = np.append(is_first[start[1:]], True)[: len(start)]
    is_overlapped = ~is_complete & ~is_last
    if not trace.has_action(TraceAction.FREE_COMPLETED):
        is_overlapped &= requested == NO_EVENT
    next_entry = np.append(entries[start[1:]], NO_EVENT)[: len(start)]
    completed[is_overlapped] = next_entry[is_overlapped]
    requested = np.where(is_overlapped & (requested == NO_EVENT), next_entry, requested)
    order = np.argsort(entries[start], kind="stable")
    lifetimes = BlockLifetimes(
        entry=entries[start][order],
        before=(action[start] != TraceAction.ALLOC)[order],
        requested=requested[order],
        completed=completed[order],
        final_block=np.full(len(start), NO_EVENT, dtype=np.int64),
        overlaps=int(is_overlapped.sum()),
    )
    return lifetimes, (is_last & ~is_complete)[order]


def _join_final_blocks(
    lifetimes: BlockLifetimes, is_open: Flags, trace: DeviceTrace, blocks: FinalBlocks
) -> BlockLifetimes:
    """Join the blocks in use at the end to the open lifetimes; others were allocated before the trace."""
    open_rows = np.flatnonzero(is_open)
    rest = dict(zip(trace.address[lifetimes.entry[open_rows]].tolist(), open_rows.tolist(), strict=True))
    found = np.array([rest.pop(address, NO_EVENT) for address in blocks.address.tolist()], dtype=np.int64)
    numbers = np.arange(len(found), dtype=np.int64)
    is_new = found == NO_EVENT
    final_block = lifetimes.final_block.copy()
    final_block[found[~is_new]] = numbers[~is_new]
    sizes = trace.size[lifetimes.entry[found[~is_new]]]
    nothing = np.full(int(is_new.sum()), NO_EVENT, dtype=np.int64)
    return replace(
        lifetimes,
        entry=np.append(lifetimes.entry, nothing),
        before=np.append(lifetimes.before, np.ones(len(nothing), dtype=np.bool_)),
        requested=np.append(
            lifetimes.requested, np.where(blocks.awaiting[is_new], BEFORE_TRACE, NO_EVENT).astype(np.int64)
        ),
        completed=np.append(lifetimes.completed, nothing),
        final_block=np.append(final_block, numbers[is_new]),
        resized=int((sizes != blocks.requested[~is_new]).sum()),
    )


def _close_open_lifetimes(lifetimes: BlockLifetimes, trace: DeviceTrace) -> BlockLifetimes:
    """End the lifetimes that stay open because one kind of entry was not recorded.

    A completed free implies a requested free. If that entry is missing for a block allocated in the trace,
    the trace has no free_requested entries, and both events are assumed to be simultaneous; otherwise the
    block was freed before the history. The reverse applies to a trace without free_completed entries, except
    for blocks that the segments list as awaiting their free.
    """
    requested, completed = lifetimes.requested.copy(), lifetimes.completed.copy()
    missing_request = (completed >= 0) & (requested == NO_EVENT)
    has_no_requests = bool((missing_request & ~lifetimes.before).any())
    requested[missing_request] = completed[missing_request] if has_no_requests else BEFORE_TRACE
    has_no_completions = False
    is_unlisted = lifetimes.final_block == NO_EVENT
    if not trace.has_action(TraceAction.FREE_COMPLETED):
        missing_completion = (requested >= 0) & (completed == NO_EVENT) & is_unlisted
        has_no_completions = bool(missing_completion.any())
        completed[missing_completion] = requested[missing_completion]
    return replace(
        lifetimes,
        requested=requested,
        completed=completed,
        missing_in_segments=int(((completed == NO_EVENT) & is_unlisted).sum()),
        has_no_requests=has_no_requests,
        has_no_completions=has_no_completions,
    )
