"""Find collectives in which one rank clearly arrived last, and the stretch over which ranks are compared.

Not judged are the first collective of a window, collectives with a missing rank, and refused ones. A stretch
starts at the latest earlier collective of the group at whose last arrival the rank did not lag behind in its
program.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.collective_rows import Floats, Instances, Mask, RowFinder, encode_texts
from zprof.analysis.time.rank import RankWork
from zprof.analysis.time.transfer.decomposition import UNKNOWN_RANK
from zprof.model.collectives import FULL_SYNC


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRows:
    """Columns of the collectives of all ranks as arrays, and indexes over their rows.

    ``late``: the start minus the median start of the other ranks, NaN if there are none.
    """

    instances: Instances
    finder: RowFinder
    instance: Int64s
    rank: Int64s
    group: Int64s
    start: Int64s
    late: Floats
    arrival: Int64s
    launch: Int64s
    launch_known: Mask
    computed: Int64s
    previous: Int64s
    previous_instance: Int64s
    wait: Int64s
    exposed_wait: Int64s
    together: Mask
    judged: Mask
    blamed: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class LateCases:
    """One entry per collective with a blamed rank.

    ``late_ns``: the blamed rank's start minus the median start of the others. ``row``: its row. ``of_row``:
    the case of each row of the table, -1 without one.
    """

    instance: Int64s
    blamed: Int64s
    row: Int64s
    start: Int64s
    late_ns: Floats
    of_row: Int64s

    def __len__(self) -> int:
        return len(self.instance)


def make_late_rows(frame: pd.DataFrame) -> LateRows:
    """Return the columns of a table of collectives as arrays, with the blamed rank of each row."""
    instance, rank = _read_ints(frame, "instance"), _read_ints(frame, "rank")
    instances = Instances(instance)
    start = _read_ints(frame, "start_ns")
    base = start.min(initial=np.iinfo(np.int64).max)
    first = frame["first_of_window"].to_numpy(np.bool_)
    first = instances.spread(instances.reduce(np.logical_or, first), first)
    judged = (instance >= 0) & ~first & ~frame["bound"].to_numpy(np.bool_)
    judged &= _read_ints(frame, "group_size") != 1
    return LateRows(
        instances=instances,
        finder=RowFinder(instance, rank),
        instance=instance,
        rank=rank,
        group=encode_texts(frame["group"])[0],
        start=start,
        late=(start - base) - instances.median_of_others(start - base),
        arrival=_read_ints(frame, "arrival_ns"),
        launch=_read_ints(frame, "launch_ns"),
        launch_known=frame["launch_start_ns"].notna().to_numpy(np.bool_),
        computed=_read_ints(frame, "computed_ns"),
        previous=_read_ints(frame, "previous_ns"),
        previous_instance=_read_ints(frame, "previous_instance"),
        wait=_read_ints(frame, "wait_ns"),
        exposed_wait=_read_ints(frame, "exposed_wait_ns"),
        together=frame["kind"].isin([str(kind) for kind in FULL_SYNC]).to_numpy(np.bool_) & (instance >= 0),
        judged=judged,
        blamed=np.where(judged, _read_ints(frame, "last_rank"), UNKNOWN_RANK),
    )


def find_cases(rows: LateRows) -> LateCases:
    """Return the collectives that have a blamed rank whose own row exists."""
    blamed = rows.instances.reduce(np.maximum, rows.blamed)
    row = rows.finder.find(rows.instances.ids, blamed)
    chosen = np.flatnonzero(row >= 0)
    of_instance = np.full(len(rows.instances.ids), -1, dtype=np.int64)
    of_instance[chosen] = np.arange(len(chosen))
    of_row = rows.instances.spread(of_instance, np.full(len(rows.rank), -1, dtype=np.int64))
    return LateCases(
        instance=rows.instances.ids[chosen],
        blamed=blamed[chosen],
        row=row[chosen],
        start=rows.start[row[chosen]],
        late_ns=np.nan_to_num(rows.late[row[chosen]]),
        of_row=of_row,
    )


def _read_ints(frame: pd.DataFrame, column: str) -> Int64s:
    return frame[column].to_numpy(np.int64)


#: A stretch may start with less than this share of the lateness already present.
_MAX_LEFT_RATIO = 0.25
_MAX_BACK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """One entry per row of a case whose rank was also in the earlier collective.

    ``row`` and ``case``: indexes of both. The stretch lasts from ``begin`` to ``end`` in time, and from
    ``launched_from`` to ``launched_to`` in the program, which is known if ``launch_known``.
    """

    row: Int64s
    case: Int64s
    rank: Int64s
    begin: Int64s
    end: Int64s
    launched_from: Int64s
    launched_to: Int64s
    launch_known: Mask


def find_stretches(rows: LateRows, cases: LateCases, lag: Floats, begins: Mapping[int, int]) -> Stretches:
    """Return the stretches of all ranks of all cases.

    Args:
        rows, cases: All rows and the cases among them.
        lag: Lag of each row, see :func:`measure_lag`.
        begins: Start of each rank's window. If a group has no such collective, all stretches start with the
        latest of these in time, and each with its own in the program.
    """
    earlier, exhausted = _find_in_step(rows, cases, lag)
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


def _find_in_step(rows: LateRows, cases: LateCases, lag: Floats) -> tuple[Int64s, Mask]:
    """Return the blamed rank's row of the collective at which it was in step, else the earliest one checked.

    The mask marks the cases without one in the whole window; their row is -1.
    """
    order = np.lexsort((rows.arrival, rows.rank, rows.group))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    found = np.full(len(cases), -1, dtype=np.int64)
    exhausted = np.zeros(len(cases), dtype=np.bool_)
    open_ = np.arange(len(cases))
    for back in range(1, _MAX_BACK + 1):
        at = place[cases.row[open_]] - back
        candidate = order[np.maximum(at, 0)]
        mine = (at >= 0) & _is_same_queue(rows, candidate, cases.row[open_])
        exhausted[open_[~mine]] = True
        open_, candidate = open_[mine], candidate[mine]
        usable = rows.together[candidate] & (rows.arrival[candidate] < cases.start[open_])
        found[open_[usable]] = candidate[usable]
        done = usable & (lag[candidate] <= _MAX_LEFT_RATIO * cases.late_ns[open_])
        open_ = open_[~done]
        if not len(open_):
            break
    return np.where(exhausted, -1, found), exhausted


def _is_same_queue(rows: LateRows, a: Int64s, b: Int64s) -> Mask:
    same: Mask = (rows.group[a] == rows.group[b]) & (rows.rank[a] == rows.rank[b])
    return same


def measure_lag(rows: LateRows, work: Mapping[int, RankWork]) -> Floats:
    """Return for each row the median progress of the other ranks minus its own; 0 if there are no others."""
    progress = np.zeros(len(rows.rank), dtype=np.int64)
    known = np.flatnonzero(rows.together)
    for rank, mine in group_by_rank(rows.rank[known]):
        here = known[mine]
        reached, arrival = work[rank].reached(rows.launch[here]), rows.arrival[here]
        progress[here] = _free_time(work[rank], reached, arrival) - _free_time(work[rank], arrival, reached)
    return np.nan_to_num(rows.instances.median_of_others(progress) - progress)


def _free_time(work: RankWork, starts: Int64s, ends: Int64s) -> Int64s:
    free: Int64s = np.maximum(0, ends - starts) - work.held_up(starts, ends)
    return free


_NOTHING = -np.inf


class Excess:
    """Excess of the blamed rank over the median of the others, per case, from one value per stretch."""

    def __init__(self, cases: LateCases, stretches: Stretches) -> None:
        self._cases = len(cases)
        self._case = stretches.case
        self._mine = stretches.rank == cases.blamed[stretches.case]

    def of(self, values: Int64s) -> Floats:
        """Return the excess; -inf if the blamed rank or all others have no stretch."""
        mine = np.full(self._cases, np.nan)
        mine[self._case[self._mine]] = values[self._mine]
        others = pd.Series(values[~self._mine]).groupby(self._case[~self._mine]).median()
        median = np.full(self._cases, np.nan)
        median[others.index.to_numpy(np.int64)] = others.to_numpy(np.float64)
        excess: Floats = np.nan_to_num(mine - median, nan=_NOTHING)
        return excess


def group_by_rank(ranks: Int64s) -> list[tuple[int, Int64s]]:
    """Return each rank with the positions of its entries."""
    if not len(ranks):
        return []
    order = np.argsort(ranks, kind="stable")
    numbers, first = np.unique(ranks[order], return_index=True)
    return list(zip(numbers.tolist(), np.split(order, first[1:]), strict=True))
