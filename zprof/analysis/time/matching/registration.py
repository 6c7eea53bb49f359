"""Finds where one rank's collectives lie on another's, by order and times, when the orders alone differ.

The only unknown is the difference of the two clocks.  It is measured (pings, other groups), or the marked
steps give it, or it is voted for: the differences of ends of equal signatures pile up at the true one.  A
periodic program piles up at whole periods too; then the sharper pile decides, one host's common clock, or
clocks that are roughly right.  Where none decides nothing is matched.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks.bounds import DRIFT_SPAN_NS
from zprof.analysis.time.clocks.drift import slope
from zprof.analysis.time.clocks.table import Floats
from zprof.analysis.time.matching.overlap import Line, pairs

#: The least share of the rows in the common window that must find their partner.
_LEAST_SCORE = 0.8
#: Fewer pairs than this prove nothing where nobody vouches for the clocks.
_FEWEST_PAIRS = 3
#: Another place counts as equally good from this share of the best one's pairs on ...
_RIVAL = 0.6
#: ... unless its ends lie this many times further apart.
_SHARPER = 4.0
#: Clocks are roughly right: the smallest difference wins where the next is this many times larger.
_ROUGHLY = 4.0
_MOST_VOTES = 300_000
_CANDIDATES = 8
_LEAST_WIDTH_NS = 10_000.0
_END_SHARE = 0.25
_ROUNDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How far one clock is ahead of another, how fast that grows, and within what."""

    offset: float
    drift: float
    doubt_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What is known of the difference of two clocks.

    ``one_host``: it is 0 by all experience.  ``one_origin``: both count from the same instant, so that a
    small difference is likelier than a large one.
    """

    measured: Measured | None = None
    one_host: bool = False
    one_origin: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A place that was tried: partners of each row, and how well they fit."""

    partner: Int64s
    offset: float
    count: int
    score: float
    spread_ns: float


def register(fixed: Line, moved: Line, hint: Hint) -> Int64s | None:
    """For each row of ``moved`` its row of ``fixed``, -1 where there is none; None where nothing fits."""
    if not len(fixed) or not len(moved):
        return None
    if hint.measured is not None:
        fit = _fit(fixed, moved, hint.measured, rounds=0)
        if _good(fit, 1):
            return fit.partner
    stepped = _by_steps(fixed, moved)
    if stepped is not None:
        fit = _fit(fixed, moved, _at(stepped))
        if _good(fit, 1):
            return fit.partner
    return _voted(fixed, moved, hint)


def _good(fit: Fit, fewest: int) -> bool:
    return fit.count >= fewest and fit.score >= _LEAST_SCORE


def _at(offset: float) -> Measured:
    return Measured(offset=offset, drift=0.0, doubt_ns=0.0)


def _fit(fixed: Line, moved: Line, place: Measured, rounds: int = _ROUNDS) -> Fit:
    """Pair at an offset, and at what the pairs then say of it."""
    offset, drift, doubt_ns = place.offset, place.drift, place.doubt_ns
    partner = pairs(fixed, moved.moved(offset, drift), doubt_ns)
    for _ in range(rounds):
        mine = np.flatnonzero((partner >= 0) & moved.sync)
        if not len(mine):
            break
        offset, drift = _refined(fixed, moved, partner, mine)
        partner = pairs(fixed, moved.moved(offset, drift), doubt_ns)
    placed = moved.moved(offset, drift)
    mine = np.flatnonzero(partner >= 0)
    apart = placed.end[mine] - fixed.end[partner[mine]]
    spread = float(np.median(np.abs(apart - np.median(apart)))) if len(mine) else np.inf
    score = len(mine) / max(1, _common(fixed, placed))
    return Fit(partner=partner, offset=offset, count=len(mine), score=score, spread_ns=spread)


def _refined(fixed: Line, moved: Line, partner: Int64s, mine: Int64s) -> tuple[float, float]:
    """The short half of the pairs votes; a long window shows drift."""
    theirs = partner[mine]
    shorter = np.minimum(moved.end[mine] - moved.start[mine], fixed.end[theirs] - fixed.start[theirs])
    mine = mine[shorter <= np.median(shorter)]
    apart = moved.end[mine] - fixed.end[partner[mine]]
    long = float(np.ptp(moved.end[mine])) > DRIFT_SPAN_NS
    drift = slope(apart, moved.end[mine]) if long and len(mine) > 3 else 0.0
    return float(np.median(apart - drift * moved.end[mine])), drift


def _common(fixed: Line, moved: Line) -> int:
    """Rows in the window that both ranks recorded, of the rank with more of them."""
    low, high = max(fixed.start.min(), moved.start.min()), min(fixed.end.max(), moved.end.max())
    return max(int(((line.end > low) & (line.start < high)).sum()) for line in (fixed, moved))


def _by_steps(fixed: Line, moved: Line) -> float | None:
    """The difference of clocks if steps of one number are the same: from steps whose rows are alike."""
    found: list[Floats] = []
    for step in np.intersect1d(fixed.step, moved.step):
        left, right = np.flatnonzero(fixed.step == step), np.flatnonzero(moved.step == step)
        alike = len(left) == len(right) and (fixed.signature[left] == moved.signature[right]).all()
        if step >= 0 and alike:
            sync = moved.sync[right]
            found.append(moved.end[right[sync]] - fixed.end[left[sync]])
    votes = np.concatenate(found) if found else np.empty(0)
    return float(np.median(votes)) if len(votes) else None


def _voted(fixed: Line, moved: Line, hint: Hint) -> Int64s | None:
    fits = [fit for fit in _tried(fixed, moved, _piles(fixed, moved)) if _good(fit, _FEWEST_PAIRS)]
    if hint.one_origin:
        fits += [
            fit for fit in _tried(fixed, moved, [0.0]) if _good(fit, 1 if hint.one_host else _FEWEST_PAIRS)
        ]
    if not fits:
        return None
    best = max(fits, key=lambda fit: (fit.count, -fit.spread_ns))
    rivals = [fit for fit in fits if fit.count >= _RIVAL * best.count and not _same(fit, best)]
    chosen = _decided(best, rivals, hint)
    return None if chosen is None else chosen.partner


def _tried(fixed: Line, moved: Line, offsets: Sequence[float]) -> list[Fit]:
    return [_fit(fixed, moved, _at(offset)) for offset in offsets]


def _same(one: Fit, other: Fit) -> bool:
    both = (one.partner >= 0) & (other.partner >= 0)
    return bool(both.any() and (one.partner[both] == other.partner[both]).all())


def _decided(best: Fit, rivals: Sequence[Fit], hint: Hint) -> Fit | None:
    everyone = [best, *rivals]
    sharpest = min(everyone, key=lambda fit: fit.spread_ns)
    if all(
        fit.spread_ns > _SHARPER * max(sharpest.spread_ns, 1.0) for fit in everyone if fit is not sharpest
    ):
        return sharpest
    if not hint.one_origin:
        return None
    nearest, *others = sorted(everyone, key=lambda fit: abs(fit.offset))
    if all(abs(fit.offset) >= _ROUGHLY * abs(nearest.offset) for fit in others):
        return nearest
    return None


def _piles(fixed: Line, moved: Line) -> list[float]:
    """Where the differences of ends of equal signatures pile up, the highest piles first."""
    left, right = _votes(fixed, moved)
    votes = np.sort(moved.end[right] - fixed.end[left])
    if not len(votes):
        return []
    lengths = np.concatenate((fixed.end - fixed.start, moved.end - moved.start))
    width = max(_LEAST_WIDTH_NS, _END_SHARE * float(np.quantile(lengths, 0.25)))
    height = np.searchsorted(votes, votes + width, side="right") - np.arange(len(votes))
    found: list[float] = []
    for index in np.argsort(-height, kind="stable"):
        if len(found) >= _CANDIDATES or height[index] < _FEWEST_PAIRS:
            break
        middle = float(np.median(votes[index : index + height[index]]))
        if all(abs(middle - other) > width for other in found):
            found.append(middle)
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
