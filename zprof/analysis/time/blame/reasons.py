"""Why the blamed rank came late: what it did longer than the median of the other ranks of its group.

Over the stretch since all were in step (:mod:`...stretches`) its excess is found of

    compute             of the kernels that the program launched in it, whenever these ran
    memcpy              copies of the device under nothing else
    previous collective time held up by other collectives, or the stream still busy with the one before
    host                idle time; of a rank whose launch itself came late, the lateness of that; either
                        as far as the host took longer than the others for the same piece of the program:
                        one that only started late is as far behind at its begin, and has no reason in it

and the largest of the first three names the reason where it explains half of the lateness, else the host.
A host that was slow because its device was is not to blame, hence the order.  Of the host it is then
asked whether it spent the excess in the data loader, the allocator, or waiting for the device.  On a CPU
rank the main thread is all of this at once, and stretches are those of its program.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Int64s, covered, intersect, union
from zprof.analysis.time.blame.cases import Cases, Rows
from zprof.analysis.time.blame.excess import Excess, by_rank
from zprof.analysis.time.blame.host_reasons import CallsOf, Texts, reasons_of_host
from zprof.analysis.time.blame.stretches import Stretches
from zprof.analysis.time.blame.work import RankWork
from zprof.analysis.time.transfer.instances import Floats, Mask
from zprof.model.time import LateReason

_MOST = 0.5
#: A launch, or a stream that got free, this share of the lateness before the start is what it waited for.
_RIGHT_BEFORE = 0.25
_DEEP = (LateReason.COMPUTE, LateReason.MEMCPY, LateReason.PREVIOUS_COLLECTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """One entry a case.  ``queued``: what it waited for is the collective before it on its stream."""

    reason: Texts
    queued: Mask
    begin: Int64s


def find_reasons(
    rows: Rows, cases: Cases, stretches: Stretches, work: Mapping[int, RankWork], calls: CallsOf
) -> Reasons:
    """Reasons of all cases; UNKNOWN where nothing explains most of it, or there is no stretch."""
    if not len(cases):
        return Reasons(reason=np.empty(0, object), queued=np.empty(0, np.bool_), begin=np.empty(0, np.int64))
    excess = Excess(cases, stretches)
    done = _measured(stretches, work)
    queue = _queue(rows, cases, stretches, excess)
    held_up, idle = excess.of(done["held_up"]), excess.of(done["idle"])
    most = _MOST * np.maximum(cases.late_ns, 1)
    compute = np.where((queue >= most) & ~_after_compute(rows, cases), -np.inf, excess.of(done["compute"]))
    deep = np.column_stack((compute, excess.of(done["copies"]), np.maximum(held_up, queue)))
    host = np.maximum(idle, _launch(rows, cases, stretches, excess, work))
    host = np.minimum(host, _slower_host(cases, stretches, excess, work, calls))
    reason = np.where(host >= most, LateReason.HOST, LateReason.UNKNOWN).astype(object)
    deepest = np.array(_DEEP, dtype=object)[np.argmax(deep, axis=1)]
    reason = np.where(deep.max(axis=1) >= most, deepest, reason)
    lost = np.minimum(host, cases.late_ns)
    begin = np.full(len(cases), np.iinfo(np.int64).max)
    begin[stretches.case] = stretches.begin
    return Reasons(
        reason=reasons_of_host(
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


def _measured(stretches: Stretches, work: Mapping[int, RankWork]) -> dict[str, Int64s]:
    """Compute, copies, held_up and idle of each stretch, one rank after another."""
    done = {
        name: np.zeros(len(stretches.row), dtype=np.int64)
        for name in ("compute", "copies", "held_up", "idle")
    }
    for rank, mine in by_rank(stretches.rank):
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


def _queue(rows: Rows, cases: Cases, stretches: Stretches, excess: Excess) -> Floats:
    """How much later than on the others the stream got free, where the start came right after that."""
    free = rows.previous[cases.row]
    right_after = cases.start - free <= _RIGHT_BEFORE * cases.late_ns
    right_after &= free > rows.launch[cases.row]
    later = excess.of(_from_start(rows.previous[stretches.row], cases, stretches))
    return np.where(right_after, np.minimum(later, cases.late_ns), -np.inf)


def _after_compute(rows: Rows, cases: Cases) -> Mask:
    """Cases that started right after compute ended: others did not wait for it, however long it ran."""
    right_after: Mask = cases.start - rows.computed[cases.row] <= _RIGHT_BEFORE * cases.late_ns
    return right_after


def _launch(
    rows: Rows, cases: Cases, stretches: Stretches, excess: Excess, work: Mapping[int, RankWork]
) -> Floats:
    """How much later than on the others a device's collective was launched, where it started right after."""
    known = rows.launch_known[cases.row]
    known &= np.array([work[rank].on_device for rank in cases.blamed.tolist()], dtype=np.bool_)
    known &= cases.start - rows.launch[cases.row] <= _RIGHT_BEFORE * cases.late_ns
    return np.where(known, excess.of(_from_start(stretches.launched_to, cases, stretches)), -np.inf)


def _slower_host(
    cases: Cases, stretches: Stretches, excess: Excess, work: Mapping[int, RankWork], calls: CallsOf
) -> Floats:
    """How much longer the host took for the stretch, waits for others aside; inf where that is unknown."""
    took = stretches.launched_to - stretches.launched_from
    is_known = stretches.launch_known.copy()
    for rank, mine in by_rank(stretches.rank):
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


def _from_start(times: Int64s, cases: Cases, stretches: Stretches) -> Int64s:
    """Times as distances to the late rank's start: absolute ones are too long for a float."""
    from_start: Int64s = times - cases.start[stretches.case]
    return from_start
