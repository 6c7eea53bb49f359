"""Find the segments of device memory that the allocator held: those at the end as the snapshot lists them,
and when each was mapped and unmapped.

The trace is walked backwards from the segments at the end: a segment_free or segment_unmap adds a span, a
segment_alloc or segment_map removes its bytes and so sets their start. What is left at the first entry was
there when the history starts. A segment of mapped pieces (expandable) is split into them.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from zprof.collectors.snapshot.columns import (
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
from zprof.collectors.snapshot.trace import DeviceTrace, TraceAction

ALLOCATED = "active_allocated"
#: torch's documentation and its C++ code spell this state differently.
AWAITING_FREE = frozenset({"active_pending_free", "active_awaiting_free"})
_STATES = AWAITING_FREE | {ALLOCATED, "inactive"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBlocks:
    """Blocks in use at the end. ``awaiting`` marks those that the program has freed already."""

    rows: Sequence[Row]
    address: Integers
    size: Integers
    requested: Integers
    segment: Integers
    awaiting: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSegments:
    """Segments of one device, sorted by address, and their blocks in use."""

    address: Integers
    size: Integers
    stream: Integers
    pool: Sequence[str | None]
    expandable: Flags
    blocks: HeldBlocks


def read_held_segments(segments: Sequence[Row], where: str, budget: Budget) -> HeldSegments:
    """Return the segments of one device.

    Raises:
        BadInput: a segment or block is not as torch writes it, or two segments overlap.
    """
    segments = sorted(segments, key=lambda row: int(read_integers([row], "address", where)[0]))
    address = read_sizes(segments, "address", where)
    size = read_sizes(segments, "total_size", where)
    check_total(size, where)
    if (address[1:] < address[:-1] + size[:-1]).any():
        raise make_damaged_error(f"{where} overlap")
    return HeldSegments(
        address=address,
        size=size,
        stream=read_integers(segments, "stream", where, default=0),
        pool=read_pools(segments, "segment_pool_id", where),
        expandable=np.array([bool(row.get("is_expandable", False)) for row in segments], dtype=np.bool_),
        blocks=_read_blocks(segments, address, where, budget),
    )


def read_pools(rows: Sequence[Row], key: str, where: str) -> list[str | None]:
    """Return a column of pool ids, pairs of integers, as "a,b"; None if a row has none."""
    texts: dict[Any, str | None] = {}
    return [_format_pool(value, texts, where) for value in read_column(rows, key)]


def _format_pool(value: object, texts: dict[Any, str | None], where: str) -> str | None:
    if value is None:
        return None
    pair = tuple(value) if type(value) is list else value
    if type(pair) is not tuple or len(pair) != 2 or {type(pair[0]), type(pair[1])} != {int}:
        raise make_damaged_error(f"{where}: a pool id is not a pair of integers")
    if pair not in texts:
        if max(abs(pair[0]), abs(pair[1])) >> 64:
            raise make_damaged_error(f"{where}: a pool id does not fit into 64 bits")
        texts[pair] = f"{pair[0]},{pair[1]}"
    return texts[pair]


def _read_blocks(segments: Sequence[Row], starts: Integers, where: str, budget: Budget) -> HeldBlocks:
    lists = [read_rows(row.get("blocks", []), f"blocks of {where}", budget) for row in segments]
    where = f"blocks of {where}"
    rows = list(chain.from_iterable(lists))
    segment = np.repeat(np.arange(len(lists), dtype=np.int64), [len(each) for each in lists])
    size = read_sizes(rows, "size", where)
    check_total(size, where)
    states = read_texts(rows, "state", where)
    unknown = set(states) - _STATES
    if unknown:
        raise make_damaged_error(f"{where}: a state that torch does not have")
    address = _find_addresses(rows, size, segment, starts, where)
    used = np.array([state != "inactive" for state in states], dtype=np.bool_)
    awaiting = np.array([state in AWAITING_FREE for state in states], dtype=np.bool_)
    requested = read_integers(rows, "requested_size", where, default=-1)
    requested = np.where(requested < 0, size, requested)
    return HeldBlocks(
        rows=[row for row, kept in zip(rows, used, strict=True) if kept],
        address=address[used],
        size=size[used],
        requested=requested[used],
        segment=segment[used],
        awaiting=awaiting[used],
    )


def _find_addresses(
    rows: Sequence[Row], size: Integers, segment: Integers, starts: Integers, where: str
) -> Integers:
    """Return the address of each block: as stated, else (older torch) right after the previous block."""
    if all("address" in row for row in rows):
        return read_sizes(rows, "address", where)
    ends = np.cumsum(size)
    before = ends - size
    first = np.zeros(len(starts) + 1, dtype=np.int64)
    np.maximum.at(first, segment + 1, ends)
    return starts[segment] + before - np.maximum.accumulate(first)[segment]


_UNMAPPING = (TraceAction.SEGMENT_FREE, TraceAction.SEGMENT_UNMAP)
_MAPPING = (TraceAction.SEGMENT_ALLOC, TraceAction.SEGMENT_MAP)
_MAPS = (TraceAction.SEGMENT_MAP, TraceAction.SEGMENT_UNMAP)
NO_ENTRY = -1


@dataclass(frozen=True, slots=True)
class _OpenSpan:
    """A span held at this point of the walk. ``end`` is the entry that frees it."""

    address: int
    size: int
    end: int
    held: int
    expandable: bool


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """One row of the table. ``begin`` and ``end`` are entries (``NO_ENTRY``: before the first, not yet).

    ``held`` is the segment of the snapshot that it is a part of, ``NO_ENTRY`` if it is gone by then.
    """

    address: int
    size: int
    begin: int
    end: int
    held: int
    expandable: bool


@dataclass(slots=True)
class BackwardWalk:
    """The backward walk. ``odd`` counts entries that contradict what is held."""

    open: dict[int, _OpenSpan] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    found: list[SegmentSpan] = field(default_factory=list)
    odd: int = 0

    def put(self, stretch: _OpenSpan) -> None:
        """Add a span that is held before this point of the trace."""
        if stretch.size <= 0 or any(True for _ in self._within(stretch.address, stretch.size)):
            self.odd += stretch.size > 0
            return
        self.open[stretch.address] = stretch
        insort(self.starts, stretch.address)

    def take(self, address: int, size: int, entry: int) -> None:
        """Remove these bytes: they are held from ``entry`` on."""
        pieces = [self.open[start] for start in self._within(address, size)]
        covered = 0
        for piece in pieces:
            covered += self._cut(piece, address, address + size, entry)
        self.odd += covered != size

    def finish(self) -> list[SegmentSpan]:
        """Return all rows, oldest first; the spans left were there before the trace."""
        rest = [
            SegmentSpan(o.address, o.size, NO_ENTRY, o.end, o.held, o.expandable) for o in self.open.values()
        ]
        return sorted(rest + self.found, key=lambda row: (row.begin, row.address))

    def _cut(self, piece: _OpenSpan, low: int, high: int, entry: int) -> int:
        """Set the start of the part of ``piece`` in [low, high), keep the rest; return the part's bytes."""
        self._drop(piece.address)
        start, stop = max(low, piece.address), min(high, piece.address + piece.size)
        self.found.append(SegmentSpan(start, stop - start, entry, piece.end, piece.held, piece.expandable))
        for left, right in ((piece.address, start), (stop, piece.address + piece.size)):
            self.put(_OpenSpan(left, right - left, piece.end, piece.held, piece.expandable))
        return stop - start

    def _drop(self, address: int) -> None:
        del self.open[address]
        del self.starts[bisect_left(self.starts, address)]

    def _within(self, address: int, size: int) -> Iterator[int]:
        """Yield the starts of the spans held that overlap [address, address + size)."""
        first = max(bisect_right(self.starts, address) - 1, 0)
        for at in range(first, len(self.starts)):
            start = self.starts[at]
            if start >= address + size:
                return
            if start + self.open[start].size > address:
                yield start


def find_segment_spans(trace: DeviceTrace, held: HeldSegments) -> tuple[Sequence[SegmentSpan], int]:
    """Return all spans, and the number of entries that contradict the segments."""
    walk = BackwardWalk()
    columns = zip(held.address.tolist(), held.size.tolist(), held.expandable.tolist(), strict=True)
    for number, (address, size, expandable) in enumerate(columns):
        walk.put(_OpenSpan(address, size, NO_ENTRY, number, expandable))
    entries = np.flatnonzero(np.isin(trace.action, [*_MAPPING, *_UNMAPPING]))
    for entry in entries[::-1].tolist():
        action, address, size = trace.action[entry], int(trace.address[entry]), int(trace.size[entry])
        if action in _UNMAPPING:
            walk.put(_OpenSpan(address, size, entry, NO_ENTRY, action in _MAPS))
        else:
            walk.take(address, size, entry)
    return walk.finish(), walk.odd
