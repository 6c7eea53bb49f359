"""Find collectives in which one rank clearly arrived last, and why it was late.

A window's first collective, collectives with a missing rank, and refused matches are not judged. The compared
interval starts at the group's last earlier collective at which the rank had no lag. The reason is what took
longer in it than the median of the group's other ranks:

    compute             kernels launched in the compared interval, regardless of when they ran
    memcpy              device copies not hidden by other activity
    previous collective time blocked by other collectives, or the stream still busy with the previous one
    host                idle time, or a late launch, to the extent that the host took longer for the same work

The largest of the first three is the reason if it explains half of the lateness, else the host. The host is
tested last because a host may be slow only because its device is slow. A late host is then split by its
calls: data loader, allocator, waiting for the device.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zprof.analysis.columns import Columns, Floats, Groups, Mask
from zprof.analysis.intervals import Int64s, covered, intersect, intervals, subtract, union
from zprof.analysis.time.decomposition import UNKNOWN_RANK, Instances, RowFinder, mark_full_syncs
from zprof.analysis.time.host_calls import HostCalls
from zprof.analysis.time.rank import RankWork
from zprof.model.time import LateReason

#: Maximum share of the lateness that may already exist at the start of an interval.
_MAX_LEFT_RATIO = 0.25
_MAX_COLLECTIVES_BACK = 64
_NO_EXCESS = -np.inf
ReadCalls = Callable[[int], HostCalls]
ReasonArray = npt.NDArray[np.object_]
#: An empty queue is attributed to a device wait for at most this long afterwards.
_MAX_AFTER_SYNC_NS = 1_000_000
_CALL_REASONS = (LateReason.DATA, LateReason.ALLOCATOR, LateReason.SYNC)
_MIN_CALL_RATIO = 0.5
_MIN_EXPLAINED_RATIO = 0.5
#: A start counts as waiting for a launch (or a released stream) if it follows within this share of the
#: lateness.
_RIGHT_BEFORE_RATIO = 0.25
_DEVICE_REASONS = (LateReason.COMPUTE, LateReason.MEMCPY, LateReason.PREVIOUS_COLLECTIVE)


class LateRows(Struct, frozen=True, kw_only=True):
    """Columns of all ranks' collectives as arrays, and indices over their rows.

    ``late``: start minus the other ranks' median start, NaN without other ranks. ``is_full_sync``: matched
    full syncs.
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

    ``late_ns``: the blamed rank's start minus the others' median start. ``row``: the blamed rank's row.
    ``case_of_row``: each table row's case, -1 without one.
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
    """Return a collective table's columns as arrays, with each row's blamed rank."""
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
    """Return the collectives with a blamed rank whose own row exists."""
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
    """One entry per row of a case, if its rank was also in the earlier collective.

    ``row`` and ``case``: indices of row and case. In time, the interval lasts from ``begin`` to ``end``. In
    program order, it covers launches from ``launched_from`` to ``launched_to``, if ``launch_known``.
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
    """Return the compared intervals of all ranks, for all cases.

    Args:
        rows, cases: All rows and the cases among them.
        lag: Each row's lag, see :func:`measure_lag`.
        begins: Start of each rank's window. If a group has no earlier collective without lag, its intervals
            start at the latest window start in time, and at each rank's own window start in program order.
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
    """Return the blamed rank's row of the last collective without lag, else of the earliest checked
    collective.

    The mask marks cases without such a collective in the entire window; their row is -1.
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
        row = cases.row[pending]
        is_own = (candidate_position >= 0) & (rows.group[candidate] == rows.group[row])
        is_own &= rows.rank[candidate] == rows.rank[row]
        exhausted[pending[~is_own]] = True
        pending, candidate = pending[is_own], candidate[is_own]
        usable = rows.is_full_sync[candidate] & (rows.arrival[candidate] < cases.start[pending])
        start_rows[pending[usable]] = candidate[usable]
        is_start = usable & (lag[candidate] <= _MAX_LEFT_RATIO * cases.late_ns[pending])
        pending = pending[~is_start]
        if not len(pending):
            break
    return np.where(exhausted, -1, start_rows), exhausted


def measure_lag(rows: LateRows, work: Mapping[int, RankWork]) -> Floats:
    """Return, per row, the other ranks' median progress minus its own; 0 without other ranks."""
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
    return np.maximum(0, ends - starts) - covered(work.blocked, starts, ends)


class CaseExcess:
    """Computes, per case, the blamed rank's excess over the median of the other ranks."""

    def __init__(self, cases: LateCases, compared: ComparedIntervals) -> None:
        self._cases = len(cases)
        self._case = compared.case
        self._is_blamed = compared.rank == cases.blamed[compared.case]
        self._others = Groups(self._case[~self._is_blamed])

    def of(self, values: Int64s) -> Floats:
        """Return the excess, given one value per interval; -inf without the blamed rank or without others."""
        blamed_values = np.full(self._cases, np.nan)
        blamed_values[self._case[self._is_blamed]] = values[self._is_blamed]
        median = np.full(self._cases, np.nan)
        cases_with_others = self._case[~self._is_blamed][self._others.first]
        median[cases_with_others] = self._others.median(values[~self._is_blamed])
        return np.nan_to_num(blamed_values - median, nan=_NO_EXCESS)


def group_by_rank(ranks: Int64s) -> list[tuple[int, Int64s]]:
    """Return each rank with its entries' positions."""
    if not len(ranks):
        return []
    order = np.argsort(ranks, kind="stable")
    numbers, first = np.unique(ranks[order], return_index=True)
    return list(zip(numbers.tolist(), np.split(order, first[1:]), strict=True))


def refine_host_reasons(
    reason: ReasonArray,
    lost_ns: Floats,
    ran_dry_cases: Mask,
    cases: LateCases,
    compared: ComparedIntervals,
    work: Mapping[int, RankWork],
    calls: ReadCalls,
) -> ReasonArray:
    """Replace HOST by the kind of call that explains most of the lost time, if any.

    On a CPU, a data loader also computes, so COMPUTE is refined there as well.

    Args:
        reason: Each case's reason.
        lost_ns: Time to explain.
        ran_dry_cases: Cases whose device ran dry.
        cases, compared, work, calls: As in :func:`find_reasons`.
    """
    is_refinable = (reason == LateReason.HOST) | (
        (reason == LateReason.COMPUTE) & ~_are_on_device(cases, work)
    )
    if not is_refinable.any():
        return reason
    call_times = _measure_calls(
        np.flatnonzero(is_refinable[compared.case]), compared, ran_dry_cases, work, calls
    )
    excess = CaseExcess(cases, compared)
    call_excess = np.column_stack([excess.of(line) for line in call_times])
    call_reason = np.array(_CALL_REASONS, dtype=object)[np.argmax(call_excess, axis=1)]
    is_explained = is_refinable & (call_excess.max(axis=1) >= np.maximum(1, _MIN_CALL_RATIO * lost_ns))
    is_explained &= (reason == LateReason.HOST) | (call_reason == LateReason.DATA)
    return np.where(is_explained, call_reason, reason)


def _are_on_device(cases: LateCases, work: Mapping[int, RankWork]) -> Mask:
    """Mark the cases whose blamed rank computes on an accelerator."""
    return np.array([work[rank].on_device for rank in cases.blamed.tolist()], dtype=np.bool_)


def _measure_calls(
    selected: Int64s,
    compared: ComparedIntervals,
    ran_dry_cases: Mask,
    work: Mapping[int, RankWork],
    calls: ReadCalls,
) -> tuple[Int64s, Int64s, Int64s]:
    """Return the time in the loader, the allocator and waits, for the ``selected`` intervals."""
    call_times = tuple(np.zeros(len(compared.row), dtype=np.int64) for _ in _CALL_REASONS)
    for rank, positions in group_by_rank(compared.rank[selected]):
        own_rows, host_calls, busy = selected[positions], calls(rank), work[rank].busy
        ran_dry = ran_dry_cases[compared.case[own_rows]] & work[rank].on_device
        spans = (host_calls.loader, host_calls.allocator, host_calls.sync)
        extended_spans = (
            host_calls.loader,
            host_calls.allocator,
            union(intervals(host_calls.sync[:, 0], host_calls.sync[:, 1] + _MAX_AFTER_SYNC_NS)),
        )
        for times, all_spans, extended in zip(call_times, spans, extended_spans, strict=True):
            in_program = covered(all_spans, compared.launched_from[own_rows], compared.launched_to[own_rows])
            in_time = covered(subtract(extended, busy), compared.begin[own_rows], compared.end[own_rows])
            times[own_rows] = np.where(ran_dry, in_time, in_program)
    return call_times[0], call_times[1], call_times[2]


def find_reasons(
    rows: LateRows,
    cases: LateCases,
    compared: ComparedIntervals,
    work: Mapping[int, RankWork],
    calls: ReadCalls,
) -> tuple[ReasonArray, Mask]:
    """Return all cases' reasons, and a mask of those that waited for the previous collective on their stream.

    UNKNOWN if no reason explains half of the lateness.
    """
    if not len(cases):
        return np.empty(0, object), np.empty(0, np.bool_)
    excess = CaseExcess(cases, compared)
    measured = _measure_activities(compared, work)
    queue_delay = _measure_queue_delay(rows, cases, compared, excess)
    blocked, idle = excess.of(measured["blocked"]), excess.of(measured["idle"])
    min_explained = _MIN_EXPLAINED_RATIO * np.maximum(cases.late_ns, 1)
    started_after_compute = cases.start - rows.computed[cases.row] <= _RIGHT_BEFORE_RATIO * cases.late_ns
    is_queued = (queue_delay >= min_explained) & ~started_after_compute
    compute = np.where(is_queued, -np.inf, excess.of(measured["compute"]))
    device_excess = np.column_stack(
        (compute, excess.of(measured["copies"]), np.maximum(blocked, queue_delay))
    )
    # The delay of a launch relative to other ranks, if the collective started right after it. Times are
    # relative to the late rank's start, because absolute times have too many digits for a float.
    known = rows.launch_known[cases.row] & _are_on_device(cases, work)
    known &= cases.start - rows.launch[cases.row] <= _RIGHT_BEFORE_RATIO * cases.late_ns
    launch_delay = np.where(known, excess.of(compared.launched_to - cases.start[compared.case]), -np.inf)
    host = np.maximum(idle, launch_delay)
    host = np.minimum(host, _measure_slower_host(cases, compared, excess, work, calls))
    reason = np.where(host >= min_explained, LateReason.HOST, LateReason.UNKNOWN).astype(object)
    device_reason = np.array(_DEVICE_REASONS, dtype=object)[np.argmax(device_excess, axis=1)]
    reason = np.where(device_excess.max(axis=1) >= min_explained, device_reason, reason)
    lost_ns = np.where(reason == LateReason.HOST, np.minimum(host, cases.late_ns), cases.late_ns)
    reason = refine_host_reasons(reason, lost_ns, idle >= min_explained, cases, compared, work, calls)
    return reason, queue_delay > blocked


def _measure_activities(compared: ComparedIntervals, work: Mapping[int, RankWork]) -> dict[str, Int64s]:
    """Return the compute, copies, blocked and idle time of each compared interval."""
    measured = {
        name: np.zeros(len(compared.row), dtype=np.int64) for name in ("compute", "copies", "blocked", "idle")
    }
    for rank, positions in group_by_rank(compared.rank):
        rank_work = work[rank]
        program = compared.launched_from[positions], compared.launched_to[positions]
        span = program if not rank_work.on_device else (compared.begin[positions], compared.end[positions])
        compute = covered(rank_work.compute, *span)
        if rank_work.on_device:
            compute = np.where(
                compared.launch_known[positions], rank_work.sum_launched_compute(*program), compute
            )
        measured["compute"][positions] = compute
        measured["copies"][positions] = covered(rank_work.copies, *span)
        measured["blocked"][positions] = covered(rank_work.blocked, *span)
        idle = np.maximum(0, span[1] - span[0]) - covered(rank_work.busy, *span)
        measured["idle"][positions] = idle
    return measured


def _measure_queue_delay(
    rows: LateRows, cases: LateCases, compared: ComparedIntervals, excess: CaseExcess
) -> Floats:
    """Measure how much later than on other ranks the stream became free, if the start followed
    immediately.
    """
    free = rows.previous[cases.row]
    right_after = cases.start - free <= _RIGHT_BEFORE_RATIO * cases.late_ns
    right_after &= free > rows.launch[cases.row]
    later = excess.of(rows.previous[compared.row] - cases.start[compared.case])
    return np.where(right_after, np.minimum(later, cases.late_ns), -np.inf)


def _measure_slower_host(
    cases: LateCases,
    compared: ComparedIntervals,
    excess: CaseExcess,
    work: Mapping[int, RankWork],
    calls: ReadCalls,
) -> Floats:
    """Measure the interval's extra host time, without waits for other ranks; inf if unknown."""
    duration = compared.launched_to - compared.launched_from
    is_known = compared.launch_known.copy()
    for rank, positions in group_by_rank(compared.rank):
        is_known[positions] &= work[rank].on_device
        if is_known[positions].any():
            host_calls = calls(rank)
            waits = intersect(union(host_calls.sync, host_calls.allocator), work[rank].blocked)
            end = np.maximum(compared.launched_from[positions], compared.launched_to[positions])
            duration[positions] -= covered(waits, compared.launched_from[positions], end)
    unknown = np.zeros(len(cases), dtype=np.bool_)
    unknown[compared.case[~is_known]] = True
    return np.where(unknown, np.inf, excess.of(duration))
