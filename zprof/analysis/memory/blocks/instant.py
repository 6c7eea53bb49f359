"""Where the memory that an allocator holds is at one instant.

    reserved = live + rounding + awaiting free + split + free segments + private pools

live: asked for and not given back.  rounding: what the blocks of live memory are larger.  awaiting free:
given back, but a stream still uses it.  The rest is free: in segments that are partly used (split: no
larger request fits), in segments wholly free, and in private pools, from which nobody else is served.

Each free byte is counted where it lies, from the blocks in each segment.  So the sum can be wrong: a block
outside of all segments, and whatever overlaps contradict it.  Then the free terms are unknown, and
``contradiction_bytes`` says by how much the history contradicts itself.
"""

from dataclasses import dataclass

import numpy as np

from zprof.analysis.memory.blocks.history import HeldBlocks, History, Stretches
from zprof.analysis.memory.rank.lives import Bool, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The identity at one instant; the free terms are None where the history contradicts itself."""

    live_bytes: int
    rounding_bytes: int
    awaiting_free_bytes: int
    split_bytes: int | None
    free_segments_bytes: int | None
    private_pools_bytes: int | None
    reserved_bytes: int
    contradiction_bytes: int


@dataclass(frozen=True, slots=True)
class _Regions:
    """Segments at an instant, by address; neighbouring pieces of an expandable segment are one."""

    address: Int
    bytes: Int
    private: Bool
    overlap_bytes: int


def terms_at(history: History, time_ns: int) -> Terms:
    """The identity at an instant."""
    blocks = history.blocks
    held = np.flatnonzero((blocks.begin_ns <= time_ns) & (blocks.released_ns > time_ns))
    live = held[blocks.freed_ns[held] > time_ns]
    regions = _regions(history.stretches, time_ns)
    used, stray_bytes = _used(blocks, held, regions)
    free = regions.bytes - used
    overlap_bytes = _overlap(blocks.address[held], blocks.block_bytes[held]) + regions.overlap_bytes
    contradiction = stray_bytes + overlap_bytes + int(-free[free < 0].sum())
    whole = (used == 0) & ~regions.private
    terms = (free[~whole & ~regions.private], free[whole], free[regions.private])
    split, free_segments, private = (None if contradiction else int(part.sum()) for part in terms)
    block_bytes, live_bytes = _sum(blocks.block_bytes, live), _sum(blocks.requested_bytes, live)
    return Terms(
        live_bytes=live_bytes,
        rounding_bytes=block_bytes - live_bytes,
        awaiting_free_bytes=_sum(blocks.block_bytes, held) - block_bytes,
        split_bytes=split,
        free_segments_bytes=free_segments,
        private_pools_bytes=private,
        reserved_bytes=int(regions.bytes.sum()),
        contradiction_bytes=contradiction,
    )


def live_at(blocks: HeldBlocks, time_ns: int) -> Int:
    """Rows of the blocks that are live at an instant."""
    live = (blocks.begin_ns <= time_ns) & (blocks.freed_ns > time_ns)
    return np.flatnonzero(live).astype(np.int64)


def _regions(stretches: Stretches, time_ns: int) -> _Regions:
    rows = np.flatnonzero((stretches.begin_ns <= time_ns) & (stretches.end_ns > time_ns))
    rows = rows[np.argsort(stretches.address[rows], kind="stable")]
    address, size = stretches.address[rows], stretches.bytes[rows]
    end, kin = address + size, stretches.kin[rows]
    grown = stretches.expandable[rows]
    joined = np.zeros(len(rows), dtype=bool)
    joined[1:] = grown[1:] & grown[:-1] & (end[:-1] == address[1:]) & (kin[1:] == kin[:-1])
    first = np.flatnonzero(~joined)
    return _Regions(
        address=address[first],
        bytes=np.add.reduceat(size, first) if len(first) else size,
        private=stretches.private[rows][first],
        overlap_bytes=_overlap(address, size),
    )


def _overlap(address: Int, size: Int) -> int:
    """Bytes that lie in what begins before them."""
    order = np.argsort(address, kind="stable")
    address, end = address[order], (address + size)[order]
    reached = np.maximum.accumulate(end)[:-1]
    return int(np.maximum(np.minimum(reached, end[1:]) - address[1:], 0).sum())


def _used(blocks: HeldBlocks, held: Int, regions: _Regions) -> tuple[Int, int]:
    """(bytes of blocks in each region, bytes of blocks that lie in none)."""
    used = np.zeros(len(regions.address), dtype=np.int64)
    address, size = blocks.address[held], blocks.block_bytes[held]
    at = np.searchsorted(regions.address, address, side="right") - 1
    inside = at >= 0
    inside[inside] = (address + size)[inside] <= (regions.address + regions.bytes)[at[inside]]
    np.add.at(used, at[inside], size[inside])
    return used, int(size[~inside].sum())


def _sum(sizes: Int, rows: Int) -> int:
    return int(sizes[rows].sum())
