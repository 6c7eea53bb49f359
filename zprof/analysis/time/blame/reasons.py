"""Find why the blamed rank came late: what took it longer than the median of the other ranks of its group.

    compute             kernels that the program launched in the stretch, whenever they ran
    memcpy              copies of the device not hidden by anything else
    previous collective time held up by other collectives, or the stream still busy with the previous one
    host                idle time, or a late launch, to the extent that the host took longer for the same work

The largest of the first three is the reason if it explains half of the lateness, else the host; a host that
was slow because its device was slow is not the reason, hence the order. A late host is then split by its
calls: data loader, allocator, waiting for the device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zprof.analysis.intervals import Int64s, Intervals, covered, intersect, intervals, subtract, union
from zprof.analysis.time.blame.cases import Excess, LateCases, LateRows, Stretches, group_by_rank
from zprof.analysis.time.collective_rows import Floats, Mask
from zprof.analysis.time.host_calls import HostCalls
from zprof.analysis.time.rank import RankWork
from zprof.model.time import LateReason

ReadCalls = Callable[[int], HostCalls]
ReasonArray = npt.NDArray[np.object_]
#: An empty queue is attributed to a wait for the device for at most this long after it.
_MAX_AFTER_SYNC_NS = 1_000_000
_CALL_REASONS = (LateReason.DATA, LateReason.ALLOCATOR, LateReason.SYNC)
_MIN_CALL_RATIO = 0.5


def refine_host_reasons(
    reason: ReasonArray,
    lost_ns: Floats,
    dry: Mask,
    cases: LateCases,
    stretches: Stretches,
    work: Mapping[int, RankWork],
    calls: ReadCalls,
) -> ReasonArray:
    """Return the reasons, with HOST refined if calls explain most of it.

    A loader on the CPU also computes, so COMPUTE is refined there as well.

    Args:
        reason: Reason of each case.
        lost_ns: Time to be explained.
        dry: Cases whose device ran dry.
        cases, stretches, work, calls: As in :func:`find_reasons`.
    """
    on_cpu = np.array([not work[rank].on_device for rank in cases.blamed.tolist()], dtype=np.bool_)
    asked = (reason == LateReason.HOST) | ((reason == LateReason.COMPUTE) & on_cpu)
    if not asked.any():
        return reason
    spent = _measure_calls(np.flatnonzero(asked[stretches.case]), stretches, dry, work, calls)
    excess = Excess(cases, stretches)
    more = np.column_stack([excess.of(line) for line in spent])
    called = np.array(_CALL_REASONS, dtype=object)[np.argmax(more, axis=1)]
    enough = asked & (more.max(axis=1) >= np.maximum(1, _MIN_CALL_RATIO * lost_ns))
    enough &= (reason == LateReason.HOST) | (called == LateReason.DATA)
    refined: ReasonArray = np.where(enough, called, reason)
    return refined


def _measure_calls(
    asked: Int64s, stretches: Stretches, dry: Mask, work: Mapping[int, RankWork], calls: ReadCalls
) -> tuple[Int64s, Int64s, Int64s]:
    """Return the time in the loader, the allocator and waits, for the stretches in ``asked``."""
    spent = tuple(np.zeros(len(stretches.row), dtype=np.int64) for _ in _CALL_REASONS)
    for rank, mine in group_by_rank(stretches.rank[asked]):
        chosen, found, busy = asked[mine], calls(rank), work[rank].busy
        when_dry = dry[stretches.case[chosen]] & work[rank].on_device
        spans = (found.loader, found.allocator, found.sync)
        after = (found.loader, found.allocator, _extend_after(found.sync))
        for line, all_of_it, longer in zip(spent, spans, after, strict=True):
            in_program = covered(all_of_it, stretches.launched_from[chosen], stretches.launched_to[chosen])
            in_time = covered(subtract(longer, busy), stretches.begin[chosen], stretches.end[chosen])
            line[chosen] = np.where(when_dry, in_time, in_program)
    return spent[0], spent[1], spent[2]


def _extend_after(spans: Intervals) -> Intervals:
    return union(intervals(spans[:, 0], spans[:, 1] + _MAX_AFTER_SYNC_NS))


_MIN_EXPLAINED_RATIO = 0.5
#: If a launch, or the release of a stream, precedes the start by at most this share of the lateness, the
#: start waited for it.
_RIGHT_BEFORE_RATIO = 0.25
_DEVICE_REASONS = (LateReason.COMPUTE, LateReason.MEMCPY, LateReason.PREVIOUS_COLLECTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """One entry per case; ``queued``: it waited for the previous collective on its stream."""

    reason: ReasonArray
    queued: Mask
    begin: Int64s


def find_reasons(
    rows: LateRows, cases: LateCases, stretches: Stretches, work: Mapping[int, RankWork], calls: ReadCalls
) -> Reasons:
    """Return the reasons of all cases; UNKNOWN if nothing explains most of it, or there is no stretch."""
    if not len(cases):
        return Reasons(reason=np.empty(0, object), queued=np.empty(0, np.bool_), begin=np.empty(0, np.int64))
    excess = Excess(cases, stretches)
    done = _measure_stretches(stretches, work)
    queue = _measure_queue_delay(rows, cases, stretches, excess)
    held_up, idle = excess.of(done["held_up"]), excess.of(done["idle"])
    most = _MIN_EXPLAINED_RATIO * np.maximum(cases.late_ns, 1)
    compute = np.where(
        (queue >= most) & ~_started_after_compute(rows, cases), -np.inf, excess.of(done["compute"])
    )
    deep = np.column_stack((compute, excess.of(done["copies"]), np.maximum(held_up, queue)))
    host = np.maximum(idle, _measure_launch_delay(rows, cases, stretches, excess, work))
    host = np.minimum(host, _measure_slower_host(cases, stretches, excess, work, calls))
    reason = np.where(host >= most, LateReason.HOST, LateReason.UNKNOWN).astype(object)
    deepest = np.array(_DEVICE_REASONS, dtype=object)[np.argmax(deep, axis=1)]
    reason = np.where(deep.max(axis=1) >= most, deepest, reason)
    lost = np.minimum(host, cases.late_ns)
    begin = np.full(len(cases), np.iinfo(np.int64).max)
    begin[stretches.case] = stretches.begin
    return Reasons(
        reason=refine_host_reasons(
            reason,
            np.where(reason == LateReason.HOST, lost, cases.late_ns),
            idle >= most,
            cases,
            stretches,
            work,
            calls,
        ),
        queued=queue > held_up,
        begin=begin,
    )


def _measure_stretches(stretches: Stretches, work: Mapping[int, RankWork]) -> dict[str, Int64s]:
    """Return compute, copies, held_up and idle of each stretch; filled rank by rank."""
    done = {
        name: np.zeros(len(stretches.row), dtype=np.int64)
        for name in ("compute", "copies", "held_up", "idle")
    }
    for rank, mine in group_by_rank(stretches.rank):
        did = work[rank]
        program = stretches.launched_from[mine], stretches.launched_to[mine]
        span = program if not did.on_device else (stretches.begin[mine], stretches.end[mine])
        compute = did.computed(*span)
        if did.on_device:
            compute = np.where(stretches.launch_known[mine], did.computed_in_program(*program), compute)
        done["compute"][mine] = compute
        done["copies"][mine] = did.copied(*span)
        done["held_up"][mine] = did.held_up(*span)
        done["idle"][mine] = did.idle(*span)
    return done


def _measure_queue_delay(rows: LateRows, cases: LateCases, stretches: Stretches, excess: Excess) -> Floats:
    """Return how much later the stream got free than on the others, if the start came right after that."""
    free = rows.previous[cases.row]
    right_after = cases.start - free <= _RIGHT_BEFORE_RATIO * cases.late_ns
    right_after &= free > rows.launch[cases.row]
    later = excess.of(_relative_to_start(rows.previous[stretches.row], cases, stretches))
    return np.where(right_after, np.minimum(later, cases.late_ns), -np.inf)


def _started_after_compute(rows: LateRows, cases: LateCases) -> Mask:
    """Mark cases that started right after compute ended; the other ranks did not wait for that compute."""
    right_after: Mask = cases.start - rows.computed[cases.row] <= _RIGHT_BEFORE_RATIO * cases.late_ns
    return right_after


def _measure_launch_delay(
    rows: LateRows, cases: LateCases, stretches: Stretches, excess: Excess, work: Mapping[int, RankWork]
) -> Floats:
    """Return how much later than on the others a collective was launched, if it started right after."""
    known = rows.launch_known[cases.row]
    known &= np.array([work[rank].on_device for rank in cases.blamed.tolist()], dtype=np.bool_)
    known &= cases.start - rows.launch[cases.row] <= _RIGHT_BEFORE_RATIO * cases.late_ns
    return np.where(known, excess.of(_relative_to_start(stretches.launched_to, cases, stretches)), -np.inf)


def _measure_slower_host(
    cases: LateCases, stretches: Stretches, excess: Excess, work: Mapping[int, RankWork], calls: ReadCalls
) -> Floats:
    """Return how much longer the host took for the stretch, without waits for others; inf if unknown."""
    took = stretches.launched_to - stretches.launched_from
    is_known = stretches.launch_known.copy()
    for rank, mine in group_by_rank(stretches.rank):
        is_known[mine] &= work[rank].on_device
        if is_known[mine].any():
            called = calls(rank)
            waits = intersect(union(called.sync, called.allocator), work[rank].blocked)
            until = np.maximum(stretches.launched_from[mine], stretches.launched_to[mine])
            took[mine] -= covered(waits, stretches.launched_from[mine], until)
    unknown = np.zeros(len(cases), dtype=np.bool_)
    unknown[stretches.case[~is_known]] = True
    slower: Floats = np.where(unknown, np.inf, excess.of(took))
    return slower


def _relative_to_start(times: Int64s, cases: LateCases, stretches: Stretches) -> Int64s:
    """Return times relative to the late rank's start; absolute ones have too many digits for a float."""
    from_start: Int64s = times - cases.start[stretches.case]
    return from_start
