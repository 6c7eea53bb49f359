"""Read a CUDA allocator's history: a device's blocks, segments, peaks and reserved memory.

A block is live in [begin, freed), waits for a stream in [freed, released), and is reusable afterwards.

Reserved memory at an instant:

    reserved = live + rounding + awaiting free + split + free segments + private pools

Free bytes are counted by location. If blocks overlap or lie outside all segments, the free terms are unknown,
and ``contradiction_bytes`` is the size of the contradiction.
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns
from zprof.analysis.memory.live_bytes import compute_live_curve
from zprof.analysis.memory.tables import FOREVER, Bool, Int, sum_by_device
from zprof.base.errors import BadInput

#: More than any device has. A table with a larger size is damaged, and sums of such sizes could overflow.
_MAX_BYTES = 1 << 46
_COMMON_POOL = "0,0"
#: The history has microsecond resolution, the profiler nanoseconds, and each reads the clock separately.
_MAX_CLOCK_DIFFERENCE_NS = 20_000


class HeldBlocks(Struct, frozen=True, kw_only=True):
    """Lifetimes of blocks; ``stack`` is -1 without frames; ``tag`` indexes ``tags``, -1 for none.

    ``understated_bytes``: requested bytes in excess of the recorded block sizes.
    """

    address: Int
    requested_bytes: Int
    block_bytes: Int
    begin_ns: Int
    freed_ns: Int
    released_ns: Int
    before: Bool
    stack: Int
    tag: Int
    tags: tuple[str, ...]
    understated_bytes: int

    def __len__(self) -> int:
        return len(self.address)


class HeldSegments(Struct, frozen=True, kw_only=True):
    """Memory held by the allocator; neighbours with equal ``segment_key`` may belong to one segment.

    ``pool`` indexes ``pools``; the last pool has no name and stands for the common or an unknown pool.
    """

    address: Int
    bytes: Int
    begin_ns: Int
    end_ns: Int
    private: Bool
    expandable: Bool
    segment_key: Int
    pool: Int
    pools: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.address)


class History(Struct, frozen=True, kw_only=True):
    """One device's history, complete from ``begin_ns``."""

    device: str
    blocks: HeldBlocks
    held_segments: HeldSegments
    begin_ns: int
    end_ns: int


def read_history(
    block: Columns, segment: Columns, device: str, *, empty_ns: int | None = None
) -> History | None:
    """Return a device's history, or None if it has neither blocks nor segments.

    ``empty_ns``: return an empty history at this time instead.

    Raises:
        BadInput: it contains an impossible size or time.
    """
    block, segment = (rows.at(rows.texts("device").equals(device)) for rows in (block, segment))
    is_empty = not len(block) and not len(segment)
    if is_empty and empty_ns is None:
        return None
    blocks, held_segments = _read_blocks(block), _read_segments(segment)
    times = np.concatenate(
        [
            *(column[column != FOREVER] for column in (blocks.begin_ns, blocks.freed_ns, blocks.released_ns)),
            *(column[column != FOREVER] for column in (held_segments.begin_ns, held_segments.end_ns)),
            *([[empty_ns]] if is_empty else []),
        ]
    )
    return History(
        device=device,
        blocks=blocks,
        held_segments=held_segments,
        begin_ns=int(times.min()),
        end_ns=int(times.max()),
    )


def list_history_devices(block: Columns) -> list[str]:
    """Return a history's devices by requested bytes, largest first."""
    totals = sum_by_device(block, "requested_bytes")
    return sorted(totals, key=lambda device: (-totals[device], device))


def _read_blocks(rows: Columns) -> HeldBlocks:
    rows = rows.sort_by("allocated_ns")
    requested, block = _read_sizes(rows, "requested_bytes"), _read_sizes(rows, "block_bytes")
    begin, freed = rows.ints("allocated_ns"), rows.ints("freed_ns", FOREVER)
    released = rows.ints("released_ns", FOREVER)
    freed = np.where(freed == FOREVER, released, freed)
    freed = np.maximum(freed, begin)
    tag = rows.texts("tag")
    return HeldBlocks(
        address=rows.ints("address"),
        requested_bytes=requested,
        block_bytes=np.maximum(block, requested),
        begin_ns=begin,
        freed_ns=freed,
        released_ns=np.maximum(released, freed),
        before=rows.bools("before_history"),
        stack=rows.ints("stack", -1),
        tag=tag.codes,
        tags=tag.words,
        understated_bytes=int(np.maximum(requested - block, 0).sum()),
    )


def _read_segments(rows: Columns) -> HeldSegments:
    begin = rows.ints("mapped_ns")
    pool, pools = rows.texts("pool").codes, rows.texts("pool").words
    bare_names = ["".join(name.split()).strip("()[]") for name in (*pools, "")]
    common = np.array([name in ("", _COMMON_POOL) for name in bare_names], dtype=bool)
    stream = rows.ints("stream", -1)
    _, segment_key = np.unique(np.stack([pool, stream], axis=1), axis=0, return_inverse=True)
    return HeldSegments(
        address=rows.ints("address"),
        bytes=_read_sizes(rows, "bytes"),
        begin_ns=begin,
        end_ns=np.maximum(rows.ints("unmapped_ns", FOREVER), begin),
        private=~common[pool],
        expandable=rows.bools("expandable"),
        segment_key=segment_key.reshape(-1).astype(np.int64),
        pool=np.where(pool < 0, len(pools), pool),
        pools=(*pools, ""),
    )


def _read_sizes(rows: Columns, name: str) -> Int:
    sizes = rows.ints(name)
    if len(sizes) and not (int(sizes.min()) >= 0 and int(sizes.max()) <= _MAX_BYTES):
        raise BadInput(
            "memory history: a block or segment has an impossible size", hint="record the history again"
        )
    return sizes


def find_live_blocks(blocks: HeldBlocks, time_ns: int) -> Int:
    """Return the rows of the blocks that are live at a moment."""
    live = (blocks.begin_ns <= time_ns) & (blocks.freed_ns > time_ns)
    return np.flatnonzero(live).astype(np.int64)


def find_allocated_peak(history: History) -> tuple[int, int]:
    """Return (time, bytes) of the first maximum of live requested bytes."""
    blocks = history.blocks
    times, live = compute_live_curve(blocks.begin_ns, blocks.freed_ns, blocks.requested_bytes)
    if not len(times):
        return history.begin_ns, 0
    peak_index = int(np.argmax(live))
    return int(times[peak_index]), int(live[peak_index])


def find_reserved_peak(history: History, begin_ns: int, end_ns: int) -> int | None:
    """Return the time in [begin, end] with the most reserved memory; None if nothing was reserved."""
    held_segments, blocks = history.held_segments, history.blocks
    times, reserved = compute_live_curve(held_segments.begin_ns, held_segments.end_ns, held_segments.bytes)
    live_times, live = compute_live_curve(blocks.begin_ns, blocks.freed_ns, blocks.requested_bytes)
    instants = merge_times(times, live_times)
    inside = instants[(instants >= begin_ns) & (instants <= end_ns)]
    instants = merge_times(np.array([begin_ns], dtype=np.int64), inside)
    reserved_at = sample_curve(times, reserved, instants)
    if not len(reserved_at) or int(reserved_at.max()) == 0:
        return None
    highest = np.flatnonzero(reserved_at == reserved_at.max())
    return int(instants[highest[np.argmax(sample_curve(live_times, live, instants[highest]))]])


def find_peak_near(history: History, time_ns: int) -> int:
    """Return the time with the most live bytes near a time from another clock."""
    blocks = history.blocks
    times, live = compute_live_curve(blocks.begin_ns, blocks.freed_ns, blocks.requested_bytes)
    first, last = np.searchsorted(
        times, [time_ns - _MAX_CLOCK_DIFFERENCE_NS, time_ns + _MAX_CLOCK_DIFFERENCE_NS]
    )
    return int(times[first + np.argmax(live[first:last])]) if last > first else time_ns


def merge_times(first: Int, second: Int) -> Int:
    """Return the union of two sorted arrays of times; ``np.union1d`` hashes them, which is 20 times
    slower.
    """
    merged = np.sort(np.concatenate([first, second]), kind="stable")
    return merged[np.append(True, merged[1:] != merged[:-1])[: len(merged)]]


def sample_curve(times: Int, values: Int, instants: Int) -> Int:
    """Return a curve's value at each time; 0 before its first point."""
    position = np.searchsorted(times, instants, side="right") - 1
    return (
        np.where(position >= 0, values[np.maximum(position, 0)], 0)
        if len(values)
        else np.zeros_like(instants)
    )


class AllocatorTerms(Struct, frozen=True, kw_only=True):
    """Terms of reserved memory at a moment; the free terms are None if the history contradicts itself."""

    live_bytes: int
    rounding_bytes: int
    awaiting_free_bytes: int
    split_bytes: int | None
    free_segments_bytes: int | None
    private_pools_bytes: int | None
    reserved_bytes: int
    contradiction_bytes: int


class Regions(Struct, frozen=True):
    """Segments at a moment, by address; adjacent pieces of an expandable segment are merged."""

    address: Int
    bytes: Int
    private: Bool
    pool: Int
    overlap_bytes: int


def compute_terms(history: History, time_ns: int) -> AllocatorTerms:
    """Return the terms of reserved memory at a moment."""
    blocks = history.blocks
    held_rows = np.flatnonzero((blocks.begin_ns <= time_ns) & (blocks.released_ns > time_ns))
    live = held_rows[blocks.freed_ns[held_rows] > time_ns]
    regions = merge_segments(history.held_segments, time_ns)
    # Compute (bytes of blocks in each region, bytes of blocks outside all regions).
    used = np.zeros(len(regions.address), dtype=np.int64)
    address, size = blocks.address[held_rows], blocks.block_bytes[held_rows]
    region = np.searchsorted(regions.address, address, side="right") - 1
    inside = region >= 0
    inside[inside] = (address + size)[inside] <= (regions.address + regions.bytes)[region[inside]]
    np.add.at(used, region[inside], size[inside])
    used, stray_bytes = used, int(size[~inside].sum())
    free = regions.bytes - used
    overlap_bytes = (
        _sum_overlap_bytes(blocks.address[held_rows], blocks.block_bytes[held_rows]) + regions.overlap_bytes
    )
    contradiction = stray_bytes + overlap_bytes + int(-free[free < 0].sum())
    is_free_segment = (used == 0) & ~regions.private
    terms = (free[~is_free_segment & ~regions.private], free[is_free_segment], free[regions.private])
    split, free_segments, private = (None if contradiction else int(part.sum()) for part in terms)
    block_bytes, live_bytes = int(blocks.block_bytes[live].sum()), int(blocks.requested_bytes[live].sum())
    return AllocatorTerms(
        live_bytes=live_bytes,
        rounding_bytes=block_bytes - live_bytes,
        awaiting_free_bytes=int(blocks.block_bytes[held_rows].sum()) - block_bytes,
        split_bytes=split,
        free_segments_bytes=free_segments,
        private_pools_bytes=private,
        reserved_bytes=int(regions.bytes.sum()),
        contradiction_bytes=contradiction,
    )


def merge_segments(held_segments: HeldSegments, time_ns: int) -> Regions:
    """Return the segments held at a moment."""
    rows = np.flatnonzero((held_segments.begin_ns <= time_ns) & (held_segments.end_ns > time_ns))
    rows = rows[np.argsort(held_segments.address[rows], kind="stable")]
    address, size = held_segments.address[rows], held_segments.bytes[rows]
    end, segment_key = address + size, held_segments.segment_key[rows]
    grown = held_segments.expandable[rows]
    joined = np.zeros(len(rows), dtype=bool)
    joined[1:] = grown[1:] & grown[:-1] & (end[:-1] == address[1:]) & (segment_key[1:] == segment_key[:-1])
    first = np.flatnonzero(~joined)
    return Regions(
        address=address[first],
        bytes=np.add.reduceat(size, first) if len(first) else size,
        private=held_segments.private[rows][first],
        pool=held_segments.pool[rows][first],
        overlap_bytes=_sum_overlap_bytes(address, size),
    )


def _sum_overlap_bytes(address: Int, size: Int) -> int:
    """Return the total overlap with ranges that start at a lower address."""
    order = np.argsort(address, kind="stable")
    address, end = address[order], (address + size)[order]
    reached = np.maximum.accumulate(end)[:-1]
    return int(np.maximum(np.minimum(reached, end[1:]) - address[1:], 0).sum())
