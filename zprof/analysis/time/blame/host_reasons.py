"""What the host of a late rank did with the time that it lost, as far as its calls show it.

Where the device ran dry, calls count for the time in which it was dry; a wait for the device also for a
moment after it, for the host then launches with nothing in the queue.  Where the device was busy and the
launch itself came late, and on a CPU rank, calls count for all of their time in that piece of the program.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from zprof.analysis.intervals import Int64s, Intervals, covered, intervals, subtract, union
from zprof.analysis.time.blame.cases import Cases
from zprof.analysis.time.blame.excess import Excess, by_rank
from zprof.analysis.time.blame.stretches import Stretches
from zprof.analysis.time.blame.work import RankWork
from zprof.analysis.time.host.calls import HostCalls
from zprof.analysis.time.transfer.instances import Floats, Mask
from zprof.model.time import LateReason

CallsOf = Callable[[int], HostCalls]
Texts = npt.NDArray[np.object_]
#: How long after a wait for the device its empty queue is that wait's doing.
_AFTER_SYNC_NS = 1_000_000
_CALLS = (LateReason.DATA, LateReason.ALLOCATOR, LateReason.SYNC)
_MOST = 0.5


def reasons_of_host(
    reason: Texts,
    lost_ns: Floats,
    dry: Mask,
    cases: Cases,
    stretches: Stretches,
    work: Mapping[int, RankWork],
    calls: CallsOf,
) -> Texts:
    """The reasons with HOST made more exact where calls explain most of it.

    A CPU's loader also computes, so there COMPUTE is looked at as well.

    Args:
        reason: Of each case.
        lost_ns: What is to be explained.
        dry: Cases whose device ran dry.
        cases, stretches, work, calls: As elsewhere.
    """
    on_cpu = np.array([not work[rank].on_device for rank in cases.blamed.tolist()], dtype=np.bool_)
    asked = (reason == LateReason.HOST) | ((reason == LateReason.COMPUTE) & on_cpu)
    if not asked.any():
        return reason
    spent = _spent(np.flatnonzero(asked[stretches.case]), stretches, dry, work, calls)
    excess = Excess(cases, stretches)
    more = np.column_stack([excess.of(line) for line in spent])
    called = np.array(_CALLS, dtype=object)[np.argmax(more, axis=1)]
    enough = asked & (more.max(axis=1) >= np.maximum(1, _MOST * lost_ns))
    enough &= (reason == LateReason.HOST) | (called == LateReason.DATA)
    refined: Texts = np.where(enough, called, reason)
    return refined


def _spent(
    asked: Int64s, stretches: Stretches, dry: Mask, work: Mapping[int, RankWork], calls: CallsOf
) -> tuple[Int64s, Int64s, Int64s]:
    """Time in the loader, the allocator and waits, of the stretches asked for."""
    spent = tuple(np.zeros(len(stretches.row), dtype=np.int64) for _ in _CALLS)
    for rank, mine in by_rank(stretches.rank[asked]):
        chosen, found, busy = asked[mine], calls(rank), work[rank].busy
        when_dry = dry[stretches.case[chosen]] & work[rank].on_device
        spans = (found.loader, found.allocator, found.sync)
        after = (found.loader, found.allocator, _and_after(found.sync))
        for line, all_of_it, longer in zip(spent, spans, after, strict=True):
            in_program = covered(all_of_it, stretches.launched_from[chosen], stretches.launched_to[chosen])
            in_time = covered(subtract(longer, busy), stretches.begin[chosen], stretches.end[chosen])
            line[chosen] = np.where(when_dry, in_time, in_program)
    return spent[0], spent[1], spent[2]


def _and_after(spans: Intervals) -> Intervals:
    return union(intervals(spans[:, 0], spans[:, 1] + _AFTER_SYNC_NS))
