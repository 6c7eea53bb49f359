"""Differences of two clocks that are worth trying: where those of ends of equal signatures pile up."""

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks.table import Floats
from zprof.analysis.time.matching.overlap import Line

_MOST_VOTES = 300_000
_CANDIDATES = 6
_LEAST_WIDTH_NS = 10_000.0
_END_SHARE = 0.25
_FEWEST_VOTES = 3
#: A sharp pile of this share of the rows needs no wider ones beside it.
_SHARP_SHARE = 0.8


def piles(fixed: Line, moved: Line) -> list[float]:
    """Where the differences of ends of equal signatures pile up, the highest piles first."""
    left, right = _votes(fixed, moved)
    votes = np.sort(moved.end[right] - fixed.end[left])
    if not len(votes):
        return []
    lengths = np.concatenate((fixed.end - fixed.start, moved.end - moved.start))
    wide = max(_LEAST_WIDTH_NS, _END_SHARE * float(np.quantile(lengths, 0.25)))
    sharp = _highest(votes, _LEAST_WIDTH_NS)
    if len(sharp) and sharp[0][1] >= _SHARP_SHARE * min(fixed.sync.sum(), moved.sync.sum()):
        return [middle for middle, height in sharp if height > sharp[0][1] / 2]
    return [middle for middle, _ in [*sharp, *_highest(votes, wide)]]


def _highest(votes: Floats, width: float) -> list[tuple[float, int]]:
    """Middle and height of the highest piles of a width: narrow ones are sharp, wide ones take scatter."""
    height = np.searchsorted(votes, votes + width, side="right") - np.arange(len(votes))
    found: list[tuple[float, int]] = []
    for index in np.argsort(-height, kind="stable"):
        if len(found) >= _CANDIDATES or height[index] < _FEWEST_VOTES:
            break
        middle = float(np.median(votes[index : index + height[index]]))
        if all(abs(middle - other) > width for other, _ in found):
            found.append((middle, int(height[index])))
    return found


def _votes(fixed: Line, moved: Line) -> tuple[Int64s, Int64s]:
    """All pairs of equal signature, the rarest signatures first, up to a bound."""
    names, left_count = np.unique(fixed.signature[fixed.sync], return_counts=True)
    counts = {int(name): int(count) for name, count in zip(names, left_count, strict=True)}
    mine, right_count = np.unique(moved.signature[moved.sync], return_counts=True)
    shared = sorted(
        (counts[int(s)] * int(n), int(s)) for s, n in zip(mine, right_count, strict=True) if int(s) in counts
    )
    lefts, rights, total = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)], 0
    for product, signature in shared:
        left = np.flatnonzero((fixed.signature == signature) & fixed.sync)
        right = np.flatnonzero((moved.signature == signature) & moved.sync)
        if total + product > _MOST_VOTES:
            if total:
                break
            keep = max(1, _MOST_VOTES // len(right))
            middle = max(0, (len(left) - keep) // 2)
            left = left[middle : middle + keep]
        total += len(left) * len(right)
        lefts.append(np.repeat(left, len(right)))
        rights.append(np.tile(right, len(left)))
    return np.concatenate(lefts), np.concatenate(rights)
