"""Find why the blamed rank was late: what took longer than the median of the other ranks of its group.

    compute             kernels launched in the compared interval, regardless of when they ran
    memcpy              device copies not hidden by other activity
    previous collective time blocked by other collectives, or the stream still busy with the previous one
    host                idle time, or a late launch, to the extent that the host took longer for the same work

The largest of the first three is the reason if it explains half of the lateness, else the host. The host is
tested last because a host that was slow only because its device was slow is not the reason. A late host is
then split by its calls: data loader, allocator, waiting for the device.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zprof.analysis.columns import Floats, Mask
from zprof.analysis.intervals import Int64s, covered, intersect, intervals, subtract, union
from zprof.analysis.time.blame.late_arrivals import (
    CaseExcess,
    ComparedIntervals,
    LateCases,
    LateRows,
    group_by_rank,
)
from zprof.analysis.time.host_calls import HostCalls
from zprof.analysis.time.rank import RankWork
from zprof.model.time import LateReason

ReadCalls = Callable[[int], HostCalls]
ReasonArray = npt.NDArray[np.object_]
#: An empty queue is attributed to a wait for the device for at most this long after it.
_MAX_AFTER_SYNC_NS = 1_000_000
_CALL_REASONS = (LateReason.DATA, LateReason.ALLOCATOR, LateReason.SYNC)
_MIN_CALL_RATIO = 0.5
_MIN_EXPLAINED_RATIO = 0.5
#: If a launch, or the release of a stream, precedes the start by at most this share of the lateness, the
#: start waited for it.
_RIGHT_BEFORE_RATIO = 0.25
_DEVICE_REASONS = (LateReason.COMPUTE, LateReason.MEMCPY, LateReason.PREVIOUS_COLLECTIVE)


def refine_host_reasons(
    reason: ReasonArray,
    lost_ns: Floats,
    ran_dry_cases: Mask,
    cases: LateCases,
    compared: ComparedIntervals,
    work: Mapping[int, RankWork],
    calls: ReadCalls,
) -> ReasonArray:
    """Replace HOST by the kind of call that explains most of it, if any.

    A data loader on the CPU also computes, so COMPUTE is refined there as well.

    Args:
        reason: Reason of each case.
        lost_ns: Time to be explained.
        ran_dry_cases: Cases whose device ran dry.
        cases, compared, work, calls: As in :func:`find_reasons`.
    """
    on_cpu = np.array([not work[rank].on_device for rank in cases.blamed.tolist()], dtype=np.bool_)
    is_refinable = (reason == LateReason.HOST) | ((reason == LateReason.COMPUTE) & on_cpu)
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
    refined: ReasonArray = np.where(is_explained, call_reason, reason)
    return refined


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


class Reasons(Struct, frozen=True, kw_only=True):
    """One entry per case; ``queued``: it waited for the previous collective on its stream."""

    reason: ReasonArray
    queued: Mask
    begin: Int64s


def find_reasons(
    rows: LateRows,
    cases: LateCases,
    compared: ComparedIntervals,
    work: Mapping[int, RankWork],
    calls: ReadCalls,
) -> Reasons:
    """Return the reasons of all cases; UNKNOWN if no reason explains half of the lateness."""
    if not len(cases):
        return Reasons(reason=np.empty(0, object), queued=np.empty(0, np.bool_), begin=np.empty(0, np.int64))
    excess = CaseExcess(cases, compared)
    measured = _measure_activities(compared, work)
    queue_delay = _measure_queue_delay(rows, cases, compared, excess)
    blocked, idle = excess.of(measured["blocked"]), excess.of(measured["idle"])
    min_explained = _MIN_EXPLAINED_RATIO * np.maximum(cases.late_ns, 1)
    compute = np.where(
        (queue_delay >= min_explained) & ~_started_after_compute(rows, cases),
        -np.inf,
        excess.of(measured["compute"]),
    )
    device_excess = np.column_stack(
        (compute, excess.of(measured["copies"]), np.maximum(blocked, queue_delay))
    )
    host = np.maximum(idle, _measure_launch_delay(rows, cases, compared, excess, work))
    host = np.minimum(host, _measure_slower_host(cases, compared, excess, work, calls))
    reason = np.where(host >= min_explained, LateReason.HOST, LateReason.UNKNOWN).astype(object)
    device_reason = np.array(_DEVICE_REASONS, dtype=object)[np.argmax(device_excess, axis=1)]
    reason = np.where(device_excess.max(axis=1) >= min_explained, device_reason, reason)
    lost = np.minimum(host, cases.late_ns)
    begin = np.full(len(cases), np.iinfo(np.int64).max)
    begin[compared.case] = compared.begin
    return Reasons(
        reason=refine_host_reasons(
            reason,
            np.where(reason == LateReason.HOST, lost, cases.late_ns),
            idle >= min_explained,
            cases,
            compared,
            work,
            calls,
        ),
        queued=queue_delay > blocked,
        begin=begin,
    )


def _measure_activities(compared: ComparedIntervals, work: Mapping[int, RankWork]) -> dict[str, Int64s]:
    """Return the compute, copies, blocked and idle time of each compared interval."""
    measured = {
        name: np.zeros(len(compared.row), dtype=np.int64) for name in ("compute", "copies", "blocked", "idle")
    }
    for rank, positions in group_by_rank(compared.rank):
        rank_work = work[rank]
        program = compared.launched_from[positions], compared.launched_to[positions]
        span = program if not rank_work.on_device else (compared.begin[positions], compared.end[positions])
        compute = rank_work.measure_compute(*span)
        if rank_work.on_device:
            compute = np.where(
                compared.launch_known[positions], rank_work.sum_launched_compute(*program), compute
            )
        measured["compute"][positions] = compute
        measured["copies"][positions] = rank_work.measure_copies(*span)
        measured["blocked"][positions] = rank_work.measure_blocked_time(*span)
        measured["idle"][positions] = rank_work.measure_idle(*span)
    return measured


def _measure_queue_delay(
    rows: LateRows, cases: LateCases, compared: ComparedIntervals, excess: CaseExcess
) -> Floats:
    """Measure how much later than on other ranks the stream became free, if the start came right after."""
    free = rows.previous[cases.row]
    right_after = cases.start - free <= _RIGHT_BEFORE_RATIO * cases.late_ns
    right_after &= free > rows.launch[cases.row]
    later = excess.of(_relative_to_start(rows.previous[compared.row], cases, compared))
    return np.where(right_after, np.minimum(later, cases.late_ns), -np.inf)


def _started_after_compute(rows: LateRows, cases: LateCases) -> Mask:
    """Mark the cases that started right after compute ended."""
    right_after: Mask = cases.start - rows.computed[cases.row] <= _RIGHT_BEFORE_RATIO * cases.late_ns
    return right_after


def _measure_launch_delay(
    rows: LateRows,
    cases: LateCases,
    compared: ComparedIntervals,
    excess: CaseExcess,
    work: Mapping[int, RankWork],
) -> Floats:
    """Measure how much later than on other ranks a collective was launched, if it started right after."""
    known = rows.launch_known[cases.row]
    known &= np.array([work[rank].on_device for rank in cases.blamed.tolist()], dtype=np.bool_)
    known &= cases.start - rows.launch[cases.row] <= _RIGHT_BEFORE_RATIO * cases.late_ns
    return np.where(known, excess.of(_relative_to_start(compared.launched_to, cases, compared)), -np.inf)


def _measure_slower_host(
    cases: LateCases,
    compared: ComparedIntervals,
    excess: CaseExcess,
    work: Mapping[int, RankWork],
    calls: ReadCalls,
) -> Floats:
    """Measure the extra host time for the interval, without waits for others; inf if unknown."""
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
    slower: Floats = np.where(unknown, np.inf, excess.of(duration))
    return slower


def _relative_to_start(times: Int64s, cases: LateCases, compared: ComparedIntervals) -> Int64s:
    """Return times relative to the late rank's start; absolute times have too many digits for a float."""
    from_start: Int64s = times - cases.start[compared.case]
    return from_start
