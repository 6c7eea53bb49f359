"""How clocks run against each other over a long window: the slope of Theil and Sen, where it tells more."""

import numpy as np

from zprof.analysis.time.clocks.bounds import DRIFT_SPAN_NS
from zprof.analysis.time.clocks.table import Bools, Floats, Table
from zprof.analysis.time.clocks.votes import voting

#: Points of each rank that a slope is drawn through: all pairs of them.
_POINTS = 96
_FEWEST_POINTS = 4
#: A slope is believed where it leaves less than this share of the spread.
_IMPROVED = 0.7
#: No clock that keeps time drifts by more.
_MOST = 500e-6


def drifts(table: Table) -> Floats:
    """Of each rank against the rank with most votes; 0 where a line explains no more than a constant.

    NaN for all where the window is too short to tell.
    """
    table, weights = voting(table)
    if table.span_ns <= DRIFT_SPAN_NS:
        return np.full(len(table.ranks), np.nan)
    votes = weights > 0
    centre = int(votes.sum(axis=1).argmax())
    apart = table.end - table.end[centre]
    rows = range(len(table.ranks))
    return np.array([_slope(apart[row], table.end[row], votes[row]) for row in rows], dtype=np.float64)


def slope(apart: Floats, time: Floats) -> float:
    """By how much ``apart`` grows with ``time``; 0 where a line explains no more than a constant."""
    order = np.argsort(time, kind="stable")
    order = order[np.unique(np.linspace(0, len(order) - 1, _POINTS).astype(np.int64))]
    y, x = apart[order], time[order]
    low, high = np.triu_indices(len(x), 1)
    run = x[high] - x[low]
    far = run > 0.1 * run.max()
    found = float(np.median((y[high] - y[low])[far] / run[far])) if far.any() else 0.0
    believed = abs(found) <= _MOST and _spread(y - found * x) <= _IMPROVED * _spread(y)
    return found if believed else 0.0


def _slope(apart: Floats, time: Floats, votes: Bools) -> float:
    known = np.flatnonzero(votes & ~np.isnan(apart) & ~np.isnan(time))
    return slope(apart[known], time[known]) if len(known) >= _FEWEST_POINTS else 0.0


def _spread(values: Floats) -> float:
    return float(np.median(np.abs(values - np.median(values))))
