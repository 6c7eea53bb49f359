"""Derive bounds on clock offsets from the causality of matched collectives: o_i - o_j <= U_ij.

No rank leaves a collective before all have entered, so U_ij = min over collectives of e_i - s_j; if only one
side waits (broadcast, reduce, send), only that side is bounded. A cycle of negative length means that a match
or a timestamp is wrong. Times are floats relative to a base per rank, because nanoseconds since 1970 exceed
the precision of a float.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Floats, Mask
from zprof.analysis.intervals import Int64s

NO_ROW = -1
#: Contradictions of bounds up to this size are tolerated: the jitter of a timestamp.
STAMP_JITTER_NS = 5_000
#: Maximum drift between clocks, as a share of the window, if drift is not measured.
_MAX_UNMEASURED_DRIFT = 50e-6
#: Minimum length of a window for measuring drift.
DRIFT_SPAN_NS = 5e9
#: With more ranks than this, ranks are compared with one of them instead of pairwise.
MAX_ALL_PAIRS = 64


class ClockTable(Struct, frozen=True, kw_only=True):
    """Collectives of one group.

    ``start`` and ``end`` are ranks x instances, NaN if a rank has no event. ``sync``: no rank leaves before
    all have entered. ``first``: the first instance of the group on some rank, which includes profiler
    start-up. ``source``: the row that all others wait for (the root of a broadcast, a sender). ``sink``: the
    row that waits for all others (the root of a reduce). Both are -1 without such a row.
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
        """Mask of ranks x instances that have an event."""
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
        """Return the table on the clock given by these offsets and drifts."""
        return replace(
            self,
            start=self.start * (1 - drift[:, None]) - offset[:, None],
            end=self.end * (1 - drift[:, None]) - offset[:, None],
        )


def make_ping_table(
    pings: Mapping[int, Mapping[int, tuple[int, int]]], base: Mapping[int, int]
) -> ClockTable:
    """Return clock pings as a table: each is a collective of all ranks, without profiler start-up."""
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
    """Return the tolerated contradiction between bounds of this table, in ns."""
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
    _bound_full_syncs(bounds, start[:, table.sync], end[:, table.sync])
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


def _bound_full_syncs(bounds: Floats, start: Floats, end: Floats) -> None:
    if not start.shape[1]:
        return
    if len(bounds) > MAX_ALL_PAIRS:
        bounds[0, 1:] = np.minimum(bounds[0, 1:], (end[0] - start[1:]).min(axis=1))
        bounds[1:, 0] = np.minimum(bounds[1:, 0], (end[1:] - start[0]).min(axis=1))
        return
    for row in range(len(bounds)):
        others = np.arange(len(bounds)) != row
        bounds[row, others] = np.minimum(bounds[row, others], (end[row] - start[others]).min(axis=1))


def close_bounds(bounds: Floats) -> Floats:
    """Return the bounds tightened over paths through all other ranks (all-pairs shortest paths)."""
    closed = bounds.copy()
    for through in range(len(closed)):
        np.minimum(closed, closed[:, through, None] + closed[None, through, :], out=closed)
    return closed


def find_bad_pairs(table: ClockTable, slack_ns: float) -> Mask:
    """Mark pairs of ranks that contradict each other by more than ``slack_ns`` for any clock offsets."""
    bounds = compute_upper_bounds(table)
    bad: Mask = bounds + bounds.T < -slack_ns
    np.fill_diagonal(bad, False)
    return bad


def find_worst_ranks(bad: Mask) -> Mask:
    """Mark, greedily, a minimal set of ranks that covers all bad pairs; both ranks of an isolated pair."""
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
