"""Infer the dependencies between the tasks of all ranks in a measured step.

A recording shows when work ran, but not what it waited for:

    start = max(launch + pick-up, end of the previous work on its stream, end of what it waits for) + lag

If work starts later than its launch and its stream explain, it waited for work on another stream that had
just ended. The remainder is its own lag. This finds the waits that took effect. Waits that ended earlier
follow from the structure of the program: a reduction follows the compute launched
before it, compute follows the gather of its unit, and so on (:mod:`zprof.step.structure`).
"""

import re
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Texts
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.events import CALL_CATEGORIES, WORK_CATEGORIES, EventView
from zprof.analysis.time.ledger import RankTracks
from zprof.analysis.time.steps import StepWindows
from zprof.model.collectives import CollectiveKind
from zprof.model.gaps import Gap, GapKind
from zprof.run.reader import Run
from zprof.step.lost_members import fill_lost_members
from zprof.step.structure import (
    COPIES_GRADIENTS,
    REDUCING_KINDS,
    find_copies_in,
    find_copies_out,
    find_main_stream,
    find_work_behind,
    select_kinds,
)
from zprof.step.tasks import NONE, Bools, Floats, Graph, RankGraph, RankTasks, match_collectives
from zprof.step.waits import find_device_waits, find_host_waits, find_pick_up, read_host_times

#: A replay needs launches: it is refused if a larger share of the device time has no recorded launch.
_MAX_UNLAUNCHED_RATIO = 0.10
_MAX_TASKS = 240_000
_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation")
#: Calls that can block the host until device work is done.
_BLOCKING_CALLS = re.compile(r"(cuda|hip|cu)\w*(Synchronize|Memcpy|Free|Malloc|Query)\w*", re.ASCII)


def build_graph(analysis: RunAnalysis, *, apart: bool = False) -> Graph | Gap:
    """Build the graph of a device run; return a gap if the recording does not allow it.

    With ``apart`` each rank is independent: its collectives take as long as recorded, including waits.
    """
    if analysis.source is None or not analysis.tracks or not len(analysis.steps):
        return make_replay_gap("the recording is not available")
    if analysis.run.device == "cpu":
        return make_replay_gap("the ranks compute on the CPU")
    steps = find_common_steps(analysis)
    if not steps:
        return make_replay_gap("no step was recorded by all ranks")
    tasks = _read_ranks(analysis, steps)
    if not _fits(tasks):
        fewer = bisect_left(
            range(1, len(steps)), True, key=lambda count: not _fits(_read_ranks(analysis, steps[-count:]))
        )
        if not fewer:
            return make_replay_gap(f"a step has more than {_MAX_TASKS:,} calls")
        steps = steps[-fewer:]
        tasks = _read_ranks(analysis, steps)
    return tasks if isinstance(tasks, Gap) else _connect_ranks(analysis, tasks, steps, apart=apart)


def find_common_steps(analysis: RunAnalysis) -> list[int]:
    """Return the longest run of consecutive steps that all ranks have; empty without one."""
    if not analysis.tracks or not len(analysis.steps):
        return []
    steps_by_rank = [set(tracks.host_steps.number.tolist()) for tracks in analysis.tracks]
    common = sorted(set.intersection(*steps_by_rank) & set(analysis.steps.ints("step").tolist()))
    run_start, longest_run = 0, range(0)
    for place, number in enumerate(common):
        if number != common[run_start] + place - run_start:
            run_start = place
        longest_run = max(longest_run, range(run_start, place + 1), key=len)
    return common[longest_run.start : longest_run.stop]


def _fits(tasks: Sequence[RankTasks] | Gap) -> bool:
    """Return False if these are too many tasks to be replayed together."""
    return isinstance(tasks, Gap) or sum(map(len, tasks)) <= _MAX_TASKS


def make_replay_gap(reason: str) -> Gap:
    """Return the gap of a step that cannot be played."""
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
            return make_replay_gap(
                f"{unlaunched_ratio:.0%} of the work of rank {tracks.rank} has no recorded launch"
            )
        if not len(tasks):  # truncated, or host and device have different clocks
            return make_replay_gap(f"rank {tracks.rank} has no host call within its steps")
        found.append(tasks)
    return found


def _connect_ranks(
    analysis: RunAnalysis, tasks: Sequence[RankTasks], steps: Sequence[int], *, apart: bool
) -> Graph:
    rows = analysis.collectives
    if not apart:
        tasks = fill_lost_members(tasks, rows)
    rank_of_row = np.append(rows.ints("rank"), NONE)
    shared = match_collectives(tasks, rows, apart=apart)
    windows = {tracks.rank: tracks.host_steps.only(steps) for tracks in analysis.tracks}
    origin = min(int(window.begin_ns[0]) for window in windows.values())
    device_steps = {tracks.rank: tracks.steps.only(steps) for tracks in analysis.tracks}
    copies = _gather_copy_names(analysis)
    ranks = tuple(
        _build_rank(
            each,
            mine,
            shared.arrival_ns,
            rows.texts("kind"),
            copies,
            rows.texts("unit"),
            (each.row != NONE) & (rank_of_row[each.row] != each.rank),
            (float(windows[each.rank].begin_ns[0] - origin), float(windows[each.rank].end_ns[-1] - origin)),
            float(device_steps[each.rank].begin_ns[0] - origin),
            steps[0],
        )
        for each, mine in zip(tasks, shared.numbers, strict=True)
    )
    return Graph(
        ranks=ranks,
        transfer_ns=shared.transfer_ns,
        members=shared.members,
        lane=shared.lane,
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


def read_tasks(
    run: Run, tracks: RankTracks, rows: Columns, host_steps: StepWindows, origin_ns: int
) -> tuple[RankTasks, float]:
    """Return the tasks of one rank in ``host_steps``, and the share of device time without a recorded launch.

    Args:
        run: The run that holds the rank's events.
        tracks: The rank's clock and steps.
        rows: The rank's rows of the analysis' collectives.
        host_steps: The steps to replay, by the host's marks, on the common clock.
        origin_ns: Time origin.
    """
    view = EventView(run.table(tracks.rank, "events", _COLUMNS), WORK_CATEGORIES | CALL_CATEGORIES)
    spans = tracks.clock.common(view.spans)
    is_work = view.match_categories(*WORK_CATEGORIES) & (spans[:, 1] > spans[:, 0])
    is_call = view.match_categories(*CALL_CATEGORIES)
    inside = host_steps.step_at(spans[:, 0]) >= 0
    calls = _drop_nested_calls(np.flatnonzero(is_call & inside), spans, view.thread)
    work = np.flatnonzero(is_work)
    call_of_work = _find_launches(work, calls, view.correlation)
    launched = call_of_work != NONE
    unlaunched_ratio = _compute_unlaunched_ratio(view, spans, work, np.flatnonzero(is_call), host_steps)
    # a call that launches several tasks (a graph) becomes one task per piece of work; the first carries the
    # duration of the call
    order = np.lexsort((spans[work[launched], 0], call_of_work[launched]))
    task_work, task_call = work[launched][order], call_of_work[launched][order]
    calls_without_work = np.setdiff1d(np.arange(len(calls)), task_call)
    all_calls = np.concatenate((task_call, calls_without_work))
    all_work = np.concatenate((task_work, np.full(len(calls_without_work), NONE, dtype=np.int64)))
    order = np.argsort(all_calls, kind="stable")
    return _make_tasks(
        tracks.rank, view, spans, calls[all_calls[order]], all_work[order], rows, host_steps, origin_ns
    ), unlaunched_ratio


def _compute_unlaunched_ratio(
    view: EventView, spans: Int64s, work: Int64s, calls: Int64s, host_steps: StepWindows
) -> float:
    """Return the share of the device time in the steps that no recorded call launched.

    Calls before the steps count as launches: a host that runs ahead launches the first work of a step before
    that step starts.
    """
    in_steps = work[(spans[work, 1] > host_steps.begin_ns[0]) & (spans[work, 0] < host_steps.end_ns[-1])]
    length = (spans[in_steps, 1] - spans[in_steps, 0]).astype(np.float64)
    unknown = _find_launches(in_steps, calls, view.correlation) == NONE
    return float(length[unknown].sum() / max(1.0, length.sum()))


def _make_tasks(
    rank: int,
    view: EventView,
    spans: Int64s,
    calls: Int64s,
    work: Int64s,
    rows: Columns,
    host_steps: StepWindows,
    origin_ns: int,
) -> RankTasks:
    has_work = work != NONE
    call = (spans[calls] - origin_ns).astype(np.float64)
    is_repeat = np.zeros(len(calls), dtype=np.bool_)  # a truncated trace may have no call in these steps
    is_repeat[1:] = calls[1:] == calls[:-1]
    call[is_repeat, 0] = call[is_repeat, 1]
    work_spans = np.where(has_work[:, None], (spans[work] - origin_ns).astype(np.float64), np.nan)
    names = Texts(*view.coded(calls))
    kernels, kernel = view.coded(work[has_work])
    kernel_codes = np.full(len(work), len(kernels), dtype=np.int64)
    kernel_codes[has_work] = kernel
    return RankTasks(
        rank=rank,
        thread=view.thread[calls],
        name=names,
        blocks=names.match(_BLOCKING_CALLS.match),
        call=call,
        work=work_spans,
        stream=np.where(has_work, view.stream[work], NONE),
        kernel=Texts((*kernels, ""), kernel_codes),
        row=_find_rows(spans, work, rows),
        step=host_steps.step_at(spans[calls, 0]),
    )


def _drop_nested_calls(calls: Int64s, spans: Int64s, thread: Int64s) -> Int64s:
    """Drop calls nested in another call of their thread, such as a driver call within a runtime call."""
    order = calls[np.lexsort((-spans[calls, 1], spans[calls, 0], thread[calls]))]
    begin, end = spans[order].T
    is_kept = np.ones(len(order), dtype=np.bool_)
    for mine in np.split(np.arange(len(order)), np.flatnonzero(np.diff(thread[order])) + 1):
        until = np.maximum.accumulate(end[mine])[:-1]
        is_kept[mine[1:]] = (begin[mine[1:]] >= until) | (end[mine[1:]] > until)
    chosen = order[is_kept]
    return chosen[np.argsort(spans[chosen, 0], kind="stable")]


def _find_launches(work: Int64s, calls: Int64s, correlation: Int64s) -> Int64s:
    """Return the index into ``calls`` of the launch of each row of ``work``, ``NONE`` if not among them."""
    order = np.argsort(correlation[calls], kind="stable")
    known = correlation[calls][order]
    expected = correlation[work]
    if not len(known):
        return np.full(len(work), NONE, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, expected), len(known) - 1)
    return np.where((known[at] == expected) & (expected > 0), order[at], NONE).astype(np.int64)


def _find_rows(spans: Int64s, work: Int64s, rows: Columns) -> Int64s:
    """Return the collective row of each piece of work, matched by equal start and end, or ``NONE``."""
    known = dict(
        zip(
            zip(rows.ints("start_ns").tolist(), rows.ints("end_ns").tolist(), strict=True),
            rows.row.tolist(),
            strict=True,
        )
    )
    found = np.full(len(work), NONE, dtype=np.int64)
    # few kernels are collectives: only those that start as one does are looked up
    candidates = np.flatnonzero((work != NONE) & np.isin(spans[work, 0], rows.ints("start_ns")))
    keys = map(tuple, spans[work[candidates]].tolist())
    found[candidates] = [known.get(key, NONE) for key in keys]
    return found
