"""Follows a delay back to the rank where it began.

A rank that came late because it was itself held up by another collective passes a delay on.  Each case then
points to the collective that held its rank up most (or the one before on its stream) since all were in
step; that one has a blamed rank too.  It came before: the pointers go back in time and cannot turn in
a circle, and jumping along all of them at once needs few rounds, however long a chain is.
"""

from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.blame.cases import Cases, Rows
from zprof.analysis.time.blame.reasons import Reasons
from zprof.analysis.time.transfer.instances import Mask
from zprof.model.time import LateReason

#: Rounds of jumps that double in length: more than any chain needs.
_MOST_ROUNDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """One entry a case: the rank where the delay began, and the reason, its own where it began there."""

    rank: Int64s
    reason: np.ndarray[tuple[int], np.dtype[np.object_]]


def find_origins(rows: Rows, cases: Cases, reasons: Reasons) -> Origins:
    """Origins of all cases."""
    passed_on = np.flatnonzero(reasons.reason == LateReason.PREVIOUS_COLLECTIVE)
    cause = np.full(len(cases), -1, dtype=np.int64)
    cause[passed_on] = _held_up_by(rows, cases, reasons, passed_on)
    queued = passed_on[reasons.queued[passed_on]]
    cause[queued] = _case_of(rows, cases, rows.previous_instance[cases.row[queued]])
    earlier = (cause >= 0) & (cases.start[cause] < cases.start) if len(cases) else cause >= 0
    root = roots(np.where(earlier, cause, np.arange(len(cases))))
    origin = cases.blamed[root]
    began_here = earlier & (origin == cases.blamed)
    return Origins(rank=origin, reason=np.where(began_here, reasons.reason[root], reasons.reason))


def roots(cause: Int64s) -> Int64s:
    """The end of each chain of pointers; an end points to itself."""
    for _ in range(_MOST_ROUNDS):
        further = cause[cause]
        if (further == cause).all():
            break
        cause = further
    return cause


def _case_of(rows: Rows, cases: Cases, instances: Int64s) -> Int64s:
    """The case of each instance; -1 without one."""
    if not len(cases):
        return np.full(len(instances), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(cases.instance, instances), len(cases) - 1)
    return np.where(cases.instance[place] == instances, place, -1)


def _held_up_by(rows: Rows, cases: Cases, reasons: Reasons, wanted: Int64s) -> Int64s:
    """For each wanted case that of the collective in which its rank was held up longest in the stretch."""
    found = np.full(len(wanted), -1, dtype=np.int64)
    for rank in np.unique(cases.blamed[wanted]):
        mine = np.flatnonzero(cases.blamed[wanted] == rank)
        here = np.flatnonzero((rows.rank == rank) & (cases.of_row >= 0))
        here = here[np.argsort(rows.start[here], kind="stable")]
        reach = np.maximum.accumulate(rows.arrival[here]) if len(here) else here
        low = np.searchsorted(reach, reasons.begin[wanted[mine]], side="right")
        high = np.searchsorted(rows.start[here], cases.start[wanted[mine]], side="left")
        best = largest_within(rows.exposed_wait[here], low, high)
        held = (best >= 0) & _waited(rows, here, best)
        found[mine] = np.where(held, cases.of_row[here[np.maximum(best, 0)]] if len(here) else -1, -1)
    return found


def _waited(rows: Rows, here: Int64s, best: Int64s) -> Mask:
    waited: Mask = rows.exposed_wait[here[np.maximum(best, 0)]] > 0 if len(here) else best > len(best)
    return waited


def largest_within(values: Int64s, low: Int64s, high: Int64s) -> Int64s:
    """The place of the largest of ``values[low:high]`` for each pair; -1 where that is empty.

    A table of the winners of all stretches whose length is a power of two answers each with two look-ups.
    """
    length = high - low
    answer = np.full(len(low), -1, dtype=np.int64)
    asked = np.flatnonzero(length > 0)
    winners = np.arange(len(values))
    size = 1
    while len(asked):
        now = asked[(length[asked] >= size) & (length[asked] < 2 * size)]
        first, second = winners[low[now]], winners[high[now] - size]
        answer[now] = np.where(values[second] > values[first], second, first)
        asked = asked[length[asked] >= 2 * size]
        if len(asked):
            first, second = winners[:-size], winners[size:]
            winners = np.where(values[second] > values[first], second, first)
        size *= 2
    return answer
