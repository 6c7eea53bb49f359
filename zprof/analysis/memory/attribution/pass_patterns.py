"""Tell forward from backward by the pattern of allocations alone, for a history without stacks.

A forward keeps blocks that its backward frees one by one, between allocations of its own. So the bytes of
such blocks rise through the forward and fall through the backward. Blocks that are freed together, with no
allocation in between, are something else: gradients, or outputs that go out of scope.
"""

import numpy as np

from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.tables import FOREVER, Bool, Int

#: A block that lives for fewer allocations is a temporary of an operator.
_MIN_AGE = 8
#: So many blocks freed without an allocation in between are freed together.
_MIN_TOGETHER = 8
#: Rise or fall of the kept bytes, as a share of their maximum, that makes a pass.
_MIN_SWING_RATIO = 0.3


def find_turns(blocks: HeldBlocks, rows: Int) -> list[tuple[int, int, int]]:
    """Return (begin, peak, end) of each forward and its backward, as positions in ``rows``.

    ``rows`` are the blocks to consider, in the order of allocation: the forward is [begin, peak), the
    backward [peak, end).
    """
    if not len(rows):
        return []
    kept = _find_kept(blocks, rows)
    size = np.where(kept, blocks.requested_bytes[rows], 0)
    begin_ns, freed_ns = blocks.begin_ns[rows], blocks.freed_ns[rows]
    by_end = np.argsort(freed_ns, kind="stable")
    freed_bytes = np.concatenate([[0], np.cumsum(size[by_end])])
    live = np.cumsum(size) - size - freed_bytes[np.searchsorted(freed_ns[by_end], begin_ns, side="right")]
    return _find_peaks(live.tolist(), kept)


def _find_kept(blocks: HeldBlocks, rows: Int) -> Bool:
    """Mark the blocks that outlive several allocations and are not freed together with many others."""
    freed_ns = blocks.freed_ns[rows]
    gap = np.searchsorted(blocks.begin_ns[rows], freed_ns, side="right")
    together = np.bincount(gap, minlength=len(rows) + 1)[gap]
    age = gap - np.arange(len(rows))
    kept: Bool = (freed_ns != FOREVER) & (age >= _MIN_AGE) & (together < _MIN_TOGETHER)
    return kept


def _find_peaks(live: list[int], kept: Bool) -> list[tuple[int, int, int]]:
    min_swing = _MIN_SWING_RATIO * max(live, default=0)
    if min_swing <= 0:
        return []
    turns: list[tuple[int, int, int]] = []
    low = high = 0
    rising = True
    peak = begin = 0
    for position, value in enumerate(live):
        if rising:
            if value < live[low]:
                low = position
            if value > live[high] or high < low:
                high = position
            if live[high] - value >= min_swing and live[high] - live[low] >= min_swing:
                begin, peak, rising, low = low, high, False, position
        else:
            if value < live[low]:
                low = position
            if value - live[low] >= min_swing:
                turns.append((begin, peak, low + 1))
                rising, high = True, position
    if not rising:
        turns.append((begin, peak, low + 1))
    return [(_skip_plateau(first, top, kept), top, end) for first, top, end in turns]


def _skip_plateau(first: int, top: int, kept: Bool) -> int:
    """Return the first kept block from a low on: what is allocated before is of no pass."""
    inside = np.flatnonzero(kept[first:top])
    return first + int(inside[0]) if len(inside) else first
