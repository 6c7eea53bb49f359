"""Find what each host call and each device task waited for.

    start = max(launch + pick-up, end of the previous work on its stream, end of what it waits for) + lag

If work starts later than its launch and its stream explain, it waited for work on another stream that had
just ended. The remainder is its own lag.
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
from zprof.replay.tasks import NONE, Bools, Floats, RankTasks

#: Delay beyond launch and stream order that counts as a wait.
_STALL_NS = 4_000.0
#: Timestamp tolerance between the end of work and the start of its follower: old traces have microseconds.
_RESOLUTION_NS = 1_000.0
#: Maximum time from the end of the awaited work to the start of the waiting work or the return of the call.
_RELEASE_NS = 40_000.0
#: Work that starts within this time after the end of a kernel is taken to have waited for it.
_HELD_NS = 5_000.0
#: Minimum duration of a blocking call.
_BLOCKED_NS = 20_000.0
#: A longer launch hit a full queue.
_QUEUE_FULL_NS = 100_000.0
#: Pending tasks at which a queue counts as full: a minimum (the driver accepts about a thousand launches),
#: and a share of the maximum seen.
_MIN_QUEUE, _FULL_RATIO = 512, 0.75
#: Minimum samples to estimate a typical host gap.
_MIN_SAMPLES = 3
_SYNCHRONIZE_CALLS = re.compile(r"(cuda|hip|cu)\w*Synchronize\w*", re.ASCII)


def find_pick_up(tasks: RankTasks) -> float:
    """Return the minimum time from the start of a launch to the start of its work, in ns."""
    launched = ~np.isnan(tasks.work[:, 0])
    delay = tasks.work[launched, 0] - tasks.call[launched, 0]
    delay = delay[delay > 0]
    return float(delay.min()) if len(delay) else 0.0


def read_host_times(tasks: RankTasks, begin: float) -> tuple[Floats, Floats]:
    """Return the host time before and inside each call, merging all threads."""
    until = np.concatenate(([begin], np.maximum.accumulate(np.maximum(tasks.call[:-1, 1], begin))))
    gap = np.maximum(0.0, tasks.call[:, 0] - until)
    call = np.maximum(0.0, tasks.call[:, 1] - np.maximum(tasks.call[:, 0], until))
    return gap, call


def find_host_waits(tasks: RankTasks, gap: Floats, call: Floats) -> tuple[Floats, Floats, Int64s, Floats]:
    """Find where the host waited for device work, and remove these waits from its gaps and calls.

    Returns:
        The host's own time before and inside each call, the task whose work each call waits for (``NONE`` if
        none), and the time from the end of that work to the return of the call.
    """
    gap, call = gap.copy(), call.copy()
    awaited_task = np.full(len(tasks), NONE, dtype=np.int64)
    returns = np.zeros(len(tasks))
    device_tasks = np.flatnonzero(~np.isnan(tasks.work[:, 0]))
    by_end = device_tasks[np.argsort(tasks.work[device_tasks, 1], kind="stable")]
    ends = tasks.work[by_end, 1]

    def find_last_finished(at: int, since: float, until: float) -> int:
        last = int(np.searchsorted(ends, until + _RESOLUTION_NS, side="right")) - 1
        while last >= 0 and ends[last] > since:
            if by_end[last] <= at:
                return int(by_end[last])
            last -= 1
        return NONE

    for at in np.flatnonzero((call >= _BLOCKED_NS) & (tasks.blocks | (call >= _QUEUE_FULL_NS))).tolist():
        begin, end = tasks.call[at]
        # a blocking call returns when its work is done; for other calls, require that it returned right after
        since = begin if tasks.blocks[at] else max(begin, end - _RELEASE_NS)
        awaited_task[at] = find_last_finished(at, since, end)
        if awaited_task[at] != NONE:
            returns[at] = end - tasks.work[awaited_task[at], 1]
            call[at] = 0.0
    pending = _count_pending(tasks, device_tasks)
    max_pending = int(pending.max(initial=0))
    # if the trace has synchronize calls, it has all of them: an idle device then means that the host was late
    shows_waits = any(_SYNCHRONIZE_CALLS.fullmatch(name) for name in set(tasks.name))
    typical_gap = _find_typical_gaps(tasks, gap, pending)
    for at in np.flatnonzero((gap >= _QUEUE_FULL_NS) & (gap > typical_gap)).tolist():
        # the host resumed just as the device went idle or a full queue drained: an unrecorded wait
        begin, pending_count = tasks.call[at, 0], pending[at]
        is_device_idle = pending_count == 0 and not shows_waits
        if (
            at
            and awaited_task[at - 1] == NONE
            and (is_device_idle or pending_count >= max(_MIN_QUEUE, _FULL_RATIO * max_pending))
        ):
            awaited_task[at - 1] = find_last_finished(at - 1, begin - _RELEASE_NS, begin)
            if awaited_task[at - 1] != NONE:
                returns[at - 1] = begin - tasks.work[awaited_task[at - 1], 1]
                gap[at] = 0.0
    return gap, call, awaited_task, returns


def _find_typical_gaps(tasks: RankTasks, gap: Floats, pending: Int64s) -> Floats:
    """Return the maximum host gap before each call, among similar calls made while the device was busy.

    Calls are similar if their name, the previous call and the kernel are the same. A gap no longer than one
    seen while nothing could block the host is the host's own time.
    """
    call_keys = [
        (before, name, kernel)
        for before, name, kernel in zip(("", *tasks.name[:-1]), tasks.name, tasks.kernel, strict=True)
    ]
    busy = (pending > 0) & (pending < _MIN_QUEUE)
    gaps_by_call: dict[tuple[str, str, str], list[float]] = {}
    for at in np.flatnonzero(busy).tolist():
        gaps_by_call.setdefault(call_keys[at], []).append(float(gap[at]))
    typical_gap = {step: max(times) for step, times in gaps_by_call.items() if len(times) >= _MIN_SAMPLES}
    return np.array([typical_gap.get(step, 0.0) for step in call_keys])


def _count_pending(tasks: RankTasks, device_tasks: Int64s) -> Int64s:
    """Return the number of launched, unfinished tasks at each call."""
    launched = np.cumsum(~np.isnan(tasks.work[:, 0])) - ~np.isnan(tasks.work[:, 0])
    ended = np.searchsorted(np.sort(tasks.work[device_tasks, 1]), tasks.call[:, 0], side="right")
    pending: Int64s = np.maximum(0, launched - ended)
    return pending


def find_device_waits(
    tasks: RankTasks,
    collective: Int64s,
    kinds: Mapping[int, str],
    copy_in: Int64s,
    copy_out: Int64s,
    compute_stream: int,
    is_estimated: Bools,
    pick_up: float,
    begin: float,
) -> tuple[Floats, tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Return the lag of each task, the tasks that it waits for, and the collectives held by compute.

    The start of work that ``is_estimated`` shows no lag, nor a wait that the program's structure does not.
    """
    count = len(tasks)
    lag = np.zeros(count)
    waits: list[list[int]] = [[] for _ in range(count)]
    held: list[int] = []
    device_tasks = np.flatnonzero(~np.isnan(tasks.work[:, 0]))
    by_end = device_tasks[np.argsort(tasks.work[device_tasks, 1], kind="stable")]
    ends = tasks.work[by_end, 1]
    before: dict[int, int] = {}
    is_collective = collective != NONE
    last_compute = NONE
    gathers_at, reductions = (
        select_kinds(tasks, kinds, {CollectiveKind.ALL_GATHER.value}),
        select_kinds(tasks, kinds, REDUCING_KINDS),
    )
    closing_gathers = find_closing_gathers(tasks, gathers_at, reductions)
    step, main_thread, last_compute_before_step, at_step_start = NONE, NONE, NONE, True
    consumers = find_gather_consumers(tasks, gathers_at, copy_out, compute_stream)
    reduction_consumers = find_reduction_consumers(tasks, reductions, compute_stream)
    for at in device_tasks.tolist():
        start, stream = float(tasks.work[at, 0]), int(tasks.stream[at])
        earliest_start = max(float(tasks.call[at, 0]) + pick_up, begin)
        if stream in before:
            earliest_start = max(earliest_start, float(tasks.work[before[stream], 1]))
        copy_in_dependency = (int(copy_in[at]),) if copy_in[at] != NONE else ()
        for other in (*consumers.get(at, ()), *reduction_consumers.get(at, ()), *copy_in_dependency):
            if tasks.work[other, 1] <= start + _RESOLUTION_NS:
                waits[at].append(other)
                earliest_start = max(earliest_start, float(tasks.work[other, 1]))
        depends_on_compute = is_collective[at] and (
            kinds[int(tasks.row[at])] in REDUCING_KINDS or at in closing_gathers
        )
        if tasks.step[at] != step:
            step, main_thread, at_step_start = int(tasks.step[at]), int(tasks.thread[at]), True
        at_step_start |= int(tasks.thread[at]) != main_thread
        if (
            is_collective[at]
            and not depends_on_compute
            and at_step_start
            and int(tasks.thread[at]) == main_thread
        ):
            last_compute_before_step, at_step_start = last_compute, False
        gathers = is_collective[at] and not depends_on_compute and last_compute_before_step != NONE
        # a forward gather depends on the optimizer update, which was launched before the step
        if gathers and tasks.work[last_compute_before_step, 1] <= start + _RESOLUTION_NS:
            waits[at].append(last_compute_before_step)
            earliest_start = max(earliest_start, float(tasks.work[last_compute_before_step, 1]))
        if (
            depends_on_compute
            and last_compute != NONE
            and tasks.work[last_compute, 1] <= start + _RESOLUTION_NS
        ):
            waits[at].append(last_compute)
            earliest_start = max(earliest_start, float(tasks.work[last_compute, 1]))
        if start - earliest_start > _STALL_NS and not is_estimated[at]:
            cause = _find_releasing_work(tasks, by_end, ends, start, stream, at)
            if is_collective[at] and cause not in (NONE, last_compute):
                is_held = int(tasks.stream[cause]) == compute_stream
            else:
                is_held = (
                    is_collective[at] and cause == NONE and _has_later_work_ended(tasks, by_end, ends, at)
                )
            if is_held:
                held.append(at)
            if cause != NONE and tasks.work[cause, 1] > earliest_start:
                waits[at].append(cause)
                earliest_start = float(tasks.work[cause, 1])
        lag[at] = 0.0 if is_estimated[at] else max(0.0, start - earliest_start)
        before[stream] = at
        if stream == compute_stream:
            last_compute = at
    return lag, tuple(tuple(each) for each in waits), tuple(held)


def _find_releasing_work(
    tasks: RankTasks, by_end: Int64s, ends: Floats, start: float, stream: int, at: int
) -> int:
    """Return the last work of another stream that was launched earlier and ended shortly before ``start``."""
    place = int(np.searchsorted(ends, start + _RESOLUTION_NS, side="right")) - 1
    while place >= 0 and ends[place] > start - _RELEASE_NS:
        other = int(by_end[place])
        if other < at and int(tasks.stream[other]) != stream:
            return other
        place -= 1
    return NONE


def _has_later_work_ended(tasks: RankTasks, by_end: Int64s, ends: Floats, at: int) -> bool:
    """Return True if work of another stream that was launched later ended just as this work started."""
    start = float(tasks.work[at, 0])
    first = int(np.searchsorted(ends, start - _HELD_NS, side="left"))
    last = int(np.searchsorted(ends, start + _RESOLUTION_NS, side="right"))
    return any(
        int(other) > at and int(tasks.stream[other]) != int(tasks.stream[at]) for other in by_end[first:last]
    )
