"""Find collectives in which one rank clearly arrived last, and the interval over which ranks are compared.

The first collective of a window, collectives with a missing rank and refused matches are not judged. An
interval starts at the last earlier collective of the group at which the rank had no lag.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns, Floats, Groups, Mask
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.collective_rows import Instances, RowFinder, mark_full_syncs
from zprof.analysis.time.rank import RankWork
from zprof.analysis.time.transfer.decomposition import UNKNOWN_RANK

#: Maximum share of the lateness that may already be present when an interval starts.
_MAX_LEFT_RATIO = 0.25
_MAX_COLLECTIVES_BACK = 64
_NO_EXCESS = -np.inf


class LateRows(Struct, frozen=True, kw_only=True):
    """Columns of the collectives of all ranks as arrays, and indexes over their rows.

    ``late``: the start minus the median start of the other ranks, NaN if there are none. ``is_full_sync``:
    matched full syncs.
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
    is_full_sync: Mask
    judged: Mask
    blamed: Int64s


class LateCases(Struct, frozen=True, kw_only=True):
    """One entry per collective with a blamed rank.

    ``late_ns``: the blamed rank's start minus the median start of the others. ``row``: its row.
    ``case_of_row``: the case of each row of the table, -1 without one.
    """

    instance: Int64s
    blamed: Int64s
    row: Int64s
    start: Int64s
    late_ns: Floats
    case_of_row: Int64s

    def __len__(self) -> int:
        return len(self.instance)


def make_late_rows(collectives: Columns) -> LateRows:
    """Return the columns of a table of collectives as arrays, with the blamed rank of each row."""
    instance, rank = collectives.ints("instance"), collectives.ints("rank")
    instances = Instances(instance)
    start = collectives.ints("start_ns")
    base = start.min(initial=np.iinfo(np.int64).max)
    first = collectives.bools("first_of_window")
    first = instances.broadcast(instances.reduce(np.logical_or, first), first)
    judged = (instance >= 0) & ~first & ~collectives.bools("bound") & (collectives.ints("group_size") != 1)
    return LateRows(
        instances=instances,
        finder=RowFinder(instance, rank),
        instance=instance,
        rank=rank,
        group=collectives.texts("group").codes,
        start=start,
        late=(start - base) - instances.median_of_others(start - base),
        arrival=collectives.ints("arrival_ns"),
        launch=collectives.ints("launch_ns"),
        launch_known=collectives.known("launch_start_ns"),
        computed=collectives.ints("computed_ns"),
        previous=collectives.ints("previous_ns"),
        previous_instance=collectives.ints("previous_instance"),
        wait=collectives.ints("wait_ns"),
        exposed_wait=collectives.ints("exposed_wait_ns"),
        is_full_sync=mark_full_syncs(collectives) & (instance >= 0),
        judged=judged,
        blamed=np.where(judged, collectives.ints("last_rank"), UNKNOWN_RANK),
    )


def find_cases(rows: LateRows) -> LateCases:
    """Return the collectives that have a blamed rank whose own row exists."""
    blamed = rows.instances.reduce(np.maximum, rows.blamed)
    row = rows.finder.find(rows.instances.ids, blamed)
    has_case = np.flatnonzero(row >= 0)
    case_of_instance = np.full(len(rows.instances.ids), -1, dtype=np.int64)
    case_of_instance[has_case] = np.arange(len(has_case))
    case_of_row = rows.instances.broadcast(case_of_instance, np.full(len(rows.rank), -1, dtype=np.int64))
    return LateCases(
        instance=rows.instances.ids[has_case],
        blamed=blamed[has_case],
        row=row[has_case],
        start=rows.start[row[has_case]],
        late_ns=np.nan_to_num(rows.late[row[has_case]]),
        case_of_row=case_of_row,
    )


class ComparedIntervals(Struct, frozen=True, kw_only=True):
    """One entry per row of a case whose rank was also in the earlier collective.

    ``row`` and ``case``: indexes of both. The interval lasts from ``begin`` to ``end`` in time. In program
    order it covers launches from ``launched_from`` to ``launched_to``, if ``launch_known``.
    """

    row: Int64s
    case: Int64s
    rank: Int64s
    begin: Int64s
    end: Int64s
    launched_from: Int64s
    launched_to: Int64s
    launch_known: Mask


def find_compared_intervals(
    rows: LateRows, cases: LateCases, lag: Floats, begins: Mapping[int, int]
) -> ComparedIntervals:
    """Return the compared intervals of all ranks of all cases.

    Args:
        rows, cases: All rows and the cases among them.
        lag: Lag of each row, see :func:`measure_lag`.
        begins: Start of each rank's window. If a group has no earlier collective without lag, its intervals
            start at the latest of these in time, and at each rank's own in program order.
    """
    earlier, exhausted = _find_start_rows(rows, cases, lag)
    row = np.flatnonzero(cases.case_of_row >= 0)
    start_row = earlier[cases.case_of_row[row]]
    from_begin = exhausted[cases.case_of_row[row]]
    own_start_row = rows.finder.find(np.where(start_row >= 0, rows.instance[start_row], -1), rows.rank[row])
    is_valid = (own_start_row >= 0) | from_begin
    row, start_row, own_start_row, from_begin = (
        row[is_valid],
        start_row[is_valid],
        own_start_row[is_valid],
        from_begin[is_valid],
    )
    begin = max(begins.values(), default=0)
    own_begin = np.array([begins.get(rank, begin) for rank in rows.rank[row].tolist()], dtype=np.int64)
    return ComparedIntervals(
        row=row,
        case=cases.case_of_row[row],
        rank=rows.rank[row],
        begin=np.where(from_begin, begin, rows.arrival[start_row]),
        end=rows.start[row],
        launched_from=np.where(from_begin, own_begin, rows.launch[own_start_row]),
        launched_to=rows.launch[row],
        launch_known=(rows.launch_known[own_start_row] | from_begin) & rows.launch_known[row],
    )


def _find_start_rows(rows: LateRows, cases: LateCases, lag: Floats) -> tuple[Int64s, Mask]:
    """Return the blamed rank's row of the last collective without lag, else the earliest one checked.

    The mask marks the cases without such a collective in the entire window; their row is -1.
    """
    order = np.lexsort((rows.arrival, rows.rank, rows.group))
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    start_rows = np.full(len(cases), -1, dtype=np.int64)
    exhausted = np.zeros(len(cases), dtype=np.bool_)
    pending = np.arange(len(cases))
    for back in range(1, _MAX_COLLECTIVES_BACK + 1):
        candidate_position = position[cases.row[pending]] - back
        candidate = order[np.maximum(candidate_position, 0)]
        is_own = (candidate_position >= 0) & _is_same_queue(rows, candidate, cases.row[pending])
        exhausted[pending[~is_own]] = True
        pending, candidate = pending[is_own], candidate[is_own]
        usable = rows.is_full_sync[candidate] & (rows.arrival[candidate] < cases.start[pending])
        start_rows[pending[usable]] = candidate[usable]
        is_start = usable & (lag[candidate] <= _MAX_LEFT_RATIO * cases.late_ns[pending])
        pending = pending[~is_start]
        if not len(pending):
            break
    return np.where(exhausted, -1, start_rows), exhausted


def _is_same_queue(rows: LateRows, a: Int64s, b: Int64s) -> Mask:
    same: Mask = (rows.group[a] == rows.group[b]) & (rows.rank[a] == rows.rank[b])
    return same


def measure_lag(rows: LateRows, work: Mapping[int, RankWork]) -> Floats:
    """Return, per row, the median progress of the other ranks minus its own; 0 if there are no others."""
    progress = np.zeros(len(rows.rank), dtype=np.int64)
    known = np.flatnonzero(rows.is_full_sync)
    for rank, positions in group_by_rank(rows.rank[known]):
        own_rows = known[positions]
        ready, arrival = work[rank].find_ready_times(rows.launch[own_rows]), rows.arrival[own_rows]
        progress[own_rows] = _measure_free_time(work[rank], ready, arrival) - _measure_free_time(
            work[rank], arrival, ready
        )
    return np.nan_to_num(rows.instances.median_of_others(progress) - progress)


def _measure_free_time(work: RankWork, starts: Int64s, ends: Int64s) -> Int64s:
    free: Int64s = np.maximum(0, ends - starts) - work.measure_blocked_time(starts, ends)
    return free


class CaseExcess:
    """Compute, per case, the excess of the blamed rank over the median of the other ranks."""

    def __init__(self, cases: LateCases, compared: ComparedIntervals) -> None:
        self._cases = len(cases)
        self._case = compared.case
        self._is_blamed = compared.rank == cases.blamed[compared.case]
        self._others = Groups(self._case[~self._is_blamed])

    def of(self, values: Int64s) -> Floats:
        """Return the excess from one value per interval; -inf without the blamed rank or without others."""
        blamed_values = np.full(self._cases, np.nan)
        blamed_values[self._case[self._is_blamed]] = values[self._is_blamed]
        median = np.full(self._cases, np.nan)
        cases_with_others = self._case[~self._is_blamed][self._others.first]
        median[cases_with_others] = self._others.median(values[~self._is_blamed])
        excess: Floats = np.nan_to_num(blamed_values - median, nan=_NO_EXCESS)
        return excess


def group_by_rank(ranks: Int64s) -> list[tuple[int, Int64s]]:
    """Return each rank with the positions of its entries."""
    if not len(ranks):
        return []
    order = np.argsort(ranks, kind="stable")
    numbers, first = np.unique(ranks[order], return_index=True)
    return list(zip(numbers.tolist(), np.split(order, first[1:]), strict=True))
