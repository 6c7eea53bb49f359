"""Shares out instants at which several collectives run: each goes to one of them.

Both ways give one interval a collective, in the order that they came in; these are disjoint, lie within the
collectives, and are together all that these cover.
"""

import numpy as np

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals
from zprof.analysis.time.activity.view import Mask

#: As a time: before everything, and after everything; both leave room for the offset of a clock.
NOTHING_NS = -(1 << 62)
ANYTHING_NS = 1 << 62


def first_start_first(start: Int64s, end: Int64s) -> Intervals:
    """Each without what those that started earlier still hold."""
    if not len(start):
        return EMPTY
    end = np.maximum(start, end)
    order = np.argsort(start, kind="stable")
    held_until = np.concatenate(([NOTHING_NS], np.maximum.accumulate(end[order])[:-1]))
    claims = np.empty((len(start), 2), dtype=np.int64)
    claims[order, 0] = np.maximum(start[order], held_until)
    claims[:, 1] = np.maximum(claims[:, 0], end)
    return claims


def last_end_first(start: Int64s, end: Int64s, not_before: Int64s, chosen: Mask) -> Intervals:
    """Of the chosen each without what those with a later end hold, and what lies before ``not_before``.

    Of two that end together the first to start holds all.  Those that are not chosen hold nothing.
    """
    claims = intervals(start, start)
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((start[rows], -end[rows]))]
    begin = np.maximum(start, not_before)[rows]
    held_from = np.concatenate(([ANYTHING_NS], np.minimum.accumulate(begin)))[: len(rows)]
    claims[rows] = intervals(begin, np.maximum(begin, np.minimum(end[rows], held_from)))
    return claims
