"""Split the reserved memory of an allocator at an instant.

A block is live in [begin, freed), waits for a stream in [freed, released), and can be reused afterwards:

    reserved = live + rounding + awaiting free + split + free segments + private pools

Each free byte is counted by its location. If blocks overlap or are outside all segments, the free terms are
unknown, and ``contradiction_bytes`` is the size of the contradiction.
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.memory.history import HeldSegments, History
from zprof.analysis.memory.tables import Bool, Int


class AllocatorTerms(Struct, frozen=True, kw_only=True):
    """Terms of reserved memory at one instant; the free terms are None if the history contradicts itself."""

    live_bytes: int
    rounding_bytes: int
    awaiting_free_bytes: int
    split_bytes: int | None
    free_segments_bytes: int | None
    private_pools_bytes: int | None
    reserved_bytes: int
    contradiction_bytes: int


class Regions(Struct, frozen=True):
    """Segments at an instant, by address; adjacent pieces of an expandable segment are merged."""

    address: Int
    bytes: Int
    private: Bool
    pool: Int
    overlap_bytes: int


def compute_terms(history: History, time_ns: int) -> AllocatorTerms:
    """Return the terms of reserved memory at an instant."""
    blocks = history.blocks
    held_rows = np.flatnonzero((blocks.begin_ns <= time_ns) & (blocks.released_ns > time_ns))
    live = held_rows[blocks.freed_ns[held_rows] > time_ns]
    regions = merge_segments(history.held_segments, time_ns)
    # (bytes of blocks in each region, bytes of blocks outside all regions).
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
    """Return the segments that are held at an instant."""
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
    """Return the bytes that overlap a range starting at a lower address."""
    order = np.argsort(address, kind="stable")
    address, end = address[order], (address + size)[order]
    reached = np.maximum.accumulate(end)[:-1]
    return int(np.maximum(np.minimum(reached, end[1:]) - address[1:], 0).sum())
