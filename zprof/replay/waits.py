"""Find what each call of a host and each piece of device work waited for.

    start = max(launch + pick-up, end of the previous work on its stream, end of what it waits for) + lag

Work that starts later than its launch and its stream explain waited for work of another stream that ended
just before. What remains is its own lag.
"""

import re
from collections.abc import Mapping

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.model.collectives import CollectiveKind
from zprof.replay.structure import (
    REDUCING_KINDS,
    find_closing_gathers,
    find_gather_consumers,
    find_reduction_consumers,
    select_kinds,
)
from zprof.replay.tasks import NONE, Floats, RankTasks

#: Work waited for something if it starts this much later than its launch and its stream explain.
_STALL_NS = 4_000.0
#: Work may be stamped this much before the end that it follows: old traces have microseconds, clocks drift.
_RESOLUTION_NS = 1_000.0
#: Maximum time from the end of the awaited work to the start of the waiting work or the return of the call.
_RELEASE_NS = 40_000.0
#: Work that starts this soon after the end of a kernel was held by it.
_HELD_NS = 5_000.0
#: A shorter call did not block.
_BLOCKED_NS = 20_000.0
#: A longer launch was blocked by a full queue.
_QUEUE_FULL_NS = 100_000.0
#: Pending work that makes a queue full: a minimum (the driver takes about a thousand launches), and a share
#: of the maximum seen.
_MIN_QUEUE, _FULL_RATIO = 512, 0.75
#: Minimum number of alike host gaps that define what is usual.
_MIN_ALIKE = 3
_SYNCHRONIZE_CALLS = re.compile(r"(cuda|hip|cu)\w*Synchronize\w*", re.ASCII)


def find_pick_up(tasks: RankTasks) -> float:
    """Return the shortest time seen from the start of a launch to the start of its work, in ns."""
    launched = ~np.isnan(tasks.work[:, 0])
    delay = tasks.work[launched, 0] - tasks.call[launched, 0]
    delay = delay[delay > 0]
    return float(delay.min()) if len(delay) else 0.0


def read_host_times(tasks: RankTasks, begin: float) -> tuple[Floats, Floats]:
    """Return the host time before each call and in it, with all threads taken as one."""
    until = np.concatenate(([begin], np.maximum.accumulate(np.maximum(tasks.call[:-1, 1], begin))))
    gap = np.maximum(0.0, tasks.call[:, 0] - until)
    call = np.maximum(0.0, tasks.call[:, 1] - np.maximum(tasks.call[:, 0], until))
    return gap, call


def find_host_waits(tasks: RankTasks, gap: Floats, call: Floats) -> tuple[Floats, Floats, Int64s, Floats]:
    """Find where the host waited for device work, and remove these waits from its gaps and calls.

    Returns:
        The host's own time before each call and in it, the task whose work each call ends with (``NONE`` if
        none), and the time from the end of that work to the return.
    """
    gap, call = gap.copy(), call.copy()
    on = np.full(len(tasks), NONE, dtype=np.int64)
    returns = np.zeros(len(tasks))
    done = np.flatnonzero(~np.isnan(tasks.work[:, 0]))
    by_end = done[np.argsort(tasks.work[done, 1], kind="stable")]
    ends = tasks.work[by_end, 1]

    def awaited(at: int, since: float, until: float) -> int:
        last = int(np.searchsorted(ends, until + _RESOLUTION_NS, side="right")) - 1
        while last >= 0 and ends[last] > since:
            if by_end[last] <= at:
                return int(by_end[last])
            last -= 1
        return NONE

    for at in np.flatnonzero((call >= _BLOCKED_NS) & (tasks.blocks | (call >= _QUEUE_FULL_NS))).tolist():
        begin, end = tasks.call[at]
        # a call that can block returned when its work was done; any other call only if it returned right then
        since = begin if tasks.blocks[at] else max(begin, end - _RELEASE_NS)
        on[at] = awaited(at, since, end)
        if on[at] != NONE:
            returns[at] = end - tasks.work[on[at], 1]
            call[at] = 0.0
    pending = _count_pending(tasks, done)
    fullest = int(pending.max(initial=0))
    # if the recording shows host waits it shows all of them; a device that ran dry then waited for the host
    shows_waits = any(_SYNCHRONIZE_CALLS.fullmatch(name) for name in set(tasks.name))
    usual = _longest_usual_gaps(tasks, gap, pending)
    for at in np.flatnonzero((gap >= _QUEUE_FULL_NS) & (gap > usual)).tolist():
        # the host continued just as the device ran dry or a full queue had room: a wait that no call shows
        begin, left = tasks.call[at, 0], pending[at]
        is_dry = left == 0 and not shows_waits
        if at and on[at - 1] == NONE and (is_dry or left >= max(_MIN_QUEUE, _FULL_RATIO * fullest)):
            on[at - 1] = awaited(at - 1, begin - _RELEASE_NS, begin)
            if on[at - 1] != NONE:
                returns[at - 1] = begin - tasks.work[on[at - 1], 1]
                gap[at] = 0.0
    return gap, call, on, returns


def _longest_usual_gaps(tasks: RankTasks, gap: Floats, pending: Int64s) -> Floats:
    """Return the longest host gap before each call, among alike calls made while the device has work.

    Calls are alike if their name, the call before and the kernel are the same. A gap as long as one that
    nothing can have held is the host's own work.
    """
    steps = [
        (before, name, kernel)
        for before, name, kernel in zip(("", *tasks.name[:-1]), tasks.name, tasks.kernel, strict=True)
    ]
    busy = (pending > 0) & (pending < _MIN_QUEUE)
    longest: dict[tuple[str, str, str], list[float]] = {}
    for at in np.flatnonzero(busy).tolist():
        longest.setdefault(steps[at], []).append(float(gap[at]))
    usual = {step: max(times) for step, times in longest.items() if len(times) >= _MIN_ALIKE}
    return np.array([usual.get(step, 0.0) for step in steps])


def _count_pending(tasks: RankTasks, done: Int64s) -> Int64s:
    """Return how many pieces of work were launched before each call and not yet done."""
    launched = np.cumsum(~np.isnan(tasks.work[:, 0])) - ~np.isnan(tasks.work[:, 0])
    ended = np.searchsorted(np.sort(tasks.work[done, 1]), tasks.call[:, 0], side="right")
    pending: Int64s = np.maximum(0, launched - ended)
    return pending


def find_device_waits(
    tasks: RankTasks,
    collective: Int64s,
    kinds: Mapping[int, str],
    copy_in: Int64s,
    copy_out: Int64s,
    compute_stream: int,
    pick_up: float,
    begin: float,
) -> tuple[Floats, tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Return the lag of each piece of work, the tasks that it waits for, and the held collectives."""
    count = len(tasks)
    lag = np.zeros(count)
    waits: list[list[int]] = [[] for _ in range(count)]
    held: list[int] = []
    done = np.flatnonzero(~np.isnan(tasks.work[:, 0]))
    by_end = done[np.argsort(tasks.work[done, 1], kind="stable")]
    ends = tasks.work[by_end, 1]
    before: dict[int, int] = {}
    is_collective = collective != NONE
    last_compute = NONE
    gathers_at, reductions = (
        select_kinds(tasks, kinds, {CollectiveKind.ALL_GATHER.value}),
        select_kinds(tasks, kinds, REDUCING_KINDS),
    )
    closing = find_closing_gathers(tasks, gathers_at, reductions)
    step, program, before_step, begins = NONE, NONE, NONE, True
    consumers = find_gather_consumers(tasks, gathers_at, copy_out, compute_stream)
    reduced = find_reduction_consumers(tasks, reductions, compute_stream)
    for at in done.tolist():
        start, stream = float(tasks.work[at, 0]), int(tasks.stream[at])
        known = max(float(tasks.call[at, 0]) + pick_up, begin)
        if stream in before:
            known = max(known, float(tasks.work[before[stream], 1]))
        filled = (int(copy_in[at]),) if copy_in[at] != NONE else ()
        for other in (*consumers.get(at, ()), *reduced.get(at, ()), *filled):
            if tasks.work[other, 1] <= start + _RESOLUTION_NS:
                waits[at].append(other)
                known = max(known, float(tasks.work[other, 1]))
        follows = is_collective[at] and (kinds[int(tasks.row[at])] in REDUCING_KINDS or at in closing)
        if tasks.step[at] != step:
            step, program, begins = int(tasks.step[at]), int(tasks.thread[at]), True
        begins |= int(tasks.thread[at]) != program
        if is_collective[at] and not follows and begins and int(tasks.thread[at]) == program:
            before_step, begins = last_compute, False
        gathers = is_collective[at] and not follows and before_step != NONE
        # a gather of the forward follows what was launched before the step: the update that wrote the
        # parameters
        if gathers and tasks.work[before_step, 1] <= start + _RESOLUTION_NS:
            waits[at].append(before_step)
            known = max(known, float(tasks.work[before_step, 1]))
        if follows and last_compute != NONE and tasks.work[last_compute, 1] <= start + _RESOLUTION_NS:
            waits[at].append(last_compute)
            known = max(known, float(tasks.work[last_compute, 1]))
        if start - known > _STALL_NS:
            cause = _find_releasing_work(tasks, by_end, ends, start, stream, at)
            if is_collective[at] and cause not in (NONE, last_compute):
                behind = int(tasks.stream[cause]) == compute_stream
            else:
                behind = is_collective[at] and cause == NONE and _ends_at_start(tasks, by_end, ends, at)
            if behind:
                held.append(at)
            if cause != NONE and tasks.work[cause, 1] > known:
                waits[at].append(cause)
                known = float(tasks.work[cause, 1])
        lag[at] = max(0.0, start - known)
        before[stream] = at
        if stream == compute_stream:
            last_compute = at
    return lag, tuple(tuple(each) for each in waits), tuple(held)


def _find_releasing_work(
    tasks: RankTasks, by_end: Int64s, ends: Floats, start: float, stream: int, at: int
) -> int:
    """Return the work of another stream, launched earlier, that ended last and shortly before ``start``."""
    place = int(np.searchsorted(ends, start + _RESOLUTION_NS, side="right")) - 1
    while place >= 0 and ends[place] > start - _RELEASE_NS:
        other = int(by_end[place])
        if other < at and int(tasks.stream[other]) != stream:
            return other
        place -= 1
    return NONE


def _ends_at_start(tasks: RankTasks, by_end: Int64s, ends: Floats, at: int) -> bool:
    """Return whether work of another stream that was launched later ended just as this work started."""
    start = float(tasks.work[at, 0])
    first = int(np.searchsorted(ends, start - _HELD_NS, side="left"))
    last = int(np.searchsorted(ends, start + _RESOLUTION_NS, side="right"))
    return any(
        int(other) > at and int(tasks.stream[other]) != int(tasks.stream[at]) for other in by_end[first:last]
    )
