"""Build a measured step's graph: all ranks' tasks, and what each task waited for.

A recording shows when work ran, but not what it waited for:

    start = max(launch + pick-up, end of the previous work on its stream, end of what it waits for) + lag

If work starts later than its launch and its stream explain, it waited for work on another stream that had
just ended. The remainder is its own lag. This finds the waits that took effect. Waits that ended earlier
follow from the program's structure: a reduction follows the compute launched before it, compute follows its
unit's gather, and so on (:mod:`zprof.step.structure`).

Work that is not recorded kernel by kernel follows from the activity of one thread per rank. On a CPU rank,
the main thread computes, launches collectives and waits for them; process groups run them on their own
threads. Its tasks are, in host order:

    launch    starts a collective, which its process group runs after those before it
    wait      blocks the thread until a collective is done, and until the thread has woken up
    load      waits for the data loader
    compute   the time between these; work of the thread itself, on a stream of its own

An unrecorded wait is assumed where the analysis found the thread blocked: the exposed time before the end of
the collective. A device without recorded launches has the same form: its compute stream is the thread, and a
collective is launched when it starts.
"""

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups, Texts
from zprof.analysis.intervals import Int64s, Intervals
from zprof.analysis.time.events import CALL_CATEGORIES, WORK_CATEGORIES, EventView
from zprof.analysis.time.host_calls import read_loader_spans
from zprof.analysis.time.ledger import RankTracks
from zprof.analysis.time.steps import StepWindows
from zprof.model.collectives import CollectiveKind
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.run.reader import Run
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

#: Maximum share of device time without a recorded launch: a replay needs launches.
_MAX_UNLAUNCHED_RATIO = 0.10
_MAX_TASKS = 240_000
_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation")
#: Calls that can block the host until device work is done.
_BLOCKING_CALLS = re.compile(r"(cuda|hip|cu)\w*(Synchronize|Memcpy|Free|Malloc|Query)\w*", re.ASCII)
_NAMES = ("launch", "wait", "load", "compute")
_LAUNCH, _WAIT, _LOAD, _COMPUTE = range(len(_NAMES))
#: Stream of the thread's own work; a process group's stream is its number.
_OWN_STREAM = 1 << 40
#: With more collectives, only the last steps are played.
_MAX_COLLECTIVES = 60_000


def build_graph(analysis: RunAnalysis, *, apart: bool = False) -> Graph | Gap:
    """Build the graph of a device run; return a gap if the recording does not allow it.

    With ``apart`` each rank is independent: its collectives take as long as recorded, including waits.
    """
    if analysis.source is None or not analysis.tracks or not len(analysis.steps):
        return make_gap("replay_without_recording")
    if analysis.run.device == "cpu":
        return make_gap("replay_on_cpu")
    steps = find_common_steps(analysis)
    if not steps:
        return make_gap("replay_without_common_step")
    tasks = _read_ranks(analysis, steps)
    if isinstance(tasks, Gap):
        return tasks
    per_step = np.sum([np.bincount(each.step - steps[0], minlength=len(steps)) for each in tasks], axis=0)
    fitting = int(np.searchsorted(np.cumsum(per_step[::-1]), _MAX_TASKS, side="right"))
    if not fitting:
        return make_gap("replay_too_large", limit=_MAX_TASKS)
    if fitting < len(steps):
        later_ns = _find_origin(analysis, steps[-fitting:]) - _find_origin(analysis, steps)
        steps = steps[-fitting:]
        tasks = [each.since_step(steps[0], later_ns) for each in tasks]
    return _connect_ranks(analysis, tasks, steps, apart=apart)


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


def _find_origin(analysis: RunAnalysis, steps: Sequence[int]) -> int:
    """Return the time origin of a replay of these steps: the start of the first one on the first host."""
    return min(int(tracks.host_steps.only(steps).begin_ns[0]) for tracks in analysis.tracks)


def _read_ranks(analysis: RunAnalysis, steps: Sequence[int]) -> list[RankTasks] | Gap:
    assert analysis.source is not None
    windows = [tracks.host_steps.only(steps) for tracks in analysis.tracks]
    origin = _find_origin(analysis, steps)
    ranks = analysis.collectives.group_by("rank")
    rows = {int(analysis.collectives.ints("rank")[places[0]]): places for places in ranks.split()}
    found = []
    for tracks, window in zip(analysis.tracks, windows, strict=True):
        mine = analysis.collectives.at(rows.get(tracks.rank, np.zeros(0, dtype=np.int64)))
        tasks, unlaunched_ratio = read_tasks(analysis.source, tracks, mine, window, origin)
        if unlaunched_ratio > _MAX_UNLAUNCHED_RATIO:
            return make_gap("replay_without_launches", ratio=unlaunched_ratio, played=tracks.rank)
        if not len(tasks):  # truncated, or host and device have different clocks
            return make_gap("replay_without_host_calls", played=tracks.rank)
        found.append(tasks)
    return found


def _connect_ranks(
    analysis: RunAnalysis, tasks: Sequence[RankTasks], steps: Sequence[int], *, apart: bool
) -> Graph:
    rows = analysis.collectives
    if not apart:
        from zprof.step.waits import fill_lost_members  # CPU ranks have no kernels that wait

        tasks = fill_lost_members(tasks, rows)
    rank_of_row = np.append(rows.ints("rank"), NONE)
    shared = match_collectives(tasks, rows, apart=apart)
    windows = {tracks.rank: tracks.host_steps.only(steps) for tracks in analysis.tracks}
    origin = _find_origin(analysis, steps)
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
        stages=analysis.time.mesh.number_stages() if analysis.time.mesh is not None else {},
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
    from zprof.step.waits import find_device_waits, find_host_waits, find_pick_up, read_host_times

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
    """Return one rank's tasks in ``host_steps``, and the share of device time without a recorded launch.

    Args:
        run: The run with the rank's events.
        tracks: The rank's clock and steps.
        rows: The rank's rows of the analysis' collectives.
        host_steps: The steps to replay, by host marks, on the common clock.
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
    """Return the share of the steps' device time that no recorded call launched.

    Calls before the steps count as launches: a host that runs ahead launches a step's first work before the
    step starts.
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
    """Drop calls nested in another call on their thread, such as a driver call within a runtime call."""
    order = calls[np.lexsort((-spans[calls, 1], spans[calls, 0], thread[calls]))]
    begin, end = spans[order].T
    is_kept = np.ones(len(order), dtype=np.bool_)
    for mine in np.split(np.arange(len(order)), np.flatnonzero(np.diff(thread[order])) + 1):
        until = np.maximum.accumulate(end[mine])[:-1]
        is_kept[mine[1:]] = (begin[mine[1:]] >= until) | (end[mine[1:]] > until)
    chosen = order[is_kept]
    return chosen[np.argsort(spans[chosen, 0], kind="stable")]


def _find_launches(work: Int64s, calls: Int64s, correlation: Int64s) -> Int64s:
    """Return, for each row of ``work``, its launch as an index into ``calls``, or ``NONE``."""
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
    # few kernels are collectives: only those with a collective's start time are looked up
    candidates = np.flatnonzero((work != NONE) & np.isin(spans[work, 0], rows.ints("start_ns")))
    keys = map(tuple, spans[work[candidates]].tolist())
    found[candidates] = [known.get(key, NONE) for key in keys]
    return found


class _Calls(Struct, frozen=True, kw_only=True):
    """A thread's activity, in order: spans in ns since the origin, and each call's collective as a
    position.
    """

    kind: Int64s
    spans: Intervals
    source: Int64s


def build_host_graph(analysis: RunAnalysis, *, apart: bool = False) -> Graph | Gap:
    """Build a run's graph from its threads' spans; return a gap if no step is common to all ranks.

    With ``apart`` each rank is independent: its collectives take as long as recorded, including waits.
    """
    steps = find_common_steps(analysis)
    if not steps:
        return make_gap("replay_without_common_step")
    rows = analysis.collectives
    if analysis.run.device == "cpu" and len(rows):
        rows = rows.with_columns(end_ns=_find_message_ends(rows))
    per_step = max(1, len(rows) // max(1, len(np.unique(rows.ints("step")))) if len(rows) else 1)
    steps = steps[-max(2, _MAX_COLLECTIVES // per_step) :]
    windows = [_select_window(analysis, tracks, steps) for tracks in analysis.tracks]
    origin = min(int(window.begin_ns[0]) for window in windows)
    mine = rows.at(np.isin(rows.ints("step"), steps)) if len(rows) else None
    tasks, on = [], []
    for tracks in analysis.tracks:
        of_rank = mine.at(mine.ints("rank") == tracks.rank) if mine is not None else None
        made, blocks_on = _make_span_tasks(analysis, tracks, of_rank, steps, origin)
        tasks.append(made)
        on.append(blocks_on)
    if not any(len(rank_tasks) for rank_tasks in tasks):
        return make_gap("replay_without_timed_step")
    shared = match_collectives(tasks, rows, apart=apart)
    return Graph(
        ranks=tuple(
            _connect_rank(
                rank_tasks, waited, own, shared.arrival_ns, begin_ns=float(window.begin_ns[0] - origin)
            )
            for rank_tasks, waited, own, window in zip(tasks, on, shared.numbers, windows, strict=True)
        ),
        transfer_ns=shared.transfer_ns,
        members=shared.members,
        lane=shared.lane,
        measured_ns=np.array([(window.end_ns - origin).astype(np.float64) for window in windows]),
        steps=len(steps),
        origin_ns=origin,
        stages=analysis.time.mesh.number_stages() if analysis.time.mesh is not None else {},
        has_kernels=False,
        has_start=bool(len(rows))
        and bool(rows.bools("first_of_window")[rows.ints("step") == steps[0]].any()),
    )


def _select_window(analysis: RunAnalysis, tracks: RankTracks, steps: Sequence[int]) -> StepWindows:
    return (tracks.host_steps if analysis.run.device == "cpu" else tracks.steps).only(steps)


def _make_span_tasks(
    analysis: RunAnalysis, tracks: RankTracks, rows: Columns | None, steps: Sequence[int], origin_ns: int
) -> tuple[RankTasks, Int64s]:
    """Return a rank's tasks in its steps, and the task that each blocks on."""
    window = _select_window(analysis, tracks, steps)
    is_device = analysis.run.device != "cpu"
    loads = np.zeros((0, 2), dtype=np.int64)
    if analysis.source is not None and not is_device:
        loads = tracks.clock.common(read_loader_spans(analysis.source, tracks.rank)) - origin_ns
    bounds = np.column_stack((window.begin_ns, window.end_ns)) - origin_ns
    calls = _order_calls(_list_calls(rows, loads, origin_ns, is_device=is_device), bounds)
    is_launch, is_own = calls.kind == _LAUNCH, calls.kind == _COMPUTE
    launched_at = np.full(0 if rows is None else len(rows), NONE, dtype=np.int64)
    launched_at[calls.source[is_launch]] = np.flatnonzero(is_launch)
    work = np.where(is_own[:, None], calls.spans, np.nan).astype(np.float64)
    stream = np.where(is_own, _OWN_STREAM, NONE)
    row = np.full(len(calls.kind), NONE, dtype=np.int64)
    if rows is not None:
        mine = calls.source[is_launch]
        work[is_launch] = np.column_stack((rows.ints("start_ns"), rows.ints("end_ns")))[mine] - origin_ns
        stream[is_launch] = _number_queues(rows)[mine]
        row[is_launch] = rows.row[mine]
    on = np.where(is_own, np.arange(len(row)), NONE)
    is_wait = calls.kind == _WAIT
    on[is_wait] = launched_at[calls.source[is_wait]]
    # the host is past a load when it ends
    call = np.where((calls.kind == _LOAD)[:, None], calls.spans[:, [1]], calls.spans).astype(np.float64)
    tasks = RankTasks(
        rank=tracks.rank,
        thread=np.zeros(len(row), dtype=np.int64),
        name=Texts(_NAMES, calls.kind),
        blocks=is_wait,
        call=call,
        work=work,
        stream=stream,
        kernel=Texts(("", _NAMES[_LAUNCH], _NAMES[_COMPUTE]), is_launch + 2 * is_own),
        row=row,
        step=window.number[np.clip(np.searchsorted(bounds[:, 1], calls.spans[:, 1]), 0, len(bounds) - 1)],
    )
    return tasks, on


def _find_message_ends(rows: Columns) -> Int64s:
    """Return when each row ended; the data of a message may arrive long before its rank waits for it.

    A message that was not waited for yet has ended when its other rank had it.
    """
    start_ns, end_ns = rows.ints("start_ns"), rows.ints("end_ns")
    messages = Groups(rows.ints("instance"))
    known_ns = np.maximum(messages.min(end_ns), messages.max(start_ns))[messages.codes]
    is_shared = _mark_messages(rows) & (rows.ints("instance") >= 0)
    is_early = is_shared & rows.known("wait_start_ns") & (known_ns < rows.ints("wait_start_ns"))
    return np.where(is_early, known_ns, end_ns)


def _number_queues(rows: Columns) -> Int64s:
    """Return the queue of each row: its group's, and for messages those of its group, kind and peer."""
    is_message = _mark_messages(rows)
    kind = np.where(is_message, rows.texts("kind").codes, NONE)
    peer = np.where(is_message, rows.ints("peer_rank", NONE), NONE)
    return Groups(rows.texts("group"), kind, peer).codes


def _mark_messages(rows: Columns) -> Bools:
    marked: Bools = rows.texts("kind").equals(CollectiveKind.SEND.value, CollectiveKind.RECV.value)
    return marked


def _list_calls(rows: Columns | None, loads: Intervals, origin_ns: int, *, is_device: bool) -> _Calls:
    """Return launches, waits and loads by start."""
    parts = [(np.full(len(loads), _LOAD), loads, np.full(len(loads), NONE))]
    if rows is not None:
        start, end = rows.ints("start_ns") - origin_ns, rows.ints("end_ns") - origin_ns
        blocked = rows.ints("exposed_wait_ns") + rows.ints("exposed_transfer_ns")

        def read(name: str, default: Int64s) -> Int64s:
            is_known = rows.known(name) & (not is_device)
            return np.where(is_known, rows.ints(name) - origin_ns, default)

        launch = np.minimum(read("launch_start_ns", start), start)
        launched = np.maximum(launch, read("launch_end_ns", launch))
        wait = np.maximum(launched, read("wait_start_ns", end - blocked))
        woken = np.maximum(wait, read("wait_end_ns", end))
        waits = np.flatnonzero((blocked > 0) | (rows.known("wait_start_ns") & (not is_device)))
        everything = np.arange(len(rows))
        parts.append((np.full(len(rows), _LAUNCH), np.column_stack((launch, launched)), everything))
        parts.append((np.full(len(waits), _WAIT), np.column_stack((wait, woken))[waits], waits))
    kind, spans, source = (np.concatenate(columns).astype(np.int64) for columns in zip(*parts, strict=True))
    order = np.lexsort((kind, spans[:, 0]))
    return _Calls(kind=kind[order], spans=spans[order], source=source[order])


def _order_calls(calls: _Calls, bounds: Intervals) -> _Calls:
    """Return the calls interleaved with the thread's own work, up to the end of each step."""
    ends = np.column_stack((bounds[:, 1], bounds[:, 1]))
    place = np.searchsorted(calls.spans[:, 0], ends[:, 0], side="right")
    kind = np.insert(calls.kind, place, NONE)
    spans, source = np.insert(calls.spans, place, ends, axis=0), np.insert(calls.source, place, NONE)
    begin = bounds[0, 0]
    since = np.maximum(begin, np.concatenate(([begin], np.maximum.accumulate(spans[:, 1])[:-1])))
    works = np.flatnonzero(spans[:, 0] > since)
    spans[:, 0] = np.maximum(spans[:, 0], since)
    spans[:, 1] = np.maximum(spans[:, 1], spans[:, 0])
    own = np.column_stack((since[works], spans[works, 0]))
    kind, source = np.insert(kind, works, _COMPUTE), np.insert(source, works, NONE)
    spans = np.insert(spans, works, own, axis=0)
    kept = kind != NONE
    return _Calls(kind=kind[kept], spans=spans[kept], source=source[kept])


def _connect_rank(
    tasks: RankTasks, on: Int64s, numbers: Int64s, arrival_ns: Floats, *, begin_ns: float
) -> RankGraph:
    is_own = tasks.stream == _OWN_STREAM
    is_load = tasks.name.equals(_NAMES[_LOAD])
    is_wait = (on != NONE) & ~is_own
    until = np.concatenate(([begin_ns], np.maximum.accumulate(np.maximum(tasks.call[:-1, 1], begin_ns))))
    length = np.where(is_own, 0.0, np.maximum(0.0, tasks.call[:, 1] - np.maximum(tasks.call[:, 0], until)))
    done = np.where(is_wait, tasks.work[np.maximum(on, 0), 1], np.inf)
    is_blocked = is_wait & (done > tasks.call[:, 0])
    shared = numbers != NONE
    work = np.where(is_own, tasks.work[:, 1] - tasks.work[:, 0], 0.0)
    # a rank's own part of a collective is how much later than the first rank it ended
    arrived = np.maximum(tasks.work[shared, 0], arrival_ns[numbers[shared]])
    work[shared] = tasks.work[shared, 1] - arrived
    nothing = np.full(len(tasks), NONE, dtype=np.int64)
    return RankGraph(
        tasks=tasks,
        gap_ns=np.where(is_load, np.maximum(0.0, tasks.call[:, 0] - until), 0.0),
        call_ns=np.where(is_blocked, 0.0, length),
        blocks_on=on,
        returns_ns=np.where(is_blocked, np.maximum(0.0, tasks.call[:, 1] - done), 0.0),
        stream=tasks.stream,
        work_ns=work,
        waits_on=((),) * len(tasks),
        held=(),
        lag_ns=_find_lags(tasks, shared, begin_ns),
        collective=numbers,
        copy_in=nothing,
        copy_out=nothing,
        first_step=int(tasks.step[0]) if len(tasks) else 0,
        begin_ns=begin_ns,
        host_begin_ns=begin_ns,
        tail_ns=0.0,
        pick_up_ns=0.0,
    )


def _find_lags(tasks: RankTasks, shared: Bools, begin_ns: float) -> Floats:
    """Return each collective's delay after both its launch and the end of the previous collective."""
    lag = np.zeros(len(tasks))
    last: dict[int, float] = {}
    for at in np.flatnonzero(shared).tolist():
        stream = int(tasks.stream[at])
        ready = max(float(tasks.call[at, 0]), last.get(stream, begin_ns), begin_ns)
        lag[at] = max(0.0, float(tasks.work[at, 0]) - ready)
        last[stream] = float(tasks.work[at, 1])
    return lag
