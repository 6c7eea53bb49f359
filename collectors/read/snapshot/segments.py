"""Find the allocator's segments of device memory: the final segments listed in the snapshot, and the times at
which each segment was mapped and unmapped.

The trace is walked backwards from the final segments: a segment_free or segment_unmap adds a span, a
segment_alloc or segment_map removes its bytes and thereby sets their start. Spans that remain at the first
entry existed before the history. An expandable segment is split into its mapped pieces.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from msgspec import Struct, field

from zprof.collectors.read.snapshot.columns import (
    Budget,
    Flags,
    Integers,
    Row,
    check_total,
    make_damaged_error,
    read_column,
    read_integers,
    read_rows,
    read_sizes,
    read_texts,
)
from zprof.collectors.read.snapshot.trace import DeviceTrace, TraceAction

ALLOCATED = "active_allocated"
#: torch's documentation and C++ code spell this state differently.
AWAITING_FREE = frozenset({"active_pending_free", "active_awaiting_free"})
_STATES = AWAITING_FREE | {ALLOCATED, "inactive"}
_UNMAPPING = (TraceAction.SEGMENT_FREE, TraceAction.SEGMENT_UNMAP)
_MAPPING = (TraceAction.SEGMENT_ALLOC, TraceAction.SEGMENT_MAP)
_EXPANDABLE_ACTIONS = (TraceAction.SEGMENT_MAP, TraceAction.SEGMENT_UNMAP)
NO_ENTRY = -1


class FinalBlocks(Struct, frozen=True, kw_only=True):
    """Blocks in use at the end. ``awaiting`` marks blocks that the program has already freed."""

    rows: Sequence[Row]
    address: Integers
    size: Integers
    requested: Integers
    segment: Integers
    awaiting: Flags


class FinalSegments(Struct, frozen=True, kw_only=True):
    """Segments of one device, sorted by address, and their blocks in use."""

    address: Integers
    size: Integers
    stream: Integers
    pool: Sequence[str | None]
    expandable: Flags
    blocks: FinalBlocks


def read_final_segments(segments: Sequence[Row], where: str, budget: Budget) -> FinalSegments:
    """Return the segments of one device.

    Raises:
        BadInput: a segment or block does not have torch's format, or two segments overlap.
    """
    segments = sorted(segments, key=lambda row: int(read_integers([row], "address", where)[0]))
    address = read_sizes(segments, "address", where)
    size = read_sizes(segments, "total_size", where)
    check_total(size, where)
    if (address[1:] < address[:-1] + size[:-1]).any():
        raise make_damaged_error(f"{where} overlap")
    return FinalSegments(
        address=address,
        size=size,
        stream=read_integers(segments, "stream", where, default=0),
        pool=read_pools(segments, "segment_pool_id", where),
        expandable=np.array([bool(row.get("is_expandable", False)) for row in segments], dtype=np.bool_),
        blocks=_read_blocks(segments, address, where, budget),
    )


def read_pools(rows: Sequence[Row], key: str, where: str) -> list[str | None]:
    """Return a column of pool ids, pairs of integers, as "a,b"; None if a row has none."""
    values = read_column(rows, key)
    kinds = set(map(type, values))
    if not kinds <= {tuple, list, type(None)}:
        raise make_damaged_error(f"{where}: a pool id is not a pair of integers")
    if kinds == {type(None)}:
        return values
    pairs = [value for value in values if value is not None] if type(None) in kinds else values
    if set(map(len, pairs)) - {2} or set(map(type, chain.from_iterable(pairs))) - {int}:
        raise make_damaged_error(f"{where}: a pool id is not a pair of integers")
    if list in kinds:
        values = [tuple(value) if type(value) is list else value for value in values]
    # hashing is safe here: the pairs hold integers only
    texts = {pair: None if pair is None else _format_pool(pair, where) for pair in set(values)}
    return list(map(texts.__getitem__, values))


def _format_pool(pair: tuple[int, int], where: str) -> str:
    if max(abs(pair[0]), abs(pair[1])) >> 64:
        raise make_damaged_error(f"{where}: a pool id does not fit into 64 bits")
    return f"{pair[0]},{pair[1]}"


def _read_blocks(segments: Sequence[Row], starts: Integers, where: str, budget: Budget) -> FinalBlocks:
    lists = [read_rows(row.get("blocks", []), f"blocks of {where}", budget) for row in segments]
    where = f"blocks of {where}"
    rows = list(chain.from_iterable(lists))
    segment = np.repeat(np.arange(len(lists), dtype=np.int64), [len(block_rows) for block_rows in lists])
    size = read_sizes(rows, "size", where)
    check_total(size, where)
    states = read_texts(rows, "state", where)
    unknown = set(states) - _STATES
    if unknown:
        raise make_damaged_error(f"{where}: an unknown block state")
    # The address of each block: as recorded, else (older torch) directly after the previous block.
    if all("address" in row for row in rows):
        address = read_sizes(rows, "address", where)
    else:
        ends = np.cumsum(size)
        offsets = ends - size
        first = np.zeros(len(starts) + 1, dtype=np.int64)
        np.maximum.at(first, segment + 1, ends)
        address = starts[segment] + offsets - np.maximum.accumulate(first)[segment]
    is_used = np.array([state != "inactive" for state in states], dtype=np.bool_)
    awaiting = np.array([state in AWAITING_FREE for state in states], dtype=np.bool_)
    requested = read_integers(rows, "requested_size", where, default=-1)
    requested = np.where(requested < 0, size, requested)
    return FinalBlocks(
        rows=[row for row, is_kept in zip(rows, is_used, strict=True) if is_kept],
        address=address[is_used],
        size=size[is_used],
        requested=requested[is_used],
        segment=segment[is_used],
        awaiting=awaiting[is_used],
    )


class _OpenSpan(Struct, frozen=True):
    """A span that is mapped at this point of the walk. ``end`` is the entry that frees it."""

    address: int
    size: int
    end: int
    held: int
    expandable: bool


class SegmentSpan(Struct, frozen=True):
    """One row of the table. ``begin`` and ``end`` are entries (``NO_ENTRY``: before the first, not yet).

    ``held`` is the final segment that contains it, ``NO_ENTRY`` if it was unmapped before.
    """

    address: int
    size: int
    begin: int
    end: int
    held: int
    expandable: bool


class BackwardWalk(Struct):
    """Walk the trace backwards. ``contradictions`` counts entries that contradict the mapped spans."""

    open_spans: dict[int, _OpenSpan] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    closed_spans: list[SegmentSpan] = field(default_factory=list)
    contradictions: int = 0

    def add(self, span: _OpenSpan) -> None:
        """Add a span that is mapped before this point of the trace."""
        if span.size <= 0 or any(True for _ in self._find_overlapping(span.address, span.size)):
            self.contradictions += span.size > 0
            return
        self.open_spans[span.address] = span
        insort(self.starts, span.address)

    def remove(self, address: int, size: int, entry: int) -> None:
        """Remove these bytes, which are mapped from ``entry`` on."""
        pieces = [self.open_spans[start] for start in self._find_overlapping(address, size)]
        covered = 0
        for piece in pieces:
            covered += self._cut_span(piece, address, address + size, entry)
        self.contradictions += covered != size

    def finish(self) -> list[SegmentSpan]:
        """Return all rows, oldest first; the remaining spans existed before the trace."""
        preexisting = [
            SegmentSpan(o.address, o.size, NO_ENTRY, o.end, o.held, o.expandable)
            for o in self.open_spans.values()
        ]
        return sorted(preexisting + self.closed_spans, key=lambda row: (row.begin, row.address))

    def _cut_span(self, piece: _OpenSpan, range_start: int, range_end: int, entry: int) -> int:
        """Set the start of the part of ``piece`` in [low, high), keep the rest; return the part's bytes."""
        del self.open_spans[piece.address]
        del self.starts[bisect_left(self.starts, piece.address)]
        start, stop = max(range_start, piece.address), min(range_end, piece.address + piece.size)
        self.closed_spans.append(
            SegmentSpan(start, stop - start, entry, piece.end, piece.held, piece.expandable)
        )
        for left, right in ((piece.address, start), (stop, piece.address + piece.size)):
            self.add(_OpenSpan(left, right - left, piece.end, piece.held, piece.expandable))
        return stop - start

    def _find_overlapping(self, address: int, size: int) -> Iterator[int]:
        """Yield the starts of the mapped spans that overlap [address, address + size)."""
        first = max(bisect_right(self.starts, address) - 1, 0)
        for index in range(first, len(self.starts)):
            start = self.starts[index]
            if start >= address + size:
                return
            if start + self.open_spans[start].size > address:
                yield start


def find_segment_spans(trace: DeviceTrace, held: FinalSegments) -> tuple[Sequence[SegmentSpan], int]:
    """Return all spans, and the number of entries that contradict the segments."""
    walk = BackwardWalk()
    columns = zip(held.address.tolist(), held.size.tolist(), held.expandable.tolist(), strict=True)
    for index, (address, size, expandable) in enumerate(columns):
        walk.add(_OpenSpan(address, size, NO_ENTRY, index, expandable))
    entries = np.flatnonzero(np.isin(trace.action, [*_MAPPING, *_UNMAPPING]))
    for entry in entries[::-1].tolist():
        action, address, size = trace.action[entry], int(trace.address[entry]), int(trace.size[entry])
        if action in _UNMAPPING:
            walk.add(_OpenSpan(address, size, entry, NO_ENTRY, action in _EXPANDABLE_ACTIONS))
        else:
            walk.remove(address, size, entry)
    return walk.finish(), walk.contradictions
