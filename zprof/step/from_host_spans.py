"""Build the step of ranks whose work is not recorded kernel by kernel, from what one thread of each did.

On a CPU rank the main thread computes, launches collectives and waits for them; process groups run them on
threads of their own. Its tasks are, in the order of the host:

    launch    starts a collective, which its process group runs after those before it
    wait      blocks the thread until a collective is done, and until the thread has woken up
    load      waits for the data loader
    compute   the time between these; work of the thread itself, on a stream of its own

A wait that was not recorded is where the analysis found the thread blocked: the exposed time before the end
of the collective. A device of which no launch was recorded has the same form: its compute stream is the
thread, and a collective is launched when it starts.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Texts
from zprof.analysis.intervals import Int64s, Intervals
from zprof.analysis.time.host_calls import read_loader_spans
from zprof.analysis.time.ledger import RankTracks
from zprof.analysis.time.steps import StepWindows
from zprof.model.gaps import Gap
from zprof.step.from_kernels import find_common_steps, make_replay_gap
from zprof.step.tasks import NONE, Bools, Floats, Graph, RankGraph, RankTasks, match_collectives

_NAMES = ("launch", "wait", "load", "compute")
_LAUNCH, _WAIT, _LOAD, _COMPUTE = range(len(_NAMES))
#: The stream of the thread's own work; those of process groups are their numbers.
_OWN_STREAM = 1 << 40
#: Ranks and steps with more collectives are played in part: the last steps.
_MAX_COLLECTIVES = 60_000


class _Calls(Struct, frozen=True, kw_only=True):
    """What a thread did, in order: spans in ns since the origin, and the place of each call's collective."""

    kind: Int64s
    spans: Intervals
    source: Int64s


def build_host_graph(analysis: RunAnalysis, *, apart: bool = False) -> Graph | Gap:
    """Build the graph of a run from the spans of its threads; return a gap if no step is common to all ranks.

    With ``apart`` each rank is independent: its collectives take as long as recorded, including waits.
    """
    steps = find_common_steps(analysis)
    if not steps:
        return make_replay_gap("no step was recorded by all ranks")
    rows = analysis.collectives
    per_step = max(1, len(rows) // max(1, len(np.unique(rows.ints("step")))) if len(rows) else 1)
    steps = steps[-max(2, _MAX_COLLECTIVES // per_step) :]
    windows = [_select_window(analysis, tracks, steps) for tracks in analysis.tracks]
    origin = min(int(window.begin_ns[0]) for window in windows)
    mine = rows.at(np.isin(rows.ints("step"), steps)) if len(rows) else None
    tasks, on = [], []
    for tracks in analysis.tracks:
        of_rank = mine.at(mine.ints("rank") == tracks.rank) if mine is not None else None
        made, blocks_on = _make_tasks(analysis, tracks, of_rank, steps, origin)
        tasks.append(made)
        on.append(blocks_on)
    if not any(len(each) for each in tasks):
        return make_replay_gap("no rank has a timed step")
    shared = match_collectives(tasks, rows, apart=apart)
    return Graph(
        ranks=tuple(
            _connect_rank(each, waited, own, shared.arrival_ns, begin_ns=float(window.begin_ns[0] - origin))
            for each, waited, own, window in zip(tasks, on, shared.numbers, windows, strict=True)
        ),
        transfer_ns=shared.transfer_ns,
        members=shared.members,
        lane=shared.lane,
        measured_ns=np.array([(window.end_ns - origin).astype(np.float64) for window in windows]),
        steps=len(steps),
        origin_ns=origin,
        has_kernels=False,
        has_start=bool(len(rows))
        and bool(rows.bools("first_of_window")[rows.ints("step") == steps[0]].any()),
    )


def _select_window(analysis: RunAnalysis, tracks: RankTracks, steps: Sequence[int]) -> StepWindows:
    return (tracks.host_steps if analysis.run.device == "cpu" else tracks.steps).only(steps)


def _make_tasks(
    analysis: RunAnalysis, tracks: RankTracks, rows: Columns | None, steps: Sequence[int], origin_ns: int
) -> tuple[RankTasks, Int64s]:
    """Return the tasks of a rank in its steps, and the task that each of them blocks on."""
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
        stream[is_launch] = rows.texts("group").codes[mine]
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


def _list_calls(rows: Columns | None, loads: Intervals, origin_ns: int, *, is_device: bool) -> _Calls:
    """Return launches, waits and loads in the order of their start."""
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
    kind, spans, source = (np.concatenate(each).astype(np.int64) for each in zip(*parts, strict=True))
    order = np.lexsort((kind, spans[:, 0]))
    return _Calls(kind=kind[order], spans=spans[order], source=source[order])


def _order_calls(calls: _Calls, bounds: Intervals) -> _Calls:
    """Return the calls with the thread's own work between them, each step's up to its end."""
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
    """Return how much later each collective began than its launch and the end of the one before it."""
    lag = np.zeros(len(tasks))
    last: dict[int, float] = {}
    for at in np.flatnonzero(shared).tolist():
        stream = int(tasks.stream[at])
        ready = max(float(tasks.call[at, 0]), last.get(stream, begin_ns), begin_ns)
        lag[at] = max(0.0, float(tasks.work[at, 0]) - ready)
        last[stream] = float(tasks.work[at, 1])
    return lag
