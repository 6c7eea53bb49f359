"""Why the blamed rank came late: what it did longer than the median of the other ranks of its group.

Over the stretch since all were in step (:mod:`...stretches`) its excess is found of

    compute             of the kernels that the program launched in it, whenever these ran
    memcpy              copies of the device under nothing else
    previous collective time held up by other collectives, or the stream still busy with the one before
    host                idle time; of a rank whose launch itself came late, the lateness of that

and the largest of the first three names the reason where it explains half of the lateness, else the host.
A host that was slow because its device was is not to blame, hence the order.  Of the host it is then
asked whether it spent the excess in the data loader, the allocator, or waiting for the device.  On a CPU
rank the main thread is all of this at once, and stretches are those of its program.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s, covered
from zprof.analysis.time.blame.cases import Cases, Rows
from zprof.analysis.time.blame.host_calls import HostCalls
from zprof.analysis.time.blame.stretches import Stretches
from zprof.analysis.time.blame.work import RankWork
from zprof.analysis.time.transfer.instances import Floats, Mask
from zprof.model.time import LateReason

_MOST = 0.5
#: A launch, or a stream that got free, this share of the lateness before the start is what it waited for.
_RIGHT_BEFORE = 0.25
_DEEP = (LateReason.COMPUTE, LateReason.MEMCPY, LateReason.PREVIOUS_COLLECTIVE)
_CALLS = (LateReason.DATA, LateReason.ALLOCATOR, LateReason.SYNC)
CallsOf = Callable[[int], HostCalls]
_Texts = np.ndarray[tuple[int], np.dtype[np.object_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """One entry a case.  ``queued``: what it waited for is the collective before it on its stream."""

    reason: _Texts
    queued: Mask
    begin: Int64s


def find_reasons(
    rows: Rows, cases: Cases, stretches: Stretches, work: Mapping[int, RankWork], calls: CallsOf
) -> Reasons:
    """Reasons of all cases; UNKNOWN where nothing explains most of it, or there is no stretch."""
    excess = _Excess(cases, stretches)
    done = _measured(stretches, work)
    held_up, queued = _previous(rows, cases, stretches, excess, done["held_up"])
    deep = np.column_stack((excess.of(done["compute"]), excess.of(done["copies"]), held_up))
    deep = np.nan_to_num(deep, nan=-np.inf)
    host = _host(rows, cases, stretches, excess, done["idle"], work)
    most = _MOST * np.maximum(cases.late_ns, 1)
    chosen = np.array(_DEEP, dtype=object)[np.argmax(deep, axis=1)] if len(cases) else np.empty(0, object)
    reason = np.where(deep.max(axis=1) >= most, chosen, LateReason.UNKNOWN) if len(cases) else chosen
    reason = np.where((reason == LateReason.UNKNOWN) & (host >= most), LateReason.HOST, reason)
    begin = np.full(len(cases), np.iinfo(np.int64).max)
    begin[stretches.case] = stretches.begin
    reason = _of_host(reason, np.minimum(host, cases.late_ns), cases, stretches, excess, work, calls)
    return Reasons(reason=reason, queued=queued, begin=begin)


class _Excess:
    """The blamed rank's value minus the median of the other ranks, of a value a stretch; NaN without both."""

    def __init__(self, cases: Cases, stretches: Stretches) -> None:
        self._cases = len(cases)
        self._case = stretches.case
        self._mine = stretches.rank == cases.blamed[stretches.case]

    def of(self, values: Int64s | Floats) -> Floats:
        out = np.full(self._cases, np.nan)
        others = pd.Series(values[~self._mine]).groupby(self._case[~self._mine]).median()
        out[self._case[self._mine]] = values[self._mine]
        median = np.full(self._cases, np.nan)
        median[others.index.to_numpy(np.int64)] = others.to_numpy(np.float64)
        excess: Floats = out - median
        return excess


def _measured(stretches: Stretches, work: Mapping[int, RankWork]) -> dict[str, Int64s]:
    """Compute, copies, held_up and idle of each stretch, one rank after another."""
    done = {
        name: np.zeros(len(stretches.row), dtype=np.int64)
        for name in ("compute", "copies", "held_up", "idle")
    }
    for rank, mine in _by_rank(stretches.rank):
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


def _previous(
    rows: Rows, cases: Cases, stretches: Stretches, excess: _Excess, held_up: Int64s
) -> tuple[Floats, Mask]:
    """Excess of the time held up by collectives, or that of the end of the one before on the stream."""
    blocked = np.nan_to_num(excess.of(held_up), nan=-np.inf)
    before = rows.previous[cases.row]
    right_before = cases.start - before <= _RIGHT_BEFORE * cases.late_ns
    right_before &= before > rows.launch[cases.row]
    later = np.nan_to_num(excess.of(rows.previous[stretches.row].astype(np.float64)), nan=-np.inf)
    later = np.where(right_before, np.minimum(later, cases.late_ns), -np.inf)
    return np.maximum(blocked, later), later > blocked


def _host(
    rows: Rows,
    cases: Cases,
    stretches: Stretches,
    excess: _Excess,
    idle: Int64s,
    work: Mapping[int, RankWork],
) -> Floats:
    """Excess of idle time; of a launch that came right before the start, its own lateness where larger."""
    idled = np.nan_to_num(excess.of(idle), nan=-np.inf)
    late_launch = np.nan_to_num(excess.of(stretches.launched_to), nan=-np.inf)
    row = cases.row
    on_device = np.array([work[int(rank)].on_device for rank in cases.blamed], dtype=np.bool_)
    bound = on_device & rows.launch_known[row]
    bound &= cases.start - rows.launch[row] <= _RIGHT_BEFORE * cases.late_ns
    return np.where(bound, np.maximum(idled, late_launch), idled)


def _of_host(
    reason: _Texts,
    to_explain: Floats,
    cases: Cases,
    stretches: Stretches,
    excess: _Excess,
    work: Mapping[int, RankWork],
    calls: CallsOf,
) -> _Texts:
    """The reason with the host's own one where its calls show it; a CPU's loader also computes."""
    on_cpu = np.array([not work[int(rank)].on_device for rank in cases.blamed], dtype=np.bool_)
    asked = (reason == LateReason.HOST) | ((reason == LateReason.COMPUTE) & on_cpu)
    of_asked = np.flatnonzero(asked[stretches.case])
    spent = np.zeros((3, len(stretches.row)), dtype=np.int64)
    for rank, mine in _by_rank(stretches.rank[of_asked]):
        chosen, found = of_asked[mine], calls(rank)
        edges = stretches.launched_from[chosen], stretches.launched_to[chosen]
        for line, spans in zip(spent, (found.loader, found.allocator, found.sync), strict=True):
            line[chosen] = covered(spans, *edges)
    more = np.nan_to_num(np.column_stack([excess.of(line) for line in spent]), nan=-np.inf)
    if not asked.any():
        return reason
    called = np.array(_CALLS, dtype=object)[np.argmax(more, axis=1)]
    target = _MOST * np.where(reason == LateReason.COMPUTE, cases.late_ns, to_explain)
    enough = asked & (more.max(axis=1) >= np.maximum(target, 1))
    enough &= (reason == LateReason.HOST) | (called == LateReason.DATA)
    refined: _Texts = np.where(enough, called, reason)
    return refined


def _by_rank(ranks: Int64s) -> list[tuple[int, Int64s]]:
    """Each rank with the positions of its entries."""
    order = np.argsort(ranks, kind="stable")
    numbers, first = np.unique(ranks[order], return_index=True)
    return (
        [(int(number), mine) for number, mine in zip(numbers, np.split(order, first[1:]), strict=True)]
        if len(numbers)
        else []
    )
