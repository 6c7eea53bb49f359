"""Find what each host call and device task waited for, and fill in a rank's lost collectives.

    start = max(launch + pick-up, end of the previous work on its stream, end of what it waits for) + lag

If work starts later than its launch and its stream explain, it waited for work on another stream that had
just ended. The remainder is its own lag.

A rank may have run a collective whose event was lost. Its call was recorded: it launched no work, and lies
between the calls of the previous and the next collective. The other ranks show when the collective ended. Its
start is an estimate: not before its own launch and stream allow, not before the other ranks' start, and late
enough that the transfer takes no longer than usual. If no call fits, nothing is filled in, and the other
ranks wait only for each other.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Groups, Texts
from zprof.analysis.intervals import Int64s
from zprof.model.collectives import CollectiveKind
from zprof.step.structure import (
    REDUCING_KINDS,
    find_closing_gathers,
    find_gather_consumers,
    find_reduction_consumers,
    select_kinds,
)
from zprof.step.tasks import NONE, Bools, Floats, RankTasks, merge_orders

#: Delay beyond launch and stream order that counts as a wait.
_STALL_NS = 4_000.0
#: Timestamp tolerance between the end of work and the start of its follower: old traces have microsecond
#: resolution.
_RESOLUTION_NS = 1_000.0
#: Maximum time from the end of the awaited work to the start of the waiting work or the return of the call.
_RELEASE_NS = 40_000.0
#: Work that starts within this time after the end of a kernel is assumed to have waited for it.
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
    """Return the host time before and inside each call, with all threads merged."""
    until = np.concatenate(([begin], np.maximum.accumulate(np.maximum(tasks.call[:-1, 1], begin))))
    gap = np.maximum(0.0, tasks.call[:, 0] - until)
    call = np.maximum(0.0, tasks.call[:, 1] - np.maximum(tasks.call[:, 0], until))
    return gap, call


def find_host_waits(tasks: RankTasks, gap: Floats, call: Floats) -> tuple[Floats, Floats, Int64s, Floats]:
    """Find where the host waited for device work, and remove these waits from gaps and calls.

    Returns:
        The host's own time before and inside each call, the task whose work each call waits for (``NONE`` if
        none), and the time from the end of that work to the return of the call.
    """
    gap, call = gap.copy(), call.copy()
    awaited_task = np.full(len(tasks), NONE, dtype=np.int64)
    returns = np.zeros(len(tasks))
    device_tasks = np.flatnonzero(~np.isnan(tasks.work[:, 0]))
    ended = _EndedWork.of(tasks, device_tasks)

    def find_last_finished(at: int, since: float, until: float) -> int:
        last = bisect_right(ended.ends, until + _RESOLUTION_NS) - 1
        while last >= 0 and ended.ends[last] > since:
            if ended.tasks[last] <= at:
                return ended.tasks[last]
            last -= 1
        return NONE

    for at in np.flatnonzero((call >= _BLOCKED_NS) & (tasks.blocks | (call >= _QUEUE_FULL_NS))).tolist():
        begin, end = tasks.call[at]
        # a blocking call returns when its work is done; other calls must have returned right afterwards
        since = begin if tasks.blocks[at] else max(begin, end - _RELEASE_NS)
        awaited_task[at] = find_last_finished(at, since, end)
        if awaited_task[at] != NONE:
            returns[at] = end - tasks.work[awaited_task[at], 1]
            call[at] = 0.0
    pending = _count_pending(tasks, device_tasks)
    max_pending = int(pending.max(initial=0))
    # a trace with synchronize calls has all of them: an idle device then means that the host was late
    shows_waits = any(_SYNCHRONIZE_CALLS.fullmatch(name) for name in tasks.name.words)
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
    """Return the maximum host gap before similar calls made while the device was busy, for each call.

    Calls are similar if name, previous call and kernel are equal. A gap no longer than a gap seen while
    nothing could block the host is the host's own time.
    """
    names, kernels = tasks.name.codes, tasks.kernel.codes
    before = np.concatenate(([0], names[:-1] + 1))
    calls = (before * len(tasks.name.words) + names) * len(tasks.kernel.words) + kernels
    distinct, key = np.unique(calls, return_inverse=True)
    busy = (pending > 0) & (pending < _MIN_QUEUE)
    typical_gap = np.zeros(len(distinct))
    np.maximum.at(typical_gap, key[busy], gap[busy])
    typical_gap[np.bincount(key[busy], minlength=len(typical_gap)) < _MIN_SAMPLES] = 0.0
    return typical_gap[key]


def _count_pending(tasks: RankTasks, device_tasks: Int64s) -> Int64s:
    """Return the number of launched but unfinished tasks at each call."""
    launched = np.cumsum(~np.isnan(tasks.work[:, 0])) - ~np.isnan(tasks.work[:, 0])
    ended = np.searchsorted(np.sort(tasks.work[device_tasks, 1]), tasks.call[:, 0], side="right")
    return np.maximum(0, launched - ended)


def find_device_waits(
    tasks: RankTasks,
    collective: Int64s,
    kinds: Texts,
    copy_in: Int64s,
    copy_out: Int64s,
    compute_stream: int,
    is_estimated: Bools,
    pick_up: float,
    begin: float,
) -> tuple[Floats, tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Return each task's lag, the tasks that it waits for, and the collectives held by compute.

    An estimated start (``is_estimated``) shows no lag, and no waits beyond those of the program's structure.
    """
    count = len(tasks)
    lag = [0.0] * count
    waits: list[list[int]] = [[] for _ in range(count)]
    held: list[int] = []
    device_tasks = np.flatnonzero(~np.isnan(tasks.work[:, 0]))
    ended = _EndedWork.of(tasks, device_tasks)
    before: dict[int, int] = {}
    last_compute = NONE
    gathers_at, reductions = (
        select_kinds(tasks, kinds, {CollectiveKind.ALL_GATHER.value}),
        select_kinds(tasks, kinds, REDUCING_KINDS),
    )
    closing_gathers = find_closing_gathers(tasks, gathers_at, reductions)
    needs_compute = closing_gathers.union(reductions)
    step, main_thread, last_compute_before_step, at_step_start = NONE, NONE, NONE, True
    consumers = find_gather_consumers(tasks, gathers_at, copy_out, compute_stream)
    reduction_consumers = find_reduction_consumers(tasks, reductions, compute_stream)
    # single elements are read tens of thousands of times, which costs a third from lists
    starts, ends = tasks.work[:, 0].tolist(), tasks.work[:, 1].tolist()
    launched = np.maximum(tasks.call[:, 0] + pick_up, begin).tolist()
    streams, steps, threads = tasks.stream.tolist(), tasks.step.tolist(), tasks.thread.tolist()
    copies, estimated, collectives = copy_in.tolist(), is_estimated.tolist(), collective.tolist()
    for at in device_tasks.tolist():
        start, stream, earliest_start = starts[at], streams[at], launched[at]
        is_collective = collectives[at] != NONE
        latest = start + _RESOLUTION_NS
        previous = before.get(stream)
        if previous is not None:
            earliest_start = max(earliest_start, ends[previous])
        needed = [*consumers.get(at, ()), *reduction_consumers.get(at, ())]
        if copies[at] != NONE:
            needed.append(copies[at])
        depends_on_compute = is_collective and at in needs_compute
        if steps[at] != step:
            step, main_thread, at_step_start = steps[at], threads[at], True
        at_step_start |= threads[at] != main_thread
        if is_collective and not depends_on_compute and at_step_start and threads[at] == main_thread:
            last_compute_before_step, at_step_start = last_compute, False
        if depends_on_compute:
            needed.append(last_compute)
        elif is_collective:
            # a forward gather depends on the optimizer update, which was launched before the step
            needed.append(last_compute_before_step)
        for other in needed:
            if other != NONE and ends[other] <= latest:
                waits[at].append(other)
                earliest_start = max(earliest_start, ends[other])
        if estimated[at]:
            earliest_start = start
        elif start - earliest_start > _STALL_NS:
            cause = _find_releasing_work(ended, streams, start, at)
            if is_collective and cause not in (NONE, last_compute):
                is_held = streams[cause] == compute_stream
            else:
                is_held = is_collective and cause == NONE and _has_later_work_ended(ended, streams, start, at)
            if is_held:
                held.append(at)
            if cause != NONE and ends[cause] > earliest_start:
                waits[at].append(cause)
                earliest_start = ends[cause]
        lag[at] = max(0.0, start - earliest_start)
        before[stream] = at
        if stream == compute_stream:
            last_compute = at
    return np.array(lag), tuple(map(tuple, waits)), tuple(held)


class _EndedWork(Struct, frozen=True, kw_only=True):
    """Tasks with device work, sorted by its end; ``ends``: the ends."""

    tasks: list[int]
    ends: list[float]

    @classmethod
    def of(cls, tasks: RankTasks, device_tasks: Int64s) -> "_EndedWork":
        by_end = device_tasks[np.argsort(tasks.work[device_tasks, 1], kind="stable")]
        return cls(tasks=by_end.tolist(), ends=tasks.work[by_end, 1].tolist())


def _find_releasing_work(ended: _EndedWork, streams: list[int], start: float, at: int) -> int:
    """Return the last work on another stream that was launched earlier and ended shortly before ``start``."""
    place = bisect_right(ended.ends, start + _RESOLUTION_NS) - 1
    while place >= 0 and ended.ends[place] > start - _RELEASE_NS:
        other = ended.tasks[place]
        if other < at and streams[other] != streams[at]:
            return other
        place -= 1
    return NONE


def _has_later_work_ended(ended: _EndedWork, streams: list[int], start: float, at: int) -> bool:
    """Return True if later-launched work on another stream ended just as this work started."""
    first = bisect_left(ended.ends, start - _HELD_NS)
    last = bisect_right(ended.ends, start + _RESOLUTION_NS)
    return any(other > at and streams[other] != streams[at] for other in ended.tasks[first:last])


class _CollectiveTasks(Struct, kw_only=True):
    """A collective on all of its ranks; ``tasks``: its task by rank index.

    ``signature``: collectives with equal signatures take about equally long. ``row`` and ``kernel``: from one
    rank.
    """

    group: str
    signature: tuple[str, str, int]
    is_complete: bool
    row: int
    kernel: str
    tasks: dict[int, int] = field(default_factory=dict)
    last_start_ns: float = -np.inf
    first_end_ns: float = np.inf


def fill_lost_members(tasks: Sequence[RankTasks], rows: Columns) -> list[RankTasks]:
    """Return all ranks' tasks, with the work of lost collectives filled in.

    Such work has the row of another rank.

    Args:
        tasks: The tasks of each rank.
        rows: The analysis' collectives.
    """
    collectives = _collect(tasks, rows)
    incomplete = {each.group for each in collectives.values() if not each.is_complete}
    instance, rank_of_row = rows.ints("instance"), rows.ints("rank")
    instances = Groups(instance)
    ranks_of = {
        int(instance[members[0]]): set(rank_of_row[members].tolist()) for members in instances.split()
    }
    usual_ns = _find_usual_transfers(collectives.values())
    filled = list(tasks)
    for group in sorted(incomplete):
        task_of = [
            {
                number: each.tasks[place]
                for number, each in collectives.items()
                if each.group == group and place in each.tasks
            }
            for place in range(len(tasks))
        ]
        order = merge_orders([sorted(mine, key=mine.__getitem__) for mine in task_of])
        for place, mine in enumerate(task_of):
            rank = tasks[place]
            lost = {number for number in order or () if rank.rank not in ranks_of[number]}
            if not mine or not lost:
                continue
            streams = rank.stream[list(mine.values())]
            stream = int(np.bincount(streams[streams >= 0]).argmax())
            for number, at in _find_calls(rank, order or (), mine, lost).items():
                seen = collectives[number]
                transfer_ns = usual_ns.get(seen.signature, np.inf)
                filled[place] = _add_work(filled[place], at, stream, seen, transfer_ns)
    return filled


def _collect(tasks: Sequence[RankTasks], rows: Columns) -> dict[int, _CollectiveTasks]:
    """Return the multi-rank collectives by instance."""
    instances, sizes, matched = (rows.ints(name).tolist() for name in ("instance", "bytes", "matched"))
    groups, kinds = rows.texts("group"), rows.texts("kind")
    found: dict[int, _CollectiveTasks] = {}
    for place, rank in enumerate(tasks):
        for at in np.flatnonzero(rank.row != NONE).tolist():
            row = int(rank.row[at])
            instance, group = instances[row], groups[row]
            if instance < 0:
                continue
            each = found.setdefault(
                instance,
                _CollectiveTasks(
                    group=group,
                    signature=(group, kinds[row], sizes[row]),
                    is_complete=bool(matched[row]),
                    row=row,
                    kernel=rank.kernel[at],
                ),
            )
            each.tasks[place] = at
            each.last_start_ns = max(each.last_start_ns, float(rank.work[at, 0]))
            each.first_end_ns = min(each.first_end_ns, float(rank.work[at, 1]))
    return found


def _find_usual_transfers(collectives: Iterable[_CollectiveTasks]) -> dict[tuple[str, str, int], float]:
    """Return the median time from the last start to the first end of complete collectives."""
    times: dict[tuple[str, str, int], list[float]] = {}
    for each in collectives:
        if each.is_complete:
            times.setdefault(each.signature, []).append(max(0.0, each.first_end_ns - each.last_start_ns))
    return {signature: float(np.median(found)) for signature, found in times.items()}


def _find_calls(
    rank: RankTasks, order: Sequence[int], task_of: Mapping[int, int], lost: AbstractSet[int]
) -> dict[int, int]:
    """Return the calls of a rank's lost collectives in a group.

    Between two known calls, there must be as many calls of that name without work as lost collectives.
    """
    names = {rank.name[at] for at in task_of.values()}
    found: dict[int, int] = {}
    pending: list[int] = []
    before = NONE
    for number in (*order, NONE):
        if number in lost:
            pending.append(number)
        if number not in task_of and number != NONE:
            continue
        until = task_of.get(number, len(rank))
        if pending:
            calls = [
                at for at in range(before + 1, until) if rank.stream[at] == NONE and rank.name[at] in names
            ]
            found |= dict(zip(pending, calls, strict=True)) if len(calls) == len(pending) else {}
        pending, before = [], until
    return found


def _add_work(
    rank: RankTasks, at: int, stream: int, seen: _CollectiveTasks, usual_transfer_ns: float
) -> RankTasks:
    """Return the rank with this work added to a call; unchanged if it cannot have ended with the others."""
    on_stream = np.flatnonzero(rank.stream == stream)
    earliest_ns = max(
        float(rank.call[at, 0]) + find_pick_up(rank),
        float(rank.work[on_stream[on_stream < at], 1].max(initial=-np.inf)),
    )
    end_ns = min(
        seen.first_end_ns, float(rank.work[on_stream[on_stream > at], 0].min(initial=seen.first_end_ns))
    )
    if end_ns <= earliest_ns:
        return rank
    start_ns = min(end_ns, max(earliest_ns, seen.last_start_ns, end_ns - usual_transfer_ns))
    work, streams, rows = rank.work.copy(), rank.stream.copy(), rank.row.copy()
    work[at], streams[at], rows[at] = (start_ns, end_ns), stream, seen.row
    kernel = rank.kernel.with_text(np.array([at]), seen.kernel)
    return replace(rank, work=work, stream=streams, row=rows, kernel=kernel)
