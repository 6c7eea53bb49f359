"""Which row of a lane belongs to which instance: a slot for each row, and the table that clocks read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks.table import NOBODY, Bools, Floats, Table
from zprof.analysis.time.matching.lanes import Lane
from zprof.analysis.time.matching.rows import Rows, Rung

ALONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A lane with the slot of each of its rows (-1: it stands alone).

    ``shifts``: by how much a rank's own order was moved.  ``excluded``: ranks that fit nowhere.
    """

    lane: Lane
    slot: Int64s
    rung: Rung
    shifts: Mapping[int, int] = field(default_factory=dict)
    excluded: tuple[int, ...] = ()
    repaired: tuple[int, ...] = ()


def table_of(placement: Placement, rows: Rows) -> Table:
    """Start and end of the placed rows, ranks x slots; empty slots are left out."""
    lane = placement.lane
    placed = placement.slot >= 0
    mine = lane.rows[placed]
    slots, column = np.unique(placement.slot[placed], return_inverse=True)
    row = np.searchsorted(np.array(lane.members), rows.rank[mine])
    shape = len(lane.members), len(slots)
    start, end = np.full(shape, np.nan), np.full(shape, np.nan)
    start[row, column], end[row, column] = rows.start[mine], rows.end[mine]
    of_slot = np.zeros(len(slots), dtype=np.int64)
    of_slot[column] = mine
    return Table(
        ranks=lane.members,
        start=start,
        end=end,
        sync=rows.sync[of_slot] if len(slots) else np.zeros(0, dtype=bool),
        first=_first(start),
        source=_roots(rows.source, mine, column, len(slots), lane),
        sink=_roots(rows.sink, mine, column, len(slots), lane),
    )


def slots_of(placement: Placement) -> Int64s:
    """The slot of each column of the placement's table."""
    return np.unique(placement.slot[placement.slot >= 0])


def _first(start: Floats) -> Bools:
    """Mark what each rank entered first: it carries the start of that rank's profiler."""
    found = np.zeros(start.shape[1], dtype=bool)
    if start.shape[1]:
        known = ~np.isnan(start)
        found[np.where(known, start, np.inf).argmin(axis=1)[known.any(axis=1)]] = True
    return found


def _roots(roots: Int64s, mine: Int64s, column: Int64s, count: int, lane: Lane) -> Int64s:
    """The row of each instance's root; nobody where it is unknown, not loaded, or the ranks disagree."""
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, NOBODY, dtype=np.int64)
    np.minimum.at(low, column, roots[mine])
    np.maximum.at(high, column, roots[mine])
    members = np.array(lane.members)
    place = np.minimum(np.searchsorted(members, high), len(members) - 1)
    return np.where((low == high) & (members[place] == high), place, NOBODY).astype(np.int64)
