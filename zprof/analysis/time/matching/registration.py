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
from zprof.analysis.time.matching.piles import piles

#: The least share of the rows in the common window that must find their partner.
_LEAST_SCORE = 0.8
_LEAST_SCORE_OF_RIVALS = 0.5
#: Fewer pairs than this prove nothing where nobody vouches for the clocks.
_FEWEST_PAIRS = 3
#: Another place counts as equally good from this share of the best one's pairs on ...
_RIVAL = 0.25
#: ... unless its ends lie this many times further apart.
_SHARPER = 4.0
#: Clocks of different hosts are roughly right, those of one host almost: the smallest difference wins where
#: it is at most this, and every other one this many times larger.
_ROUGHLY_NS = 10_000_000.0
_ALMOST_NS = 100_000.0
_FAR = 10.0
#: A place that leaves this much more of the common window over is no rival by clocks alone.
_WORSE = 0.1
#: Without a sharper look than others a place may leave this share of its rows over.
_LEFT_OVER = 0.1
#: Share of the pairs whose marked steps must have one number.
_SAME_STEPS = 0.98
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
    marked = bool((fixed.step >= 0).any() and (moved.step >= 0).any())
    fits = _distinct([_fit(fixed, moved, _at(offset)) for offset in _places(fixed, moved, hint)])
    fewest = 1 if marked or hint.one_host else _FEWEST_PAIRS
    fits = [fit for fit in fits if _worth_a_look(fit, fewest) and _same_steps(fit, fixed, moved)]
    chosen = _decided(fits, hint)
    return None if chosen is None else chosen.partner


def _places(fixed: Line, moved: Line, hint: Hint) -> list[float]:
    """Differences of the clocks that are worth trying."""
    stepped = _by_steps(fixed, moved)
    return [
        *([0.0] if hint.one_origin else []),
        *([] if stepped is None else [stepped]),
        *piles(fixed, moved),
    ]


def _same_steps(fit: Fit, fixed: Line, moved: Line) -> bool:
    """Whether what was launched in marked steps lies in steps of one number on both ranks."""
    right = np.flatnonzero(fit.partner >= 0)
    here, there = fixed.step[fit.partner[right]], moved.step[right]
    known = (here >= 0) & (there >= 0)
    return not known.any() or float((here == there)[known].mean()) >= _SAME_STEPS


def _distinct(fits: Sequence[Fit]) -> list[Fit]:
    found: list[Fit] = []
    for fit in fits:
        if not any(_same(fit, other) for other in found):
            found.append(fit)
    return found


def _good(fit: Fit, fewest: int) -> bool:
    return fit.count >= fewest and fit.score >= _LEAST_SCORE


def _worth_a_look(fit: Fit, fewest: int) -> bool:
    """What lacks many rows may still be the place: its ends tell."""
    return fit.count >= fewest and fit.score >= _LEAST_SCORE_OF_RIVALS


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


def _same(one: Fit, other: Fit) -> bool:
    both = (one.partner >= 0) & (other.partner >= 0)
    return bool(both.any() and (one.partner[both] == other.partner[both]).all())


def _decided(fits: Sequence[Fit], hint: Hint) -> Fit | None:
    """The only place that times allow, the one whose ends agree best, or the one that clocks make likely."""
    if not fits:
        return None
    most = max(fit.count for fit in fits)
    rivals = [fit for fit in fits if fit.count >= _RIVAL * most]
    sharpest = min(rivals, key=lambda fit: fit.spread_ns)
    others = [fit for fit in rivals if fit is not sharpest]
    if others and all(fit.spread_ns > _SHARPER * max(sharpest.spread_ns, 1.0) for fit in others):
        return sharpest
    if not others:
        return sharpest if _complete(sharpest) else None
    nearest = _near(rivals, _ALMOST_NS if hint.one_host else _ROUGHLY_NS) if hint.one_origin else None
    return nearest if nearest is not None and _complete(nearest) else None


def _complete(fit: Fit) -> bool:
    """Whether at most one row of the common window, or a tenth, is left over."""
    left_over = fit.count / fit.score - fit.count if fit.score else np.inf
    return left_over <= max(1.5, _LEFT_OVER * fit.count)


def _near(fits: Sequence[Fit], near_ns: float) -> Fit | None:
    """The one fit near no difference at all, of those that leave about as few rows over as the best."""
    best = max(fit.score for fit in fits)
    nearest, *others = sorted(
        (fit for fit in fits if fit.score >= best - _WORSE), key=lambda fit: abs(fit.offset)
    )
    told_apart = all(abs(fit.offset) >= _FAR * near_ns for fit in others)
    return nearest if abs(nearest.offset) <= near_ns and told_apart else None
