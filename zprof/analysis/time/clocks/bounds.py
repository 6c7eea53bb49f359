"""What causality alone says of clocks: o_i - o_j <= U_ij, whatever the offsets.

Nobody leaves a collective before all have entered, so U_ij = min over collectives of e_i - s_j; where
only one side waits (a broadcast's root, a reduce's, a send), only that side is bounded.  A cycle of
negative length means that what was matched cannot be one collective, or that a stamp is wrong.
"""

import numpy as np

from zprof.analysis.time.clocks.table import Bools, Floats, Table

#: Bounds may contradict by this much before they count as impossible: the jitter of a stamp.
STAMP_JITTER_NS = 5_000
#: Clocks may run apart by this share of a window in which drift is not measured.
_UNSEEN_DRIFT = 50e-6
#: From this length of a window on drift is measured.
DRIFT_SPAN_NS = 5e9
#: More ranks than this are compared with one of them, not each with each.
ALL_PAIRS = 64


def tolerance_ns(table: Table) -> float:
    """By how much bounds of this table may contradict."""
    return STAMP_JITTER_NS + _UNSEEN_DRIFT * min(table.span_ns, DRIFT_SPAN_NS)


def judged(table: Table) -> Table:
    """Without what carries the profiler's start, as long as anything is left."""
    rest = ~table.first
    return table.of_instances(rest) if rest.any() else table


def upper_bounds(table: Table) -> Floats:
    """U, ranks x ranks; infinite where nothing bounds.  Above ALL_PAIRS ranks only to and from row 0."""
    count = len(table.ranks)
    found = np.full((count, count), np.inf)
    np.fill_diagonal(found, 0.0)
    if not table.start.shape[1]:
        return found
    start = np.where(table.present, table.start, -np.inf)
    end = np.where(table.present, table.end, np.inf)
    _full(found, start[:, table.sync], end[:, table.sync])
    _one_sided(found, table, start, end)
    return found


def _full(found: Floats, start: Floats, end: Floats) -> None:
    if not start.shape[1]:
        return
    if len(found) > ALL_PAIRS:
        found[0, 1:] = np.minimum(found[0, 1:], (end[0] - start[1:]).min(axis=1))
        found[1:, 0] = np.minimum(found[1:, 0], (end[1:] - start[0]).min(axis=1))
        return
    for row in range(len(found)):
        others = np.arange(len(found)) != row
        found[row, others] = np.minimum(found[row, others], (end[row] - start[others]).min(axis=1))


def _one_sided(found: Floats, table: Table, start: Floats, end: Floats) -> None:
    for root in np.unique(table.source[table.source >= 0]):
        mine = table.source == root
        bound = (end[:, mine] - start[root, mine]).min(axis=1)
        others = np.arange(len(found)) != root
        found[others, root] = np.minimum(found[others, root], bound[others])
    for root in np.unique(table.sink[table.sink >= 0]):
        mine = table.sink == root
        bound = (end[root, mine] - start[:, mine]).min(axis=1)
        others = np.arange(len(found)) != root
        found[root, others] = np.minimum(found[root, others], bound[others])


def closed(bounds: Floats) -> Floats:
    """Bounds by way of all other ranks too: the shortest paths."""
    found = bounds.copy()
    for middle in range(len(found)):
        np.minimum(found, found[:, middle, None] + found[None, middle, :], out=found)
    return found


def bad_pairs(table: Table, slack_ns: float) -> Bools:
    """Pairs of ranks that contradict each other by more than ``slack_ns``, whatever their clocks."""
    bounds = upper_bounds(table)
    bad: Bools = bounds + bounds.T < -slack_ns
    np.fill_diagonal(bad, False)
    return bad


def worst_ranks(bad: Bools) -> Bools:
    """The fewest ranks, greedily, without which no pair is bad.  Of a pair that is alone both."""
    out = np.zeros(len(bad), dtype=bool)
    left = bad.copy()
    while left.any():
        counts = left.sum(axis=1)
        worst = counts == counts.max()
        worst = worst if counts.max() == 1 else np.arange(len(bad)) == int(counts.argmax())
        out |= worst
        left[worst, :] = False
        left[:, worst] = False
    return out
