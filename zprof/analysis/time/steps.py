"""Find the steps of the time window on one rank: the host's marks, moved behind the work each step launched.

Work belongs to the step that launched it: by the host's call, else by the device's own range of a step on
that stream.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals
from zprof.analysis.time.activity import Activity
from zprof.analysis.time.clocks.rank_clock import RankClock
from zprof.analysis.time.event_roles import EventView, Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindows:
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

    def where(self, mask: Mask) -> "StepWindows":
        """Return the steps selected by a mask."""
        return StepWindows(number=self.number[mask], begin_ns=self.begin_ns[mask], end_ns=self.end_ns[mask])

    def only(self, numbers: Sequence[int]) -> "StepWindows":
        """Return the steps with these numbers."""
        return self.where(np.isin(self.number, numbers))

    def step_at(self, times_ns: Int64s) -> Int64s:
        """Return the step that contains each instant; -1 outside of all steps."""
        if not len(self):
            return np.full(len(times_ns), -1, dtype=np.int64)
        index = np.searchsorted(self.begin_ns, times_ns, side="right") - 1
        inside = (index >= 0) & (times_ns < self.end_ns[np.maximum(index, 0)])
        return np.where(inside, self.number[np.maximum(index, 0)], -1).astype(np.int64)


def read_step_windows(marks: pd.DataFrame, steps: Sequence[int]) -> StepWindows:
    """Return those of ``steps`` that have both marks and a positive length."""
    begins, ends = read_mark_times(marks, "step_begin"), read_mark_times(marks, "step_end")
    both = sorted(
        (begins[step], ends[step], step)
        for step in set(steps) & set(begins) & set(ends)
        if ends[step] > begins[step]
    )
    columns = np.array(both, dtype=np.int64).reshape(-1, 3)
    return StepWindows(number=columns[:, 2], begin_ns=columns[:, 0], end_ns=columns[:, 1])


def make_single_step(number: int, begin_ns: int, end_ns: int) -> StepWindows:
    """Return one stretch as a step."""
    begin, end = np.array([begin_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64)
    return StepWindows(number=np.array([number], dtype=np.int64), begin_ns=begin, end_ns=end)


def move_behind_work(host: StepWindows, launched_ns: Int64s, ended_ns: Int64s) -> StepWindows:
    """Return the steps as a device ran them: each boundary moves behind the work launched before it.

    The host runs ahead of its device, so the host's marks alone would cut off a step's last kernels and count
    them in the next.

    Args:
        host: Steps by the host's marks.
        launched_ns: When the host launched each kernel and copy.
        ended_ns: When each of them ended.
    """
    order = np.argsort(launched_ns, kind="stable")
    launched = launched_ns[order]
    ended = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ended_ns[order])))

    def moved(boundary: Int64s) -> Int64s:
        return np.maximum(boundary, ended[np.searchsorted(launched, boundary, side="left")])

    return replace(host, begin_ns=moved(host.begin_ns), end_ns=moved(host.end_ns))


def read_mark_times(marks: pd.DataFrame, kind: str) -> dict[int, int]:
    """Return the times of one kind of mark, by its number."""
    chosen = marks["kind"].astype(object).to_numpy() == kind
    numbers, times = (marks[name].to_numpy()[chosen].tolist() for name in ("number", "time_ns"))
    return dict(zip(numbers, times, strict=True))


WHOLE_TRACE = "whole trace"
RECORDER = "recorder"
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Steps of a rank; ``steps`` are what the ledger splits, ``host_steps`` when their work was launched.

    ``program``: the steps of the program by its host's marks, even if the window is one stretch over several
    of them; None if nothing marks them. ``unknown``: steps left out of both because the trace ends before the
    work that they launched.
    """

    steps: StepWindows
    host_steps: StepWindows
    source: str
    program: StepWindows | None = None
    unknown: tuple[int, ...] = ()


def find_step_windows(marks: pd.DataFrame, steps: Sequence[int], activity: Activity) -> Windows:
    """Return the steps by their marks; on a device they are moved behind the work of each step."""
    source = _read_source(marks)
    if activity.on_device and source == WHOLE_TRACE:
        return find_trace_windows(activity)
    host = read_step_windows(marks, steps)
    if not activity.on_device:
        program = None if source == WHOLE_TRACE else host
        return Windows(steps=host, host_steps=host, source=source, program=program)
    moved = move_behind_work(host, *assign_work_to_steps(activity, host).T)
    unknown = np.isin(host.number, host.step_at(activity.lost_launches))
    return Windows(
        steps=moved.where(~unknown),
        host_steps=host.where(~unknown),
        source=source,
        program=host.where(~unknown),
        unknown=tuple(host.number[unknown].tolist()),
    )


def find_trace_windows(activity: Activity) -> Windows:
    """Return one step over all work of the device, or from the first to the last event of a CPU rank."""
    ran = activity.work if activity.on_device else activity.coverage
    steps = _span_step(ran)
    return Windows(steps=steps, host_steps=_span_step(activity.coverage), source=WHOLE_TRACE)


def find_program_steps(marks: pd.DataFrame, steps: Sequence[int]) -> StepWindows | None:
    """Return the steps that the program marked, or None if it marked none."""
    return None if _read_source(marks) == WHOLE_TRACE else read_step_windows(marks, steps)


def _span_step(spans: Intervals) -> StepWindows:
    if not len(spans):
        return StepWindows(number=_NONE, begin_ns=_NONE, end_ns=_NONE)
    return make_single_step(0, int(spans[:, 0].min()), int(spans[:, 1].max()))


def _read_source(marks: pd.DataFrame) -> str:
    names = marks.loc[marks["kind"] == "step_begin", "name"]
    return str(names.iloc[0]) or RECORDER if len(names) else RECORDER


#: Calls that launch kernels; zero-byte copies and fills leave no work.
_LAUNCH = re.compile(r"(cuda|hip|cu)\w*Launch", re.ASCII)
#: Placeholder for a launch that is not in the trace; as a time it lies before all steps.
UNKNOWN_NS = -(1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Launch times of the work of a device.

    ``call_ns``: launch of each row of work, ``UNKNOWN_NS`` if it is not in the trace. ``known``: launch and
    end of work with a known launch. ``unknown`` and ``unknown_stream``: when and on which stream the other
    work ran. ``lost_ns``: launches after the last one whose work is in the trace.
    """

    call_ns: Int64s
    known: Intervals
    unknown: Intervals
    unknown_stream: Int64s
    lost_ns: Int64s


def find_launches(view: EventView, work: Mask, calls: Mask) -> Launches:
    """Find the host's call of each row of ``work`` by its correlation id."""
    calls = calls & (view.correlation > 0)
    call_ns = _find_call_times(view, work, calls)
    seen = call_ns != UNKNOWN_NS
    spans, streams = view.spans[work], view.stream[work]
    return Launches(
        call_ns=call_ns,
        known=intervals(call_ns[seen], spans[seen, 1]),
        unknown=spans[~seen],
        unknown_stream=streams[~seen],
        lost_ns=_find_lost_launches(
            view, work, view.name_is(calls, lambda name: _LAUNCH.match(name) is not None)
        ),
    )


def _find_lost_launches(view: EventView, work: Mask, launches: Mask) -> Int64s:
    """Return the kernel launches whose kernels are missing because the recording, or its file, ended first.

    A launch in the middle of a trace may have no kernel because it was captured into a graph. Calls that
    never have a kernel, such as those of host functions, are no evidence.
    """
    rows = np.flatnonzero(launches)
    has_work = np.isin(view.correlation[rows], view.correlation[work])
    if not has_work.any():
        return np.empty(0, dtype=np.int64)
    names = np.array(view.names(launches), dtype=object)
    start = view.spans[rows, 0]
    behind = start > start[has_work].max()
    return np.sort(start[behind & np.isin(names, np.unique(names[has_work]))])


def assign_work_to_steps(activity: Activity, host: StepWindows) -> Intervals:
    """Return launch and end of all work that can be assigned to a step.

    Work is assigned by the host's call, else by the device's own range of a step on that stream. Remaining
    work that ran before all work with a known launch was launched before the recording started. Other work is
    left out.
    """
    steps = _find_device_steps(activity, host)
    rest = activity.unlaunched[steps == UNKNOWN_NS]
    placed = intervals(steps[steps != UNKNOWN_NS], activity.unlaunched[steps != UNKNOWN_NS, 1])
    known = np.concatenate((activity.launched, placed))
    return np.concatenate((known, _find_earlier_work(rest, activity)))


def _find_call_times(view: EventView, work: Mask, calls: Mask) -> Int64s:
    wanted = view.correlation[work]
    order = np.argsort(view.correlation[calls], kind="stable")
    ids, starts = view.correlation[calls][order], view.spans[calls, 0][order]
    if not len(ids):
        return np.full(len(wanted), UNKNOWN_NS, dtype=np.int64)
    index = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[index] == wanted, starts[index], UNKNOWN_NS).astype(np.int64)


def _find_device_steps(activity: Activity, host: StepWindows) -> Int64s:
    """Return the start of the step whose range contains each row on its stream, or ``UNKNOWN_NS``."""
    found = np.full(len(activity.unlaunched), UNKNOWN_NS, dtype=np.int64)
    known = np.isin(activity.steps.number, host.number)
    for stream in np.unique(activity.steps.stream[known]).tolist():
        ranges = np.flatnonzero(known & (activity.steps.stream == stream))
        ranges = ranges[np.argsort(activity.steps.spans[ranges, 0], kind="stable")]
        rows = np.flatnonzero(activity.unlaunched_stream == stream)
        index = np.searchsorted(activity.steps.spans[ranges, 0], activity.unlaunched[rows, 0], "right") - 1
        inside = index >= 0
        inside &= activity.unlaunched[rows, 0] < activity.steps.spans[ranges[np.maximum(index, 0)], 1]
        found[rows[inside]] = _step_begins(host, activity.steps.number[ranges[index[inside]]])
    return found


def _step_begins(host: StepWindows, numbers: Int64s) -> Int64s:
    order = np.argsort(host.number, kind="stable")
    begins: Int64s = host.begin_ns[order[np.searchsorted(host.number[order], numbers)]]
    return begins


def _find_earlier_work(rest: Intervals, activity: Activity) -> Intervals:
    """Return the rows of ``rest`` that started before the first work with a known launch had ended."""
    if not len(activity.launched) or not len(rest):
        return EMPTY
    early = rest[rest[:, 0] < activity.launched[:, 1].min()]
    return intervals(np.full(len(early), UNKNOWN_NS), early[:, 1])
