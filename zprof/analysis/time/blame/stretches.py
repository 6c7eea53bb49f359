"""Where to begin to compare the late rank with the others: where all were last in step.

That is the latest earlier collective of the same group, of a bounded number, at whose last arrival the rank
did not lag behind the others (:mod:`...progress`): what it had been late by before, they had waited for.
All stretches begin with that arrival, and in the program with each rank's own launch of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.blame.cases import Cases, Rows
from zprof.analysis.time.transfer.instances import Floats, Mask

#: Of the lateness to be explained: less than that may still be left at the begin of the stretch.
_LEFT_RATIO = 0.25
_MOST_BACK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """One entry a row of a case whose rank was in the earlier collective too.

    ``row`` and ``case``: which.  The stretch lasts from ``begin`` to ``end`` in time, in the program from
    ``launched_from`` to ``launched_to``, which is known where ``launch_known``.
    """

    row: Int64s
    case: Int64s
    rank: Int64s
    begin: Int64s
    end: Int64s
    launched_from: Int64s
    launched_to: Int64s
    launch_known: Mask


def stretches_of(rows: Rows, cases: Cases, lag: Floats, begins: Mapping[int, int]) -> Stretches:
    """Stretches of all ranks of all cases.

    Args:
        rows, cases: As elsewhere.
        lag: Of each row.
        begins: Begin of each rank's window; where a group has no such collective all begin with the last, and
            the program of each with its own.
    """
    earlier, exhausted = _in_step(rows, cases, lag)
    row = np.flatnonzero(cases.of_row >= 0)
    origin = earlier[cases.of_row[row]]
    from_begin = exhausted[cases.of_row[row]]
    theirs = rows.finder.find(np.where(origin >= 0, rows.instance[origin], -1), rows.rank[row])
    kept = (theirs >= 0) | from_begin
    row, origin, theirs, from_begin = row[kept], origin[kept], theirs[kept], from_begin[kept]
    begin = max(begins.values(), default=0)
    own_begin = np.array([begins.get(rank, begin) for rank in rows.rank[row].tolist()], dtype=np.int64)
    return Stretches(
        row=row,
        case=cases.of_row[row],
        rank=rows.rank[row],
        begin=np.where(from_begin, begin, rows.arrival[origin]),
        end=rows.start[row],
        launched_from=np.where(from_begin, own_begin, rows.launch[theirs]),
        launched_to=rows.launch[row],
        launch_known=(rows.launch_known[theirs] | from_begin) & rows.launch_known[row],
    )


def _in_step(rows: Rows, cases: Cases, lag: Floats) -> tuple[Int64s, Mask]:
    """The blamed rank's row of the collective at which it was in step, else the earliest looked at.

    And whether there is none in all of the window; then the first is -1.
    """
    order = np.lexsort((rows.arrival, rows.rank, rows.group))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    found = np.full(len(cases), -1, dtype=np.int64)
    exhausted = np.zeros(len(cases), dtype=np.bool_)
    open_ = np.arange(len(cases))
    for back in range(1, _MOST_BACK + 1):
        at = place[cases.row[open_]] - back
        candidate = order[np.maximum(at, 0)]
        mine = (at >= 0) & _same_queue(rows, candidate, cases.row[open_])
        exhausted[open_[~mine]] = True
        open_, candidate = open_[mine], candidate[mine]
        usable = rows.together[candidate] & (rows.arrival[candidate] < cases.start[open_])
        found[open_[usable]] = candidate[usable]
        done = usable & (lag[candidate] <= _LEFT_RATIO * cases.late_ns[open_])
        open_ = open_[~done]
        if not len(open_):
            break
    return np.where(exhausted, -1, found), exhausted


def _same_queue(rows: Rows, a: Int64s, b: Int64s) -> Mask:
    same: Mask = (rows.group[a] == rows.group[b]) & (rows.rank[a] == rows.rank[b])
    return same
