"""Infer the dependencies between the tasks of all ranks in a measured step.

A recording shows when work ran, but not what it waited for:

    start = max(launch + pick-up, end of the previous work on its stream, end of what it waits for) + lag

If work starts later than its launch and its stream explain, it waited for work on another stream that had
just ended. The remainder is its own lag. This finds the waits that took effect. Waits that ended earlier
follow from the structure of the program: a reduction follows the compute launched
before it, compute follows the gather of its unit, and so on (:mod:`zprof.replay.structure`).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set

import numpy as np
from msgspec import Struct, field

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Texts
from zprof.analysis.intervals import Int64s
from zprof.model.collectives import CollectiveKind
from zprof.model.gaps import Gap, GapKind
from zprof.replay.lost_members import fill_lost_members
from zprof.replay.structure import (
    COPIES_GRADIENTS,
    REDUCING_KINDS,
    find_copies_in,
    find_copies_out,
    find_main_stream,
    find_work_behind,
    select_kinds,
)
from zprof.replay.tasks import NONE, Bools, Floats, RankTasks, read_tasks
from zprof.replay.waits import find_device_waits, find_host_waits, find_pick_up, read_host_times

#: Operations of a communicator that overlap by less than this still count as sequential.
_OVERLAP_NS = 4_000.0
#: A replay needs launches: it is refused if a larger share of the device time has no recorded launch.
_MAX_UNLAUNCHED_RATIO = 0.10
_MAX_TASKS = 240_000


class RankGraph(Struct, frozen=True, kw_only=True):
    """The tasks of one rank with the cost and the dependencies of each; one entry per task.

    Attributes:
        gap_ns: Host time between the previous call and this one.
        call_ns: Duration of the call, excluding blocked time.
        blocks_on: The task whose work the call blocks on, ``NONE`` if none. ``returns_ns`` is the time from
            the end of that work to the return of the call.
        stream: The stream of the work, ``NONE`` without work. ``work_ns`` is its duration.
        waits_on: Tasks of other streams that this work waits for.
        held: Collectives that started just as a kernel of another stream ended although they cannot depend on
            it: the kernel was launched later, or other collectives of the stream were launched before them as
            well.
        lag_ns: Delay before the work starts although all its inputs are ready.
        collective: The instance of the collective, ``NONE`` for other work.
        copy_in: For collectives, the task that fills their buffer. ``copy_out`` is the one that empties the
            buffer or finishes its content. ``NONE`` if there is none.
        first_step: The number of the first replayed step.
        begin_ns: Start of the first replayed step on the device; ``host_begin_ns`` on the host.
        tail_ns: Host time after its last call.
        pick_up_ns: Time from the start of a launch to the start of its work if nothing delays it.
    """

    tasks: RankTasks
    gap_ns: Floats
    call_ns: Floats
    blocks_on: Int64s
    returns_ns: Floats
    stream: Int64s
    work_ns: Floats
    waits_on: tuple[tuple[int, ...], ...]
    held: tuple[int, ...]
    lag_ns: Floats
    collective: Int64s
    copy_in: Int64s
    copy_out: Int64s
    first_step: int
    begin_ns: float
    host_begin_ns: float
    tail_ns: float
    pick_up_ns: float


class Graph(Struct, frozen=True, kw_only=True):
    """The ranks of a run and the collectives that they share.

    Attributes:
        transfer_ns: Time from the arrival of the last rank to the end, per collective instance.
        members: Number of ranks that take part in each instance.
        lane: The communicator of each instance if that runs one operation at a time, else ``NONE``.
        measured_ns: Recorded end of each step on each rank: an array of [rank, step].
        steps: Number of replayed steps.
        origin_ns: Time origin on the common clock.
        lost: Share of its rate that a communicator loses to concurrent ones, by ``lane``.
        has_start: True if the recording started in the first of these steps.
    """

    ranks: tuple[RankGraph, ...]
    transfer_ns: Floats
    members: Int64s
    lane: Int64s
    measured_ns: Floats
    steps: int
    origin_ns: int
    lost: Mapping[int, float] = field(default_factory=dict)
    has_start: bool = True


def step_places(rank: RankGraph) -> Int64s:
    """Return the index of each task's step among the replayed steps; it never decreases along the tasks."""
    return np.maximum.accumulate(rank.tasks.step - rank.first_step)


def mark_rows(rank: RankGraph, rows: Set[int]) -> Bools:
    """Return a mask of the collectives with these rows, which may be those of all ranks."""
    at = np.flatnonzero(rank.collective != NONE)
    found = np.zeros(len(rank.tasks), dtype=np.bool_)
    found[at] = [row in rows for row in rank.tasks.row[at].tolist()]
    return found


def build_graph(analysis: RunAnalysis, *, apart: bool = False) -> Graph | Gap:
    """Build the graph of a device run; return a gap if the recording does not allow it.

    With ``apart`` each rank is independent: its collectives take as long as recorded, including waits.
    """
    if analysis.source is None or not analysis.tracks or not len(analysis.steps):
        return _make_replay_gap("the recording is not available")
    if analysis.run.device == "cpu":
        return _make_replay_gap("the ranks compute on the CPU")
    # The longest run of consecutive steps that all ranks have.
    steps_by_rank = [set(tracks.host_steps.number.tolist()) for tracks in analysis.tracks]
    common = sorted(set.intersection(*steps_by_rank) & set(analysis.steps.ints("step").tolist()))
    run_start, longest_run = 0, range(0)
    for place, number in enumerate(common):
        if number != common[run_start] + place - run_start:
            run_start = place
        longest_run = max(longest_run, range(run_start, place + 1), key=len)
    steps = common[longest_run.start : longest_run.stop]
    if not steps:
        return _make_replay_gap("no step was recorded by all ranks")
    tasks = _read_ranks(analysis, steps)
    if not _fits(tasks):
        fewer = bisect_left(
            range(1, len(steps)), True, key=lambda count: not _fits(_read_ranks(analysis, steps[-count:]))
        )
        if not fewer:
            return _make_replay_gap(f"a step has more than {_MAX_TASKS:,} calls")
        steps = steps[-fewer:]
        tasks = _read_ranks(analysis, steps)
    return tasks if isinstance(tasks, Gap) else _connect_ranks(analysis, tasks, steps, apart=apart)


def _fits(tasks: Sequence[RankTasks] | Gap) -> bool:
    """Return False if these are too many tasks to be replayed together."""
    return isinstance(tasks, Gap) or sum(map(len, tasks)) <= _MAX_TASKS


def _make_replay_gap(reason: str) -> Gap:
    return Gap(
        kind=GapKind.REPLAY,
        what="replay of the step",
        reason=reason,
        remedy="record steps of all ranks with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
    )


def _read_ranks(analysis: RunAnalysis, steps: Sequence[int]) -> list[RankTasks] | Gap:
    assert analysis.source is not None
    windows = [tracks.host_steps.only(steps) for tracks in analysis.tracks]
    origin = min(int(window.begin_ns[0]) for window in windows)
    ranks = analysis.collectives.group_by("rank")
    rows = {int(analysis.collectives.ints("rank")[places[0]]): places for places in ranks.split()}
    found = []
    for tracks, window in zip(analysis.tracks, windows, strict=True):
        mine = analysis.collectives.at(rows.get(tracks.rank, np.zeros(0, dtype=np.int64)))
        tasks, unlaunched_ratio = read_tasks(analysis.source, tracks, mine, window, origin)
        if unlaunched_ratio > _MAX_UNLAUNCHED_RATIO:
            return _make_replay_gap(
                f"{unlaunched_ratio:.0%} of the work of rank {tracks.rank} has no recorded launch"
            )
        if not len(tasks):  # truncated, or host and device have different clocks
            return _make_replay_gap(f"rank {tracks.rank} has no host call within its steps")
        found.append(tasks)
    return found


def _connect_ranks(
    analysis: RunAnalysis, tasks: Sequence[RankTasks], steps: Sequence[int], *, apart: bool
) -> Graph:
    rows = analysis.collectives
    if not apart:
        tasks = fill_lost_members(tasks, rows)
    rank_of_row = np.append(rows.ints("rank"), NONE)
    instance_of_row = rows.ints("instance").tolist()
    numbers: dict[object, int] = {}
    collective = []
    for each in tasks:
        mine = np.full(len(each), NONE, dtype=np.int64)
        for at in np.flatnonzero(each.row != NONE).tolist():
            row = int(each.row[at])
            is_shared = instance_of_row[row] >= 0 and not apart
            key = ("all", instance_of_row[row]) if is_shared else (each.rank, row)
            mine[at] = numbers.setdefault(key, len(numbers))
        collective.append(mine)
    starts: list[list[float]] = [[] for _ in numbers]
    ends: list[list[float]] = [[] for _ in numbers]
    for each, mine in zip(tasks, collective, strict=True):
        for at in np.flatnonzero(mine != NONE).tolist():
            starts[mine[at]].append(each.work[at, 0])
            ends[mine[at]].append(each.work[at, 1])
    arrival = np.array([max(times) for times in starts])
    finish = np.array([min(times) for times in ends])
    group_of_row = rows.group_by("group").codes
    lane = np.full(len(numbers), NONE, dtype=np.int64)
    for each, mine in zip(tasks, collective, strict=True):
        inside = mine != NONE
        lane[mine[inside]] = group_of_row[each.row[inside]]
    windows = {tracks.rank: tracks.host_steps.only(steps) for tracks in analysis.tracks}
    origin = min(int(window.begin_ns[0]) for window in windows.values())
    lanes_in_order = {
        number
        for number in set(lane.tolist())
        if not apart and _is_sequential(tasks, collective, lane, number)
    }
    lane = np.where(np.isin(lane, list(lanes_in_order)), lane, NONE)
    device_steps = {tracks.rank: tracks.steps.only(steps) for tracks in analysis.tracks}
    copies = _gather_copy_names(analysis)
    ranks = tuple(
        _build_rank(
            each,
            mine,
            arrival,
            rows.texts("kind"),
            copies,
            rows.texts("unit"),
            (each.row != NONE) & (rank_of_row[each.row] != each.rank),
            (float(windows[each.rank].begin_ns[0] - origin), float(windows[each.rank].end_ns[-1] - origin)),
            float(device_steps[each.rank].begin_ns[0] - origin),
            steps[0],
        )
        for each, mine in zip(tasks, collective, strict=True)
    )
    return Graph(
        ranks=ranks,
        transfer_ns=np.maximum(0.0, finish - arrival),
        members=np.array([len(times) for times in starts], dtype=np.int64),
        lane=lane,
        measured_ns=np.array(
            [(device_steps[each.rank].end_ns - origin).astype(np.float64) for each in tasks]
        ),
        steps=len(steps),
        origin_ns=origin,
        has_start=bool(rows.bools("first_of_window")[rows.ints("step") == steps[0]].any()),
    )


def _gather_copy_names(analysis: RunAnalysis) -> frozenset[str]:
    """Return the names of the kernels that copy parameters out of gathered buffers."""
    kernels = analysis.kernels
    if not len(kernels):
        return frozenset()
    names = kernels.texts("name").at(~kernels.texts("role").equals("compute")).list_distinct()
    return frozenset(name for name in names if COPIES_GRADIENTS not in name)


def _is_sequential(
    tasks: Sequence[RankTasks], collective: Sequence[Int64s], lane: Int64s, number: int
) -> bool:
    """Return True if the operations of a group ran sequentially, in launch order, on every rank."""
    for each, mine in zip(tasks, collective, strict=True):
        at = np.flatnonzero(mine != NONE)
        at = at[lane[mine[at]] == number]
        if len(at) > 1 and (each.work[at[1:], 0] < each.work[at[:-1], 1] - _OVERLAP_NS).any():
            return False
    return True


def _build_rank(
    tasks: RankTasks,
    collective: Int64s,
    arrival: Floats,
    kinds: Texts,
    copies: frozenset[str],
    units: Texts,
    is_estimated: Bools,
    host: tuple[float, float],
    device_begin: float,
    first_step: int,
) -> RankGraph:
    pick_up = find_pick_up(tasks)
    gap, call, blocks_on, returns = find_host_waits(tasks, *read_host_times(tasks, host[0]))
    compute_stream = find_main_stream(tasks, collective != NONE)
    gathers = select_kinds(tasks, kinds, {CollectiveKind.ALL_GATHER.value})
    copy_in = find_copies_in(tasks, collective, compute_stream)
    copy_out = find_copies_out(tasks, gathers, copies, compute_stream, units)
    reductions = select_kinds(tasks, kinds, REDUCING_KINDS)
    copy_out = np.maximum(copy_out, find_work_behind(tasks, collective, reductions, compute_stream))
    lag, waits_on, held = find_device_waits(
        tasks, collective, kinds, copy_in, copy_out, compute_stream, is_estimated, pick_up, device_begin
    )
    work = np.where(np.isnan(tasks.work[:, 0]), 0.0, tasks.work[:, 1] - tasks.work[:, 0])
    inside = collective != NONE
    # a rank's own part of a collective is how much later than the first rank it ended
    work[inside] = tasks.work[inside, 1] - np.maximum(tasks.work[inside, 0], arrival[collective[inside]])
    return RankGraph(
        tasks=tasks,
        gap_ns=gap,
        call_ns=call,
        blocks_on=blocks_on,
        returns_ns=returns,
        stream=tasks.stream,
        work_ns=work,
        waits_on=waits_on,
        held=held,
        lag_ns=lag,
        collective=collective,
        copy_in=copy_in,
        copy_out=copy_out,
        first_step=first_step,
        begin_ns=device_begin,
        host_begin_ns=host[0],
        tail_ns=max(0.0, host[1] - float(tasks.call[:, 1].max(initial=host[0]))),
        pick_up_ns=pick_up,
    )
