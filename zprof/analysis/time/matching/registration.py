"""Match one rank's collectives to another's by order and time, if their orders differ.

The only unknown is the difference between the two clocks. It is measured (pings, other groups), derived from
marked steps, or voted for: end differences of equal signatures cluster at the true offset. A periodic program
also has clusters at multiples of the period; the tie is broken by clearly fewer contradictions, a sharper
cluster, a shared host clock, or the smallest offset. Otherwise nothing is matched.

A lost event only leaves one row without a partner: rows that only one rank has between two pairs count as
lost, not as a contradiction.

Both ranks are inside a collective during its transfer, and a rank's collectives in one group do not overlap.
So two rows with equal signatures that overlap by at least half of the shorter row are the same collective,
and different collectives hardly overlap. A row with two such partners is matched by its order between certain
pairs, or not at all.
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Floats, Mask
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks import DRIFT_SPAN_NS, fit_slope
from zprof.analysis.time.matching.lanes import ALONE, ClockDifference, ClockHint

_MIN_OVERLAP_SHARE = 0.5
#: Maximum tolerance for clock uncertainty: this share of the shorter row plus this length.
_TOLERANCE_SHARE = 0.25
_TOLERANCE_NS = 1_000.0
#: Maximum number of overlapping partners considered per row.
_MAX_PARTNERS = 32
#: Minimum share of rows with a partner, among rows in the common window that were not lost.
_MIN_SCORE = 0.8
#: Minimum share of rows with a partner, among all rows in the common window.
_MIN_RIVAL_SCORE = 0.5
#: Minimum number of pairs without other evidence about the clocks.
_MIN_PAIRS = 3
#: Another offset is a rival if it has at least this share of the best offset's pairs ...
_RIVAL_RATIO = 0.25
#: ... unless its ends have this many times the spread, ...
_SHARPER_FACTOR = 4.0
#: ... or unless it is worse by this many standard deviations, in contradictions and in end spread.
_MIN_SIGMAS = 4.0
#: Standard error of the log ratio of two median deviations, times the root of the number of values (1.17 for
#: a single median deviation of normally distributed values).
_SPREAD_ERROR = 1.65
#: Clocks of different hosts are roughly synchronized, clocks of one host almost exactly: the smallest
#: difference wins if it is at most this, and all others are larger by the factor below.
_MAX_HOST_DIFFERENCE_NS = 10_000_000.0
_MAX_SAME_HOST_DIFFERENCE_NS = 100_000.0
_FAR_FACTOR = 10.0
#: An offset that leaves this much more of the common window unpaired is not chosen by clocks alone.
_MAX_WORSE_SCORE = 0.1
#: Maximum share of unpaired rows that both ranks have, for an offset without the sharpest ends.
_MAX_CONTRADICTING_RATIO = 0.1
#: Maximum share of pairs with different marked step numbers.
_MAX_DIFFERENT_STEPS = 0.02
_ROUNDS = 2
_MAX_VOTES = 300_000
_MAX_CANDIDATES = 6
_MIN_WIDTH_NS = 10_000.0
_END_SHARE = 0.25
_MIN_VOTES = 3
#: No wider clusters are searched after a narrow cluster with this share of the rows.
_SHARP_SHARE = 0.8


class LaneRows(Struct, frozen=True, kw_only=True):
    """One rank's rows in a lane, in order."""

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
    """Mark rows that overlap the row at the same position by at least ``share`` of the shorter row."""
    shorter = np.minimum(first.end - first.start, second.end - second.start)
    shared = np.minimum(first.end, second.end) - np.maximum(first.start, second.start)
    tolerance = np.minimum(uncertainty_ns, _TOLERANCE_SHARE * shorter + _TOLERANCE_NS)
    return shared >= share * shorter - tolerance


def pair_rows(fixed: LaneRows, moved: LaneRows, uncertainty_ns: float) -> Int64s:
    """Return, for each row of ``moved``, its row of ``fixed``; -1 if there is none or it is uncertain."""
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
    possible = set(zip(left.tolist(), right.tolist(), strict=True))
    # Certain pairs: mutual only candidates in agreeing order.
    is_only = np.bincount(left, minlength=len(fixed))[left] == 1
    is_only &= np.bincount(right, minlength=len(moved))[right] == 1
    left, right = left[is_only], right[is_only]
    order = np.argsort(right)
    left, right = left[order], right[order]
    if len(left):
        below = np.maximum.accumulate(left) == left
        above = np.minimum.accumulate(left[::-1])[::-1] == left
        left, right = left[below & above], right[below & above]
    partner = np.full(len(moved), ALONE, dtype=np.int64)
    partner[right] = left
    return _fill_between(partner, fixed, moved, possible)


def _take_rows(rank_rows: LaneRows, rows: Int64s) -> LaneRows:
    return LaneRows(
        signature=rank_rows.signature[rows],
        start=rank_rows.start[rows],
        end=rank_rows.end[rows],
        step=rank_rows.step[rows],
        sync=rank_rows.sync[rows],
    )


def _fill_between(
    partner: Int64s, fixed: LaneRows, moved: LaneRows, possible: set[tuple[int, int]]
) -> Int64s:
    """Pair the rows between certain pairs by order, if both ranks have equally many rows there."""
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


class OffsetFit(Struct, frozen=True, kw_only=True):
    """Result for one offset: each row's partner, and the quality of the fit.

    In the common window: ``score``: share of all rows that are paired; ``contradicting``: number of rows that
    lost events do not explain: both ranks have them between two pairs, but they do not pair, or pair with a
    row of another step. ``spread_ns``: median deviation of the end differences. ``different_steps_ratio``:
    share of pairs with different steps, among pairs with known marked steps.
    """

    partner: Int64s
    offset: float
    count: int
    score: float
    contradicting: int
    spread_ns: float
    different_steps_ratio: float


def register_rows(fixed: LaneRows, moved: LaneRows, hint: ClockHint) -> Int64s | None:
    """Return, for each row of ``moved``, its row of ``fixed``, -1 if there is none; None if no offset
    fits.
    """
    if not len(fixed) or not len(moved):
        return None
    if hint.measured is not None:
        fit = _fit_offset(fixed, moved, hint.measured, rounds=0)
        paired_share = fit.count / max(1, fit.count + fit.contradicting)
        if _is_plausible(fit, 1) and paired_share >= _MIN_SCORE:
            return fit.partner
    has_marked_steps = bool((fixed.step >= 0).any() and (moved.step >= 0).any())
    fits: list[OffsetFit] = []
    for offset in _list_offsets(fixed, moved, hint):
        fit = _fit_offset(fixed, moved, ClockDifference(offset=offset, drift=0.0, uncertainty_ns=0.0))
        if not any(_is_same_fit(fit, other) for other in fits):
            fits.append(fit)
    min_pairs = 1 if has_marked_steps or hint.one_host else _MIN_PAIRS
    fits = [
        fit
        for fit in fits
        if _is_plausible(fit, min_pairs) and fit.different_steps_ratio <= _MAX_DIFFERENT_STEPS
    ]
    best_fit = _choose_fit(fits, hint)
    return None if best_fit is None else best_fit.partner


def _list_offsets(fixed: LaneRows, moved: LaneRows, hint: ClockHint) -> list[float]:
    """Return the candidate clock differences."""
    # The clock difference from marked steps with equal rows on both ranks.
    end_differences: list[Floats] = []
    for step in np.intersect1d(fixed.step, moved.step):
        left, right = np.flatnonzero(fixed.step == step), np.flatnonzero(moved.step == step)
        is_equal = len(left) == len(right) and (fixed.signature[left] == moved.signature[right]).all()
        if step >= 0 and is_equal:
            sync = moved.sync[right]
            end_differences.append(moved.end[right[sync]] - fixed.end[left[sync]])
    votes = np.concatenate(end_differences) if end_differences else np.empty(0)
    offset_by_steps = float(np.median(votes)) if len(votes) else None
    return [
        *([0.0] if hint.one_origin else []),
        *([] if offset_by_steps is None else [offset_by_steps]),
        *find_offset_candidates(fixed, moved),
    ]


def _is_plausible(fit: OffsetFit, min_pairs: int) -> bool:
    """Return True if a fit is a candidate; with agreeing ends, it may be right despite many unmatched
    rows.
    """
    return fit.count >= min_pairs and fit.score >= _MIN_RIVAL_SCORE


def _fit_offset(fixed: LaneRows, moved: LaneRows, clock: ClockDifference, rounds: int = _ROUNDS) -> OffsetFit:
    """Pair the rows at an offset, then again at the offset estimated from these pairs."""
    offset, drift, uncertainty_ns = clock.offset, clock.drift, clock.uncertainty_ns
    partner = pair_rows(fixed, moved.moved(offset, drift), uncertainty_ns)
    for _ in range(rounds):
        paired = np.flatnonzero((partner >= 0) & moved.sync)
        if not len(paired):
            break
        offset, drift = _refine_offset(fixed, moved, partner, paired)
        partner = pair_rows(fixed, moved.moved(offset, drift), uncertainty_ns)
    placed = moved.moved(offset, drift)
    paired = np.flatnonzero(partner >= 0)
    difference = placed.end[paired] - fixed.end[partner[paired]]
    spread = float(np.median(np.abs(difference - np.median(difference)))) if len(paired) else np.inf
    # the window recorded by both ranks
    low, high = max(fixed.start.min(), placed.start.min()), min(fixed.end.max(), placed.end.max())
    common = [(rows.end > low) & (rows.start < high) for rows in (fixed, placed)]
    steps = np.column_stack((fixed.step[partner[paired]], moved.step[paired]))
    steps = steps[(steps >= 0).all(axis=1)]
    different_steps = int((steps[:, 0] != steps[:, 1]).sum())
    return OffsetFit(
        partner=partner,
        offset=offset,
        count=len(paired),
        score=len(paired) / max(1, *(int(rows.sum()) for rows in common)),
        contradicting=_count_contradicting(partner, *common) + different_steps,
        spread_ns=spread,
        different_steps_ratio=different_steps / max(1, len(steps)),
    )


def _refine_offset(fixed: LaneRows, moved: LaneRows, partner: Int64s, paired: Int64s) -> tuple[float, float]:
    """Estimate offset and drift from the shorter half of the pairs; only a long window shows drift."""
    partners = partner[paired]
    shorter = np.minimum(moved.end[paired] - moved.start[paired], fixed.end[partners] - fixed.start[partners])
    paired = paired[shorter <= np.median(shorter)]
    difference = moved.end[paired] - fixed.end[partner[paired]]
    long = float(np.ptp(moved.end[paired])) > DRIFT_SPAN_NS
    drift = fit_slope(difference, moved.end[paired]) if long and len(paired) > 3 else 0.0
    return float(np.median(difference - drift * moved.end[paired])), drift


def _count_contradicting(partner: Int64s, is_fixed_common: Mask, is_moved_common: Mask) -> int:
    """Count unpaired rows between pairs where the other rank also has unpaired rows.

    Before the first and after the last pair, only rows in the common window count. Between two pairs all rows
    count: a row with a time elsewhere has a wrong time.
    """
    paired = np.flatnonzero(partner >= 0)
    counts = []
    for pairs, is_common in ((np.sort(partner[paired]), is_fixed_common), (paired, is_moved_common)):
        is_unpaired = is_common.copy()
        if len(pairs):
            is_unpaired[pairs[0] : pairs[-1]] = True
        is_unpaired[pairs] = False
        gap = np.searchsorted(pairs, np.flatnonzero(is_unpaired))
        counts.append(np.bincount(gap, minlength=len(pairs) + 1))
    return int(np.minimum(*counts).sum())


def _is_same_fit(one: OffsetFit, other: OffsetFit) -> bool:
    both = (one.partner >= 0) & (other.partner >= 0)
    return bool(both.any() and (one.partner[both] == other.partner[both]).all())


def _choose_fit(fits: Sequence[OffsetFit], hint: ClockHint) -> OffsetFit | None:
    """Return the only fit, the fit with the best agreeing ends, or the fit nearest to a zero offset; else
    None.
    """
    if not fits:
        return None
    max_count = max(fit.count for fit in fits)
    rivals = [fit for fit in fits if fit.count >= _RIVAL_RATIO * max_count]
    sharpest = min(rivals, key=lambda fit: fit.spread_ns)
    others = [fit for fit in rivals if fit is not sharpest]
    if others and all(fit.spread_ns > _SHARPER_FACTOR * max(sharpest.spread_ns, 1.0) for fit in others):
        return sharpest
    rivals = [fit for fit in rivals if not any(_is_clearly_better(other, fit) for other in rivals)]
    if len(rivals) == 1:
        return rivals[0] if _is_complete(rivals[0]) else None
    if not hint.one_origin:
        return None
    # The only fit near an offset of 0, among fits with nearly the best score.
    near_ns = _MAX_SAME_HOST_DIFFERENCE_NS if hint.one_host else _MAX_HOST_DIFFERENCE_NS
    min_score = max(fit.score for fit in rivals) - _MAX_WORSE_SCORE
    nearest, *others = sorted(
        (fit for fit in rivals if fit.score >= min_score), key=lambda fit: abs(fit.offset)
    )
    is_only = abs(nearest.offset) <= near_ns and all(
        abs(fit.offset) >= _FAR_FACTOR * near_ns for fit in others
    )
    return nearest if is_only and _is_complete(nearest) else None


def _is_clearly_better(fit: OffsetFit, other: OffsetFit) -> bool:
    """Return True if chance does not explain the other offset's additional contradictions and end spread.

    At the true offset, only lost rows are unpaired, and ends differ only by the spread of a collective's end;
    at a wrong offset, they also differ by the variation of the time between collectives.
    """
    # Excess of the end spread of ``other`` over that of ``fit``, in standard deviations.
    ratio = max(other.spread_ns, 1.0) / max(fit.spread_ns, 1.0)
    spread_sigmas = math.log(ratio) * math.sqrt(min(fit.count, other.count)) / _SPREAD_ERROR
    # Excess of the contradictions of ``other`` over those of ``fit``, in standard deviations: the root of the
    # likelihood ratio of two Poisson counts with two rates and with one. A larger common window has more
    # contradictions, so more is worse only without more pairs.
    mine, others = fit.contradicting, other.contradicting
    count_sigmas = 0.0
    if mine != others and not (others > mine and fit.count < other.count):
        ratio = sum(count * math.log(2 * count / (mine + others)) for count in (mine, others) if count)
        count_sigmas = math.copysign(math.sqrt(2 * ratio), others - mine)
    return sum(sigmas * abs(sigmas) for sigmas in (count_sigmas, spread_sigmas)) > _MIN_SIGMAS**2


def _is_complete(fit: OffsetFit) -> bool:
    """Return True if at most one row, or a tenth of the rows, contradicts the pairs; lost rows do not
    count.
    """
    return fit.contradicting <= max(1.5, _MAX_CONTRADICTING_RATIO * fit.count)


def find_offset_candidates(fixed: LaneRows, moved: LaneRows) -> list[float]:
    """Return the cluster centres of end differences between equal signatures, largest cluster first."""
    left, right = _pair_signatures(fixed, moved)
    votes = np.sort(moved.end[right] - fixed.end[left])
    if not len(votes):
        return []
    lengths = np.concatenate((fixed.end - fixed.start, moved.end - moved.start))
    wide = max(_MIN_WIDTH_NS, _END_SHARE * float(np.quantile(lengths, 0.25)))
    sharp = _find_largest_clusters(votes, _MIN_WIDTH_NS)
    if len(sharp) and sharp[0][1] >= _SHARP_SHARE * min(fixed.sync.sum(), moved.sync.sum()):
        return [middle for middle, height in sharp if height > sharp[0][1] / 2]
    return [middle for middle, _ in [*sharp, *_find_largest_clusters(votes, wide)]]


def _find_largest_clusters(votes: Floats, width: float) -> list[tuple[float, int]]:
    """Return centre and size of the largest clusters of a given width; wide clusters tolerate scatter."""
    height = np.searchsorted(votes, votes + width, side="right") - np.arange(len(votes))
    clusters: list[tuple[float, int]] = []
    for index in np.argsort(-height, kind="stable"):
        if len(clusters) >= _MAX_CANDIDATES or height[index] < _MIN_VOTES:
            break
        middle = float(np.median(votes[index : index + height[index]]))
        if all(abs(middle - other) > width for other, _ in clusters):
            clusters.append((middle, int(height[index])))
    return clusters


def _pair_signatures(fixed: LaneRows, moved: LaneRows) -> tuple[Int64s, Int64s]:
    """Return pairs with equal signatures, rarest signatures first, up to ``_MAX_VOTES``."""
    names, left_count = np.unique(fixed.signature[fixed.sync], return_counts=True)
    counts = {int(name): int(count) for name, count in zip(names, left_count, strict=True)}
    moved_names, right_count = np.unique(moved.signature[moved.sync], return_counts=True)
    shared = sorted(
        (counts[int(s)] * int(n), int(s))
        for s, n in zip(moved_names, right_count, strict=True)
        if int(s) in counts
    )
    lefts, rights, total = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)], 0
    for product, signature in shared:
        left = np.flatnonzero((fixed.signature == signature) & fixed.sync)
        right = np.flatnonzero((moved.signature == signature) & moved.sync)
        if total + product > _MAX_VOTES:
            if total:
                break
            keep = max(1, _MAX_VOTES // len(right))
            middle = max(0, (len(left) - keep) // 2)
            left = left[middle : middle + keep]
        total += len(left) * len(right)
        lefts.append(np.repeat(left, len(right)))
        rights.append(np.tile(right, len(left)))
    return np.concatenate(lefts), np.concatenate(rights)
