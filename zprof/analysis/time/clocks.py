"""Convert rank clocks to a common clock, and estimate their offsets from matched collectives.

*Bounds.* No rank leaves a collective before all have entered, so U_ij = min over collectives of e_i - s_j; if
only one side waits (broadcast, reduce, send), only that side is bounded. A cycle of negative length means
that a match or a timestamp is wrong. Times are floats relative to a base per rank, because nanoseconds since
1970 exceed float precision.

*Votes.* Ranks leave a short collective almost at once. Offset: for each rank the weighted median over
collectives of ``e_i - median_j e_j``, with weight 1 / the shortest duration. The ends of a long collective
are spread out (median 334 µs in a 1.6 GB all-gather on MI300X, 3.6 µs for 1 element), so long collectives do
not vote if there are short ones. Drift: the Theil-Sen slope, if a line fits better than a constant.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.columns import Floats, Mask
from zprof.analysis.intervals import Int64s

NO_ROW = -1
#: Tolerated contradiction of bounds: the jitter of a timestamp.
STAMP_JITTER_NS = 5_000
#: Assumed maximum drift between clocks, as a share of the window, if drift is not measured.
_MAX_UNMEASURED_DRIFT = 50e-6
#: Minimum length of a window for measuring drift.
DRIFT_SPAN_NS = 5e9
#: With more ranks than this, all ranks are compared with one rank instead of pairwise.
MAX_ALL_PAIRS = 64
MIN_UNCERTAINTY_NS = 1_000
#: A collective's ends coincide within about this share of its duration.
END_SPREAD_SHARE = 0.05
#: A collective votes if it takes at most this many times as long as the third shortest.
_VOTING_RATIO = 8.0
_REFERENCE_RANKING = 3
_ROUNDS = 3
#: Points per rank for fitting a slope over all their pairs.
_MAX_POINTS = 96
_MIN_POINTS = 4
#: A slope is accepted if it leaves at most this share of the spread.
_MAX_RESIDUAL_RATIO = 0.7
#: Maximum drift of a working clock.
_MAX_DRIFT = 500e-6


class RankClock(Struct, frozen=True, kw_only=True):
    """Linear clock of one rank: common = local - offset - drift * (local - origin)."""

    offset_ns: int = 0
    drift_ppb: float = 0.0
    origin_ns: int = 0

    def common(self, times_ns: Int64s) -> Int64s:
        """Convert the rank's times, of any shape, to the common clock."""
        if not self.drift_ppb:
            return times_ns - self.offset_ns
        drifted: Int64s = np.rint((times_ns - self.origin_ns) * (self.drift_ppb * 1e-9)).astype(np.int64)
        return times_ns - self.offset_ns - drifted

    def local(self, times_ns: Int64s) -> Int64s:
        """Convert common times to the rank's clock, exact to the nanosecond at low drift."""
        moved: Int64s = times_ns + self.offset_ns
        if not self.drift_ppb:
            return moved
        drifted: Int64s = np.rint((moved - self.origin_ns) * (self.drift_ppb * 1e-9)).astype(np.int64)
        return moved + drifted


class Clocks(Struct, frozen=True, kw_only=True):
    """Clocks of all aligned ranks; other ranks are not in ``of_rank``.

    ``uncertainty_ns``: the worst rank's uncertainty; ``rank_uncertainty_ns``: each rank's. ``interval_ns``:
    the range of offsets allowed by causality alone.
    """

    of_rank: Mapping[int, RankClock]
    uncertainty_ns: int
    method: str
    rank_uncertainty_ns: Mapping[int, int] = field(default_factory=dict)
    interval_ns: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def offsets_ns(self) -> dict[int, int]:
        """Offset by rank."""
        return {rank: clock.offset_ns for rank, clock in self.of_rank.items()}

    def of(self, rank: int) -> RankClock:
        """Return a rank's clock; it keeps local time if the rank could not be aligned."""
        return self.of_rank.get(rank, _UNMOVED)


_UNMOVED = RankClock()


class ClockTable(Struct, frozen=True, kw_only=True):
    """Collectives of one group.

    ``start`` and ``end`` have shape ranks x instances, NaN if a rank has no event. ``sync``: no rank leaves
    before all have entered. ``first``: the group's first instance on some rank, which includes profiler
    start-up. ``source``: the row that all others wait for (a broadcast's root, a sender). ``sink``: the row
    that waits for all others (a reduce's root). Both are -1 without such a row.
    """

    ranks: tuple[int, ...]
    start: Floats
    end: Floats
    sync: Mask
    first: Mask
    source: Int64s
    sink: Int64s

    @property
    def present(self) -> Mask:
        """Mask of shape ranks x instances: the rank has an event."""
        return ~np.isnan(self.start)

    @property
    def span_ns(self) -> float:
        """Time from first start to last end, maximum over ranks."""
        if not self.start.size or not self.present.any():
            return 0.0
        first = np.where(self.present, self.start, np.inf).min(axis=1)
        last = np.where(self.present, self.end, -np.inf).max(axis=1)
        return float((last - first).max())

    def of_ranks(self, keep: Mask) -> "ClockTable":
        """Return the table restricted to some ranks."""
        position = np.where(keep, np.cumsum(keep) - 1, NO_ROW)
        moved = {
            name: np.where(getattr(self, name) >= 0, position[getattr(self, name)], NO_ROW)
            for name in ("source", "sink")
        }
        return replace(
            self,
            ranks=tuple(rank for rank, is_kept in zip(self.ranks, keep, strict=True) if is_kept),
            start=self.start[keep],
            end=self.end[keep],
            **moved,
        )

    def of_instances(self, keep: Mask) -> "ClockTable":
        """Return the table restricted to some instances."""
        columns = {name: getattr(self, name)[keep] for name in ("sync", "first", "source", "sink")}
        return replace(self, start=self.start[:, keep], end=self.end[:, keep], **columns)

    def moved(self, offset: Floats, drift: Floats) -> "ClockTable":
        """Return the table with these offsets and drifts applied."""
        return replace(
            self,
            start=self.start * (1 - drift[:, None]) - offset[:, None],
            end=self.end * (1 - drift[:, None]) - offset[:, None],
        )


def make_ping_table(
    pings: Mapping[int, Mapping[int, tuple[int, int]]], base: Mapping[int, int]
) -> ClockTable:
    """Return clock pings as a table: each ping is a collective of all ranks, without profiler start-up."""
    ranks = tuple(sorted(rank for rank, rank_pings in pings.items() if rank_pings))
    names = sorted({name for rank_pings in pings.values() for name in rank_pings})
    times = np.full((2, len(ranks), len(names)), np.nan)
    for row, rank in enumerate(ranks):
        for column, name in enumerate(names):
            if name in pings[rank]:
                times[:, row, column] = [time - base[rank] for time in pings[rank][name]]
    no_rows = np.full(len(names), NO_ROW, dtype=np.int64)
    return ClockTable(
        ranks=ranks,
        start=times[0],
        end=times[1],
        sync=np.ones(len(names), dtype=bool),
        first=np.zeros(len(names), dtype=bool),
        source=no_rows,
        sink=no_rows,
    )


def compute_tolerance(table: ClockTable) -> float:
    """Return the tolerated contradiction between this table's bounds, in ns."""
    return STAMP_JITTER_NS + _MAX_UNMEASURED_DRIFT * min(table.span_ns, DRIFT_SPAN_NS)


def drop_first_collectives(table: ClockTable) -> ClockTable:
    """Return the table without collectives that include profiler start-up, unless none would remain."""
    rest = ~table.first
    return table.of_instances(rest) if rest.any() else table


def compute_upper_bounds(table: ClockTable) -> Floats:
    """Return U, ranks x ranks, inf if unbounded; above MAX_ALL_PAIRS, full syncs bound only row 0's pairs."""
    count = len(table.ranks)
    bounds = np.full((count, count), np.inf)
    np.fill_diagonal(bounds, 0.0)
    if not table.start.shape[1]:
        return bounds
    start = np.where(table.present, table.start, -np.inf)
    end = np.where(table.present, table.end, np.inf)
    if table.sync.any():
        synced_start, synced_end = start[:, table.sync], end[:, table.sync]
        if count > MAX_ALL_PAIRS:
            bounds[0, 1:] = np.minimum(bounds[0, 1:], (synced_end[0] - synced_start[1:]).min(axis=1))
            bounds[1:, 0] = np.minimum(bounds[1:, 0], (synced_end[1:] - synced_start[0]).min(axis=1))
        for row in range(count if count <= MAX_ALL_PAIRS else 0):
            others = np.arange(count) != row
            latest = (synced_end[row] - synced_start[others]).min(axis=1)
            bounds[row, others] = np.minimum(bounds[row, others], latest)
    for root in np.unique(table.source[table.source >= 0]):
        is_from_root = table.source == root
        bound = (end[:, is_from_root] - start[root, is_from_root]).min(axis=1)
        others = np.arange(len(bounds)) != root
        bounds[others, root] = np.minimum(bounds[others, root], bound[others])
    for root in np.unique(table.sink[table.sink >= 0]):
        is_from_root = table.sink == root
        bound = (end[root, is_from_root] - start[:, is_from_root]).min(axis=1)
        others = np.arange(len(bounds)) != root
        bounds[root, others] = np.minimum(bounds[root, others], bound[others])
    return bounds


def close_bounds(bounds: Floats) -> Floats:
    """Tighten the bounds over paths through all other ranks (all-pairs shortest paths)."""
    closed = bounds.copy()
    for through in range(len(closed)):
        np.minimum(closed, closed[:, through, None] + closed[None, through, :], out=closed)
    return closed


def find_bad_pairs(table: ClockTable, slack_ns: float) -> Mask:
    """Mark rank pairs that contradict each other by more than ``slack_ns`` for any clock offsets."""
    bounds = compute_upper_bounds(table)
    bad: Mask = bounds + bounds.T < -slack_ns
    np.fill_diagonal(bad, False)
    return bad


def find_worst_ranks(bad: Mask) -> Mask:
    """Greedily mark a minimal set of ranks that covers all bad pairs, and both ranks of an isolated pair."""
    worst_ranks = np.zeros(len(bad), dtype=bool)
    remaining = bad.copy()
    while remaining.any():
        counts = remaining.sum(axis=1)
        worst = counts == counts.max()
        worst = worst if counts.max() == 1 else np.arange(len(bad)) == int(counts.argmax())
        worst_ranks |= worst
        remaining[worst, :] = False
        remaining[:, worst] = False
    return worst_ranks


def select_votes(table: ClockTable) -> tuple[ClockTable, Floats]:
    """Return the instances that vote on clocks, and each rank's weight; 0 if a rank has no vote."""
    table = drop_first_collectives(table)
    table = table.of_instances(table.sync & (table.present.sum(axis=0) > 1))
    if not table.start.shape[1]:
        return table, np.zeros(table.start.shape)
    # 1 / shortest duration if a rank may vote, else 0.
    present = table.present
    duration = np.where(present, table.end - table.start, np.inf).min(axis=0).clip(min=1.0)
    durations = np.where(present, duration, np.inf)
    reference = np.partition(durations, min(_REFERENCE_RANKING, durations.shape[1]) - 1, axis=1)[
        :, min(_REFERENCE_RANKING, durations.shape[1]) - 1
    ]
    shortest = durations.min(axis=1)
    limit = _VOTING_RATIO * np.where(np.isinf(reference), shortest, reference)
    weights = np.where(present & (durations <= limit[:, None]), 1.0 / duration, 0.0)
    used = np.asarray((weights > 0).any(axis=0), dtype=bool)
    return table.of_instances(used), weights[:, used]


def estimate_offsets(table: ClockTable) -> tuple[Floats, Floats, int]:
    """Return the ranks' offsets and uncertainties, assuming no drift, and the number of votes.

    Offsets are relative to each other; NaN if a rank shares no collective.
    """
    table, weights = select_votes(table)
    if not table.start.shape[1]:
        unknown = np.full(len(table.ranks), np.nan)
        return unknown, unknown, 0
    # Offsets relative to the rank with the most votes, refined against the median of all ranks.
    votes = (weights > 0).sum(axis=1)
    centre = int(votes.argmax())
    offset = weighted_medians(table.end - table.end[centre], weights)
    for _ in range(_ROUNDS - 1):
        ends = table.end - offset[:, None]
        offset = offset + weighted_medians(ends - column_medians(ends), weights)
        offset = offset - offset[centre]
    moved = table.moved(offset, np.zeros(len(offset)))
    # The spread of the votes, at least the expected spread of the shortest transfer's ends.
    residual = np.where(weights > 0, np.abs(moved.end - column_medians(moved.end)), np.nan)
    spread = column_medians(residual.T)
    first_end = np.where(moved.present, moved.end, np.inf).min(axis=0)
    last_start = np.where(moved.present, moved.start, -np.inf).max(axis=0)
    intrinsic = np.where(weights > 0, (first_end - last_start).clip(min=0.0), np.inf).min(axis=1)
    min_spread = np.where(np.isinf(intrinsic), 0.0, END_SPREAD_SHARE * intrinsic)
    uncertainty = np.maximum(np.maximum(spread, MIN_UNCERTAINTY_NS), min_spread)
    return offset, np.where(np.isnan(spread), np.nan, uncertainty), table.start.shape[1]


def column_medians(values: Floats) -> Floats:
    """Return each column's median, ignoring NaNs; NaN for a column of NaNs."""
    ordered = np.sort(values, axis=0)
    known = (~np.isnan(values)).sum(axis=0)
    columns = np.arange(values.shape[1])
    low = ordered[np.maximum(known - 1, 0) // 2, columns]
    high = ordered[np.minimum(known // 2, len(values) - 1), columns]
    return np.where(known > 0, (low + high) / 2, np.nan)


def weighted_medians(values: Floats, weights: Floats) -> Floats:
    """Return each row's weighted median, averaging two values at an exact half of the weight."""
    known: Mask = ~np.isnan(values) & (weights > 0)
    filled = np.where(known, values, np.inf)
    order = np.argsort(filled, axis=1, kind="stable")
    filled = np.take_along_axis(filled, order, axis=1)
    total = np.cumsum(np.take_along_axis(np.where(known, weights, 0.0), order, axis=1), axis=1)
    half = total[:, -1:] / 2
    rows = np.arange(len(values))
    last = np.maximum(known.sum(axis=1) - 1, 0)
    low = filled[rows, np.minimum((total < half * (1 - 1e-9)).sum(axis=1), last)]
    high = filled[rows, np.minimum((total <= half * (1 + 1e-9)).sum(axis=1), last)]
    return np.where(known.any(axis=1), (low + high) / 2, np.nan)


def estimate_drifts(table: ClockTable) -> Floats:
    """Return each rank's drift against the rank with the most votes.

    0 if a line fits no better than a constant; NaN for all ranks if the window is too short.
    """
    table, weights = select_votes(table)
    if table.span_ns <= DRIFT_SPAN_NS:
        return np.full(len(table.ranks), np.nan)
    votes = weights > 0
    centre = int(votes.sum(axis=1).argmax())
    difference = table.end - table.end[centre]
    drifts = np.zeros(len(table.ranks))
    for row in range(len(table.ranks)):
        known = np.flatnonzero(votes[row] & ~np.isnan(difference[row]) & ~np.isnan(table.end[row]))
        if len(known) >= _MIN_POINTS:
            drifts[row] = fit_slope(difference[row, known], table.end[row, known])
    return drifts


def fit_slope(difference: Floats, time: Floats) -> float:
    """Return the slope of ``difference`` over ``time``; 0 if a line fits no better than a constant."""
    order = np.argsort(time, kind="stable")
    order = order[np.unique(np.linspace(0, len(order) - 1, _MAX_POINTS).astype(np.int64))]
    y, x = difference[order], time[order]
    low, high = np.triu_indices(len(x), 1)
    run = x[high] - x[low]
    far = run > 0.1 * run.max()
    slope = float(np.median((y[high] - y[low])[far] / run[far])) if far.any() else 0.0
    is_accepted = abs(slope) <= _MAX_DRIFT and _median_deviation(
        y - slope * x
    ) <= _MAX_RESIDUAL_RATIO * _median_deviation(y)
    return slope if is_accepted else 0.0


def _median_deviation(values: Floats) -> float:
    return float(np.median(np.abs(values - np.median(values))))
