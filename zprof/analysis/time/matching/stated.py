"""Matches lanes whose sequence the program stated: rows of one number, as far as they agree."""

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks.table import Bools
from zprof.analysis.time.matching.lanes import Lane
from zprof.analysis.time.matching.placement import ALONE, Placement
from zprof.analysis.time.matching.rows import Rows, Rung

#: A lane with a larger share of numbers that do not agree is not believed at all.
TOLERATED_SHARE = 0.1


def by_sequence(lane: Lane, rows: Rows) -> tuple[Placement, Bools]:
    """The slot of each row, and rows whose number the ranks disagree on or one rank has twice."""
    names, slot = np.unique(rows.sequence[lane.rows], return_inverse=True)
    bad = _conflicts(lane, rows, slot, len(names))
    if bad.mean() > TOLERATED_SHARE:
        bad = np.ones(len(names), dtype=bool)
    on_row: Bools = bad[slot]
    return Placement(lane=lane, slot=np.where(on_row, ALONE, slot), rung=Rung.SEQUENCE), on_row


def _conflicts(lane: Lane, rows: Rows, slot: Int64s, count: int) -> Bools:
    signature = rows.signature[lane.rows]
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, dtype=np.int64)
    np.minimum.at(low, slot, signature)
    np.maximum.at(high, slot, signature)
    twice = np.zeros(count, dtype=bool)
    rank = rows.rank[lane.rows]
    again = (rank[1:] == rank[:-1]) & (slot[1:] == slot[:-1])
    twice[slot[1:][again]] = True
    found: Bools = (low != high) | twice
    return found
