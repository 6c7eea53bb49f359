"""Pair the collectives of two ranks at a given difference of their clocks.

Both ranks are inside a collective during its transfer, and a rank's collectives of one group do not overlap.
So two rows of equal signature that overlap by at least half of the shorter one are the same collective, and
different collectives overlap hardly at all. A row with two such partners is matched by the order between
certain pairs, or not at all.
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Floats, Mask
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.matching.lanes import ALONE

_MIN_OVERLAP_SHARE = 0.5
#: Tolerance for the clock uncertainty: at most this share of the shorter row plus this length.
_TOLERANCE_SHARE = 0.25
_TOLERANCE_NS = 1_000.0
#: Maximum number of overlapping partners that are considered per row.
_MAX_PARTNERS = 32


class LaneRows(Struct, frozen=True, kw_only=True):
    """Rows of one rank in a lane, in its order."""

    signature: Int64s
    start: Floats
    end: Floats
    step: Int64s
    sync: Mask

    def __len__(self) -> int:
        return len(self.start)

    def moved(self, offset: float, drift: float = 0.0) -> "LaneRows":
        """Return the same rows on another clock."""
        return LaneRows(
            signature=self.signature,
            start=self.start * (1 - drift) - offset,
            end=self.end * (1 - drift) - offset,
            step=self.step,
            sync=self.sync,
        )


def overlaps_enough(
    first: LaneRows, second: LaneRows, uncertainty_ns: float | Floats, share: float = _MIN_OVERLAP_SHARE
) -> Mask:
    """Mark rows that overlap the row at the same position by at least ``share`` of the shorter."""
    shorter = np.minimum(first.end - first.start, second.end - second.start)
    shared = np.minimum(first.end, second.end) - np.maximum(first.start, second.start)
    tolerance = np.minimum(uncertainty_ns, _TOLERANCE_SHARE * shorter + _TOLERANCE_NS)
    enough: Mask = shared >= share * shorter - tolerance
    return enough


def pair_rows(fixed: LaneRows, moved: LaneRows, uncertainty_ns: float) -> Int64s:
    """Return for each row of ``moved`` its row of ``fixed``; -1 if there is none or it is uncertain."""
    order = np.argsort(fixed.start, kind="stable")
    max_end = np.maximum.accumulate(fixed.end[order])
    low = np.searchsorted(max_end, moved.start - _TOLERANCE_NS, side="left")
    high = np.searchsorted(fixed.start[order], moved.end + _TOLERANCE_NS, side="right")
    count = np.clip(high - low, 0, _MAX_PARTNERS)
    right = np.repeat(np.arange(len(moved)), count)
    within = np.arange(len(right)) - np.repeat(np.cumsum(count) - count, count)
    left = order[np.repeat(low, count) + within]
    is_same = fixed.signature[left] == moved.signature[right]
    left, right = left[is_same], right[is_same]
    enough = overlaps_enough(_take_rows(fixed, left), _take_rows(moved, right), uncertainty_ns)
    left, right = left[enough], right[enough]
    partner = _find_certain(left, right, len(fixed), len(moved))
    return _fill_between(partner, fixed, moved, set(zip(left.tolist(), right.tolist(), strict=True)))


def _take_rows(rank_rows: LaneRows, rows: Int64s) -> LaneRows:
    return LaneRows(
        signature=rank_rows.signature[rows],
        start=rank_rows.start[rows],
        end=rank_rows.end[rows],
        step=rank_rows.step[rows],
        sync=rank_rows.sync[rows],
    )


def _find_certain(left: Int64s, right: Int64s, fixed: int, moved: int) -> Int64s:
    """Return the partners of rows whose only candidate has no other candidate and whose order agrees."""
    is_only = (np.bincount(left, minlength=fixed)[left] == 1) & (
        np.bincount(right, minlength=moved)[right] == 1
    )
    left, right = left[is_only], right[is_only]
    order = np.argsort(right)
    left, right = left[order], right[order]
    if len(left):
        below = np.maximum.accumulate(left) == left
        above = np.minimum.accumulate(left[::-1])[::-1] == left
        left, right = left[below & above], right[below & above]
    partner = np.full(moved, ALONE, dtype=np.int64)
    partner[right] = left
    return partner


def _fill_between(
    partner: Int64s, fixed: LaneRows, moved: LaneRows, possible: set[tuple[int, int]]
) -> Int64s:
    """Pair the rows between certain pairs by order, if both ranks have equally many."""
    certain = np.flatnonzero(partner >= 0)
    rights = np.concatenate(([-1], certain, [len(moved)]))
    lefts = np.concatenate(([-1], partner[certain], [len(fixed)]))
    fillable = (np.diff(rights) > 1) & (np.diff(rights) == np.diff(lefts))
    filled = partner.copy()
    for index in np.flatnonzero(fillable):
        left = range(int(lefts[index]) + 1, int(lefts[index + 1]))
        right = range(int(rights[index]) + 1, int(rights[index + 1]))
        if all(pair in possible for pair in zip(left, right, strict=True)):
            filled[right.start : right.stop] = np.arange(left.start, left.stop)
    return filled
