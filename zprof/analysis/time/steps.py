"""Find the steps of the time window on one rank: host marks, moved to the end of the work each step launched.

Work belongs to the step that launched it, according to the host call, or else to the device's own step range
on that stream.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Mask
from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals
from zprof.analysis.time.activity import UNKNOWN_NS, RankActivity
from zprof.analysis.time.clocks import RankClock

WHOLE_TRACE = "whole trace"
RECORDER = "recorder"
_NONE = np.empty(0, dtype=np.int64)


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
        """Return the step that contains each instant; -1 outside of all steps."""
        if not len(self):
            return np.full(len(times_ns), -1, dtype=np.int64)
        index = np.searchsorted(self.begin_ns, times_ns, side="right") - 1
        inside = (index >= 0) & (times_ns < self.end_ns[np.maximum(index, 0)])
        return np.where(inside, self.number[np.maximum(index, 0)], -1).astype(np.int64)


def read_step_windows(marks: Columns, steps: Sequence[int]) -> StepWindows:
    """Return the ``steps`` that have both marks and a positive length."""
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

    The host runs ahead of its device, so the host's marks alone would count the last kernels of a step in the
    next one.

    Args:
        host: Steps by the host's marks.
        launched_ns: Launch time of each kernel and copy.
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
    """What the training loop's thread did in a step: time on a processor, and ready but without one.

    ``queued_ns`` is 0 where the system does not tell it; that time then counts as blocked.
    """

    cpu_ns: int
    queued_ns: int


def read_thread_times(marks: Columns) -> dict[int, ThreadTimes]:
    """Return the times of the training loop's thread in each step that has them."""
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

    ``program``: the steps of the program by the host's marks, even if the window is a single interval over
    several of them; None if they are not marked. ``unknown``: steps left out of both because the trace ends
    before the work that they launched.
    """

    steps: StepWindows
    host_steps: StepWindows
    source: str
    program: StepWindows | None = None
    unknown: tuple[int, ...] = ()


def find_step_windows(marks: Columns, steps: Sequence[int], activity: RankActivity) -> RankSteps:
    """Return the steps by their marks; on a device, boundaries move to the end of the work of each step."""
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
    """Return a single step over all work of the device, or from first to last event of a CPU rank."""
    active = activity.work if activity.on_device else activity.coverage
    steps = _span_step(active)
    return RankSteps(steps=steps, host_steps=_span_step(activity.coverage), source=WHOLE_TRACE)


def find_program_steps(marks: Columns, steps: Sequence[int]) -> StepWindows | None:
    """Return the steps that the program marked, or None if it marked none."""
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

    Work is assigned by its host call, or else by the device's own step range on that stream. Remaining work
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
