"""Find one rank's steps in the time window, and the phase and micro-batch at a given host time.

Steps are host marks, moved to the end of the work that each step launched. Work belongs to the step that
launched it, according to its host call or else the device's own step range on the stream.

Phases follow from evidence in the events. Program ranges are the best: FSDP1's and FSDP2's hooks, DDP's
forward, the recorder's marks. Next is autograd: ``autograd::engine::evaluate_function`` encloses every
backward node, and all other work on an autograd thread is backward, too. A forward pass is recomputation if
it runs on an autograd thread, or visits only some of the previous forward's units.
"""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Mask
from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals, subtract, union
from zprof.analysis.time.activity import UNKNOWN_NS, RankActivity
from zprof.analysis.time.clocks import RankClock
from zprof.analysis.time.events import EventColumns, EventView, find_busiest
from zprof.model.training import Phase

WHOLE_TRACE = "whole trace"
RECORDER = "recorder"
_NONE = np.empty(0, dtype=np.int64)
_FSDP1 = r"FullyShardedDataParallel\._?"
_FORWARD = re.compile(
    rf"FSDP::(root_)?(pre|post)_forward\b.*|{_FSDP1}(root_)?(pre|post)_forward|DistributedDataParallel\.forward"
)
#: FSDP2 names the unit; only the start of a forward pass indicates a new unit.
_UNIT_FORWARD = re.compile(r"FSDP::(root_)?pre_forward\b.*\(.+\).*")
_BACKWARD = re.compile(
    rf"FSDP::(root_)?(pre|post)_backward.*|{_FSDP1}(pre|post)_backward_hook(_reshard_only)?"
)
_FORWARD_AHEAD = re.compile(rf"FSDP::forward_prefetch.*|{_FSDP1}pre_forward_prefetch")
_BACKWARD_AHEAD = re.compile(rf"FSDP::backward_prefetch.*|{_FSDP1}(pre|post)_backward_prefetch")
_OPTIMIZER = re.compile(r"Optimizer\.step#.*")
_STEP = re.compile(r"ProfilerStep#.*")
_LOADER = re.compile(r"enumerate\(DataLoader\)#.*")
_NODE = re.compile(r"autograd::engine::evaluate_function\b.*")
#: The training-loop thread runs at least this share of the operators.
_PROGRAM_RATIO = 0.05
_AUTOGRAD = re.compile(r"autograd::engine::evaluate_function\b.*|\w+Backward\d*|aten::\w*backward\w*")
_OPERATOR = re.compile(r"aten::\w+|c10d::\w*all_?gather\w*")
UNKNOWN_PHASE = "unknown"
BY_RANGES, BY_AUTOGRAD = "ranges", "autograd"
#: Maximum number of nested ranges skipped to find the range that contains a time.
_MAX_NESTING = 64
#: Placeholder for the start of a range that does not exist.
_NO_RANGE = np.iinfo(np.int64).min
#: Phase and method for the conditions in ``_find_phases``, in order; the first that holds counts.
_PHASES_AND_METHODS = (
    (Phase.OPTIMIZER.value, BY_RANGES),
    (Phase.BACKWARD.value, BY_RANGES),
    (Phase.RECOMPUTE.value, BY_RANGES),
    (Phase.FORWARD.value, BY_RANGES),
    (Phase.BACKWARD.value, BY_RANGES),
    (Phase.FORWARD.value, BY_RANGES),
    (Phase.BACKWARD.value, BY_AUTOGRAD),
    (UNKNOWN_PHASE, UNKNOWN_PHASE),
    (Phase.BACKWARD.value, BY_AUTOGRAD),
    (Phase.FORWARD.value, BY_AUTOGRAD),
)
_LOCAL = RankClock()


class StepWindows(Struct, frozen=True, kw_only=True):
    """Numbers, starts and ends of steps, sorted by start."""

    number: Int64s
    begin_ns: Int64s
    end_ns: Int64s

    def __len__(self) -> int:
        return len(self.number)

    @property
    def spans(self) -> Intervals:
        """The steps as intervals."""
        return intervals(self.begin_ns, self.end_ns)

    def on(self, clock: RankClock) -> "StepWindows":
        """Return the same steps on the common clock."""
        return replace(self, begin_ns=clock.common(self.begin_ns), end_ns=clock.common(self.end_ns))

    def select(self, mask: Mask) -> "StepWindows":
        """Return the steps selected by a mask."""
        return StepWindows(number=self.number[mask], begin_ns=self.begin_ns[mask], end_ns=self.end_ns[mask])

    def only(self, numbers: Sequence[int]) -> "StepWindows":
        """Return the steps with these numbers."""
        return self.select(np.isin(self.number, numbers))

    def step_at(self, times_ns: Int64s) -> Int64s:
        """Return the step that contains each moment; -1 outside all steps."""
        if not len(self):
            return np.full(len(times_ns), -1, dtype=np.int64)
        index = np.searchsorted(self.begin_ns, times_ns, side="right") - 1
        inside = (index >= 0) & (times_ns < self.end_ns[np.maximum(index, 0)])
        return np.where(inside, self.number[np.maximum(index, 0)], -1).astype(np.int64)


def read_step_windows(marks: Columns, steps: Sequence[int]) -> StepWindows:
    """Return the ``steps`` with both marks and a positive length."""
    begins, ends = read_mark_times(marks, "step_begin"), read_mark_times(marks, "step_end")
    both = sorted(
        (begins[step], ends[step], step)
        for step in set(steps) & set(begins) & set(ends)
        if ends[step] > begins[step]
    )
    columns = np.array(both, dtype=np.int64).reshape(-1, 3)
    return StepWindows(number=columns[:, 2], begin_ns=columns[:, 0], end_ns=columns[:, 1])


def make_single_step(number: int, begin_ns: int, end_ns: int) -> StepWindows:
    """Return one interval as a step."""
    begin, end = np.array([begin_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64)
    return StepWindows(number=np.array([number], dtype=np.int64), begin_ns=begin, end_ns=end)


def move_to_work_end(host: StepWindows, launched_ns: Int64s, ended_ns: Int64s) -> StepWindows:
    """Move each step boundary to the end of the device work launched before it.

    The host runs ahead of its device, so host marks alone would count a step's last kernels in the next step.

    Args:
        host: Steps by host marks.
        launched_ns: Each kernel's and copy's launch time.
        ended_ns: Its end.
    """
    order = np.argsort(launched_ns, kind="stable")
    launched = launched_ns[order]
    ended = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ended_ns[order])))

    def move_boundary(boundary: Int64s) -> Int64s:
        return np.maximum(boundary, ended[np.searchsorted(launched, boundary, side="left")])

    return replace(host, begin_ns=move_boundary(host.begin_ns), end_ns=move_boundary(host.end_ns))


def read_mark_times(marks: Columns, kind: str) -> dict[int, int]:
    """Return the times of one kind of mark, by its number."""
    rows = marks.at(marks.texts("kind").equals(kind))
    return dict(zip(rows.ints("number").tolist(), rows.ints("time_ns").tolist(), strict=True))


class ThreadTimes(Struct, frozen=True, kw_only=True):
    """The training-loop thread's times in a step: on a processor, and ready but without one.

    ``queued_ns`` is 0 where the system does not report it; that time then counts as blocked.
    """

    cpu_ns: int
    queued_ns: int


def read_thread_times(marks: Columns) -> dict[int, ThreadTimes]:
    """Return the training-loop thread's times in each step that has them."""
    kinds, numbers, cpu_times, queued_times = (
        marks[name].tolist() for name in ("kind", "number", "thread_cpu_ns", "thread_queued_ns")
    )
    times_by_kind: dict[str, dict[int, tuple[int, int]]] = {"step_begin": {}, "step_end": {}}
    for kind, number, cpu_ns, queued_ns in zip(kinds, numbers, cpu_times, queued_times, strict=True):
        if cpu_ns is not None and kind in times_by_kind:
            times_by_kind[kind][number] = (cpu_ns, queued_ns or 0)
    begins, ends = times_by_kind.values()
    differences = {
        step: (ends[step][0] - begins[step][0], ends[step][1] - begins[step][1])
        for step in begins.keys() & ends.keys()
    }
    return {
        step: ThreadTimes(cpu_ns=cpu_ns, queued_ns=queued_ns)
        for step, (cpu_ns, queued_ns) in differences.items()
        if cpu_ns >= 0 and queued_ns >= 0
    }


class RankSteps(Struct, frozen=True, kw_only=True):
    """Steps of a rank: ``steps`` are split by the ledger, ``host_steps`` are when their work was launched.

    ``program``: the program's steps by host marks, even if the window is a single interval over several
    steps; None if not marked. ``unknown``: steps left out of both because the trace ends before the work that
    they launched.
    """

    steps: StepWindows
    host_steps: StepWindows
    source: str
    program: StepWindows | None = None
    unknown: tuple[int, ...] = ()


def find_step_windows(marks: Columns, steps: Sequence[int], activity: RankActivity) -> RankSteps:
    """Return the marked steps; on a device, boundaries move to the end of each step's work."""
    source = _read_source(marks)
    if activity.on_device and source == WHOLE_TRACE:
        return find_trace_windows(activity)
    host = read_step_windows(marks, steps)
    if not activity.on_device:
        program = None if source == WHOLE_TRACE else host
        return RankSteps(steps=host, host_steps=host, source=source, program=program)
    move_boundary = move_to_work_end(host, *assign_work_to_steps(activity, host).T)
    unknown = np.isin(host.number, host.step_at(activity.lost_launches))
    return RankSteps(
        steps=move_boundary.select(~unknown),
        host_steps=host.select(~unknown),
        source=source,
        program=host.select(~unknown),
        unknown=tuple(host.number[unknown].tolist()),
    )


def find_trace_windows(activity: RankActivity) -> RankSteps:
    """Return a single step over all device work, or from a CPU rank's first to last event."""
    active = activity.work if activity.on_device else activity.coverage
    steps = _span_step(active)
    return RankSteps(steps=steps, host_steps=_span_step(activity.coverage), source=WHOLE_TRACE)


def find_program_steps(marks: Columns, steps: Sequence[int]) -> StepWindows | None:
    """Return the steps marked by the program, or None without marks."""
    return None if _read_source(marks) == WHOLE_TRACE else read_step_windows(marks, steps)


def _span_step(spans: Intervals) -> StepWindows:
    if not len(spans):
        return StepWindows(number=_NONE, begin_ns=_NONE, end_ns=_NONE)
    return make_single_step(0, int(spans[:, 0].min()), int(spans[:, 1].max()))


def _read_source(marks: Columns) -> str:
    begins = np.flatnonzero(marks.texts("kind").equals("step_begin"))
    return marks.texts("name")[begins[0]] or RECORDER if len(begins) else RECORDER


def assign_work_to_steps(activity: RankActivity, host: StepWindows) -> Intervals:
    """Return launch and end of all work that can be assigned to a step.

    Work is assigned by its host call, or else by the device's own step range on the stream. Remaining work
    that ran before all work with a known launch was launched before the recording started. Other work is left
    out.
    """
    steps = _find_device_steps(activity, host)
    unassigned = activity.unlaunched[steps == UNKNOWN_NS]
    in_device_steps = intervals(steps[steps != UNKNOWN_NS], activity.unlaunched[steps != UNKNOWN_NS, 1])
    first_end = activity.launched[:, 1].min(initial=np.iinfo(np.int64).max)
    early = unassigned[unassigned[:, 0] < first_end] if len(activity.launched) else EMPTY
    before_recording = intervals(np.full(len(early), UNKNOWN_NS), early[:, 1])
    return np.concatenate((activity.launched, in_device_steps, before_recording))


def _find_device_steps(activity: RankActivity, host: StepWindows) -> Int64s:
    """Return the start of the step whose range contains each row on its stream, or ``UNKNOWN_NS``."""
    step_starts = np.full(len(activity.unlaunched), UNKNOWN_NS, dtype=np.int64)
    known = np.isin(activity.steps.number, host.number)
    for stream in np.unique(activity.steps.stream[known]).tolist():
        ranges = np.flatnonzero(known & (activity.steps.stream == stream))
        ranges = ranges[np.argsort(activity.steps.spans[ranges, 0], kind="stable")]
        rows = np.flatnonzero(activity.unlaunched_stream == stream)
        index = np.searchsorted(activity.steps.spans[ranges, 0], activity.unlaunched[rows, 0], "right") - 1
        inside = index >= 0
        inside &= activity.unlaunched[rows, 0] < activity.steps.spans[ranges[np.maximum(index, 0)], 1]
        numbers = activity.steps.number[ranges[index[inside]]]
        order = np.argsort(host.number, kind="stable")
        begins: Int64s = host.begin_ns[order[np.searchsorted(host.number[order], numbers)]]
        step_starts[rows[inside]] = begins
    return step_starts


class PhaseEvidence(Struct, frozen=True, kw_only=True):
    """Spans of one rank's host.

    ``forward`` and ``backward``: ranges recorded by the program; ``ahead_*``: prefetches for these passes;
    ``autograd``: nodes of backward passes; ``optimizer``: optimizer steps. ``recompute``: forward passes
    repeated in a backward pass, according to threads and units; not in ``forward``. ``operators``: operators
    of the program's thread outside autograd and the optimizer, including gathers. Each is a set of disjoint
    intervals, except ``forward``, ``recompute`` and ``backward``, which may be nested.
    """

    forward: Intervals = EMPTY
    recompute: Intervals = EMPTY
    backward: Intervals = EMPTY
    ahead_forward: Intervals = EMPTY
    ahead_backward: Intervals = EMPTY
    autograd: Intervals = EMPTY
    optimizer: Intervals = EMPTY
    operators: Intervals = EMPTY

    @property
    def in_backward(self) -> Intervals:
        """Intervals in which a backward pass certainly ran, according to the program or autograd."""
        return union(self.backward, self.autograd)

    def on(self, clock: RankClock) -> "PhaseEvidence":
        """Return the same evidence on the common clock."""
        return PhaseEvidence(
            forward=clock.common(self.forward),
            recompute=clock.common(self.recompute),
            backward=clock.common(self.backward),
            ahead_forward=clock.common(self.ahead_forward),
            ahead_backward=clock.common(self.ahead_backward),
            # a drift may close gaps of a nanosecond
            autograd=union(clock.common(self.autograd)),
            optimizer=union(clock.common(self.optimizer)),
            operators=union(clock.common(self.operators)),
        )


def collect_phase_evidence(
    events: pa.Table | EventColumns, marks: Columns, clock: RankClock = _LOCAL
) -> PhaseEvidence:
    """Collect the phase evidence from the tables of one rank; each distinct name is tested once."""
    view = EventView(events, ("user_annotation", "cpu_op"))
    named, operators = view.match_categories("user_annotation"), view.match_categories("cpu_op")
    marked = _read_marked_phases(marks, int(view.spans[:, 0].min(initial=np.iinfo(np.int64).max)))
    program = find_program_thread(view)
    nodes = view.match_names(operators | named, _AUTOGRAD.fullmatch)
    backwards, forwards, optimizers = (
        view.match_names(named, pattern.fullmatch) for pattern in (_BACKWARD, _FORWARD, _OPTIMIZER)
    )
    # Backward threads, without the program's own thread, on which CPU ranks run backward passes, too.
    rows = np.flatnonzero(forwards)
    first = view.thread[rows[np.argsort(view.spans[rows, 0], kind="stable")][:1]]
    threads = np.setdiff1d(view.thread[nodes | backwards], [program, *first.tolist()])
    on_autograd_thread = np.isin(view.thread, threads)
    repeated = forwards & on_autograd_thread
    repeated |= _find_partial_forwards(view, forwards & ~repeated, nodes | backwards, optimizers)
    autograd = union(view.spans[nodes | (operators & on_autograd_thread)])
    optimizer = union(view.spans[optimizers], marked[Phase.OPTIMIZER])
    in_program = view.match_names(operators & (view.thread == program), _OPERATOR.fullmatch)
    evidence = PhaseEvidence(
        forward=_merge_rows(view.spans[forwards & ~repeated], marked[Phase.FORWARD]),
        recompute=_merge_rows(view.spans[repeated]),
        backward=_merge_rows(view.spans[backwards], marked[Phase.BACKWARD]),
        ahead_forward=view.spans[view.match_names(named, _FORWARD_AHEAD.fullmatch)],
        ahead_backward=view.spans[view.match_names(named, _BACKWARD_AHEAD.fullmatch)],
        autograd=autograd,
        optimizer=optimizer,
        operators=subtract(view.spans[in_program], union(autograd, optimizer)),
    )
    return evidence if clock is _LOCAL else evidence.on(clock)


def _find_partial_forwards(view: EventView, forwards: Mask, backwards: Mask, optimizers: Mask) -> Mask:
    """Mark forward passes after a backward pass that visit only some of the previous forward's units.

    A run of forward passes ends where a backward pass or an optimizer step starts. After an optimizer step,
    there is nothing to recompute.
    """
    is_partial = np.zeros(len(forwards), dtype=np.bool_)
    rows = np.flatnonzero(forwards)
    rows = rows[np.argsort(view.spans[rows, 0], kind="stable")]
    begins = view.spans[rows, 0]
    run = np.searchsorted(np.sort(view.spans[backwards | optimizers, 0]), begins)
    step = np.searchsorted(np.sort(view.spans[optimizers, 0]), begins)
    names, code = view.coded(rows)
    has_unit = np.array([_UNIT_FORWARD.fullmatch(name) is not None for name in names], dtype=np.bool_)
    rows, run, step, code = (column[has_unit[code]] for column in (rows, run, step, code))
    all_units, step_of_units = frozenset[int](), -1
    for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(run)) + 1):
        if not len(part):
            continue
        units = frozenset(code[part].tolist())
        if units < all_units and step[part[0]] == step_of_units:
            is_partial[rows[part]] = True
        else:
            all_units, step_of_units = units, step[part[0]]
    return is_partial


def find_program_thread(view: EventView) -> int:
    """Return the training-loop thread: the one with step marks, else with the optimizer or most operators.

    A recomputing autograd thread runs more operators than the program's thread. So the busiest thread without
    backward nodes is used, unless such threads hardly run any operators (on a CPU, one thread may run
    everything).
    """
    named, operators = view.match_categories("user_annotation"), view.match_categories("cpu_op")
    for pattern in (_STEP, _OPTIMIZER, _LOADER):
        matches = view.match_names(named, pattern.fullmatch)
        if matches.any():
            return find_busiest(view.thread[matches])
    autograd_threads = view.thread[view.match_names(operators, _NODE.fullmatch)]
    program_operators = operators & ~np.isin(view.thread, autograd_threads)
    if program_operators.sum() >= _PROGRAM_RATIO * operators.sum():
        operators = program_operators
    return find_busiest(view.thread[operators])


def _read_marked_phases(marks: Columns, begin_ns: int) -> dict[Phase, Intervals]:
    """Return the spans from each phase mark to the next; a recomputation is part of its backward pass.

    Only marks since the first event count: a recorder may mark phases only in its memory window, which does
    not help with the timed steps.
    """
    rows = marks.at(marks.texts("kind").equals("phase") & (marks.ints("time_ns") >= begin_ns))
    rows = rows.at(np.argsort(rows.ints("time_ns"), kind="stable"))
    times, names = rows.ints("time_ns"), rows.texts("name")
    spans = np.column_stack((times[:-1], times[1:])) if len(times) > 1 else EMPTY
    names = names.with_text(names.equals(Phase.RECOMPUTE.value), Phase.BACKWARD.value)
    return {phase: spans[names.equals(phase.value)[: len(spans)]] for phase in Phase}


def _merge_rows(*sets: Intervals) -> Int64s:
    """Return all rows sorted by start, without merging nested rows."""
    rows = np.concatenate(sets)
    return rows[np.argsort(rows[:, 0], kind="stable")]


def locate_instants(
    evidence: PhaseEvidence, times_ns: Int64s, steps: Intervals
) -> tuple[list[str], list[str], Int64s]:
    """Return the phase at each moment, the method that found it, and the micro-batch, -1 if unknown.

    ``steps``: each moment's step, by host marks.
    """
    phases, methods = _find_phases(evidence, times_ns, steps[:, 0])
    return phases, methods, _count_micro_batches(evidence, times_ns, steps)


def _find_phases(evidence: PhaseEvidence, times: Int64s, step_begins: Int64s) -> tuple[list[str], list[str]]:
    """Return the phase from the innermost range, else from autograd, else from what ran last in the step."""
    backward = _find_innermost(evidence.backward, times)
    recomputing = _find_innermost(evidence.recompute, times)
    forward = np.maximum(_find_innermost(evidence.forward, times), recomputing)
    in_forward, in_backward = forward != _NO_RANGE, backward != _NO_RANGE
    node = _is_inside(evidence.autograd, times)
    since = np.maximum(
        _find_last_begin(evidence.operators, times), _find_last_begin(evidence.optimizer, times)
    )
    behind = _find_last_begin(evidence.autograd, times) > np.maximum(step_begins, since)
    conditions = [
        _is_inside(evidence.optimizer, times),
        _is_inside(evidence.ahead_backward, times),
        in_forward & (node | (recomputing == forward) | in_backward) & ~(backward > forward),
        _is_inside(evidence.ahead_forward, times),
        in_backward,
        in_forward,
        node,
        np.full(len(times), not len(evidence.autograd)),
        behind,
        np.ones(len(times), np.bool_),
    ]
    first = np.argmax(conditions, axis=0).tolist()
    return [_PHASES_AND_METHODS[place][0] for place in first], [
        _PHASES_AND_METHODS[place][1] for place in first
    ]


def _find_last_begin(spans: Intervals, times: Int64s) -> Int64s:
    """Return the latest start among these spans at each moment; -1 before all spans."""
    last = np.searchsorted(spans[:, 0], times, side="right")
    return np.concatenate(([-1], spans[:, 0]))[last]


def _is_inside(spans: Intervals, times: Int64s) -> Mask:
    """Mark the moments that lie in one of these spans (sorted by start)."""
    return _find_innermost(spans, times) != _NO_RANGE


def _find_innermost(spans: Intervals, times: Int64s) -> Int64s:
    """Return the start of the innermost span that contains each moment, else ``_NO_RANGE``."""
    innermost = np.full(len(times), _NO_RANGE, dtype=np.int64)
    max_end = np.maximum.accumulate(spans[:, 1])
    row = np.searchsorted(spans[:, 0], times, side="right") - 1
    pending = np.flatnonzero(row >= 0)
    for _ in range(_MAX_NESTING):
        # a moment after the ends of this and all earlier spans is in none of them
        pending = pending[(row[pending] >= 0) & (times[pending] < max_end[row[pending]])]
        if not len(pending):
            break
        contains = times[pending] < spans[row[pending], 1]
        innermost[pending[contains]] = spans[row[pending[contains]], 0]
        pending = pending[~contains]
        row[pending] -= 1
    return innermost


def _count_micro_batches(evidence: PhaseEvidence, times_ns: Int64s, steps: Intervals) -> Int64s:
    """Return the micro-batch at each moment: the number of forward passes since the step's first backward
    pass.

    Work after a step's last backward pass is not another micro-batch, because it has no backward pass.
    """
    # The starts of forward passes that follow a backward pass, and vice versa.
    backward = evidence.in_backward
    forward = evidence.forward if len(evidence.forward) else evidence.operators
    if len(evidence.forward) and len(backward):  # without those that start within a backward
        position = np.searchsorted(backward[:, 0], forward[:, 0], side="right") - 1
        forward = forward[(position < 0) | (forward[:, 0] >= backward[np.maximum(position, 0), 1])]
    times = np.concatenate((forward[:, 0], backward[:, 0]))
    is_forward = np.arange(len(times)) < len(forward)
    order = np.argsort(times, kind="stable")
    times, is_forward = times[order], is_forward[order]
    changes = np.flatnonzero(np.diff(is_forward.astype(np.int8))) + 1
    forwards, backwards = times[changes[is_forward[changes]]], times[changes[~is_forward[changes]]]
    first = np.searchsorted(backwards, steps[:, 0], side="left")
    in_step = np.searchsorted(backwards, steps[:, 1], side="left") - first
    if not len(backwards):
        return np.full(len(times_ns), -1, dtype=np.int64)
    forwards_before = np.searchsorted(
        forwards, backwards[np.minimum(first, len(backwards) - 1)], side="right"
    )
    number = np.clip(
        np.searchsorted(forwards, times_ns, side="right") - forwards_before, 0, np.maximum(in_step - 1, 0)
    )
    return np.where(in_step > 0, number, -1).astype(np.int64)
