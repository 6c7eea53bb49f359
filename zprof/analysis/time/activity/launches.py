"""When the host launched the work of a device, and to which step work belongs whose launch is not seen."""

import re
from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals
from zprof.analysis.time.activity.events import Activity
from zprof.analysis.time.activity.steps import StepWindows
from zprof.analysis.time.activity.view import EventView, Mask

#: Calls that launch kernels; copies and fills of no bytes leave no work.
_LAUNCH = re.compile(r"(cuda|hip|cu)\w*Launch", re.ASCII)
#: In place of a launch that the trace does not have; before all steps, as a time.
UNKNOWN_NS = -(1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """``call_ns``: the launch of each row of work, ``UNKNOWN_NS`` where it is not in the trace.

    ``known``: launch and end of the others; ``unknown`` and ``unknown_stream``: when and where those ran.
    ``lost_ns``: launches behind the last one whose work is in the trace.
    """

    call_ns: Int64s
    known: Intervals
    unknown: Intervals
    unknown_stream: Int64s
    lost_ns: Int64s


def find_launches(view: EventView, work: Mask, calls: Mask) -> Launches:
    """Find the host's call of each row of ``work`` by its correlation."""
    calls = calls & (view.correlation > 0)
    call_ns = _call_ns(view, work, calls)
    seen = call_ns != UNKNOWN_NS
    spans, streams = view.spans[work], view.stream[work]
    return Launches(
        call_ns=call_ns,
        known=intervals(call_ns[seen], spans[seen, 1]),
        unknown=spans[~seen],
        unknown_stream=streams[~seen],
        lost_ns=_lost_ns(view, work, view.name_is(calls, lambda name: _LAUNCH.match(name) is not None)),
    )


def _lost_ns(view: EventView, work: Mask, launches: Mask) -> Int64s:
    """Return the launches of kernels that the recording, or its file, ended before.

    In the middle of a trace a launch may have no kernel by nature: it was captured into a graph.  And calls
    that never have one, as those of host functions, say nothing.
    """
    rows = np.flatnonzero(launches)
    has_work = np.isin(view.correlation[rows], view.correlation[work])
    if not has_work.any():
        return np.empty(0, dtype=np.int64)
    names = np.array(view.names(launches), dtype=object)
    start = view.spans[rows, 0]
    behind = start > start[has_work].max()
    return np.sort(start[behind & np.isin(names, np.unique(names[has_work]))])


def assigned(activity: Activity, host: StepWindows) -> Intervals:
    """Launch and end of all work of which it can be said in which step it was launched.

    By the host's call, else by the device's own range of a step on that stream; else, where it ran before
    all work of known launch, it was launched before the recording began.  Of the rest nothing is said.
    """
    steps = _by_device_steps(activity, host)
    rest = activity.unlaunched[steps == UNKNOWN_NS]
    placed = intervals(steps[steps != UNKNOWN_NS], activity.unlaunched[steps != UNKNOWN_NS, 1])
    known = np.concatenate((activity.launched, placed))
    return np.concatenate((known, _before_all(rest, activity)))


def _call_ns(view: EventView, work: Mask, calls: Mask) -> Int64s:
    wanted = view.correlation[work]
    order = np.argsort(view.correlation[calls], kind="stable")
    ids, starts = view.correlation[calls][order], view.spans[calls, 0][order]
    if not len(ids):
        return np.full(len(wanted), UNKNOWN_NS, dtype=np.int64)
    index = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[index] == wanted, starts[index], UNKNOWN_NS).astype(np.int64)


def _by_device_steps(activity: Activity, host: StepWindows) -> Int64s:
    """The begin of the step in whose range on its stream each row ran, where there is one."""
    found = np.full(len(activity.unlaunched), UNKNOWN_NS, dtype=np.int64)
    known = np.isin(activity.steps.number, host.number)
    for stream in np.unique(activity.steps.stream[known]).tolist():
        ranges = np.flatnonzero(known & (activity.steps.stream == stream))
        ranges = ranges[np.argsort(activity.steps.spans[ranges, 0], kind="stable")]
        rows = np.flatnonzero(activity.unlaunched_stream == stream)
        index = np.searchsorted(activity.steps.spans[ranges, 0], activity.unlaunched[rows, 0], "right") - 1
        inside = index >= 0
        inside &= activity.unlaunched[rows, 0] < activity.steps.spans[ranges[np.maximum(index, 0)], 1]
        found[rows[inside]] = _begin_of(host, activity.steps.number[ranges[index[inside]]])
    return found


def _begin_of(host: StepWindows, numbers: Int64s) -> Int64s:
    order = np.argsort(host.number, kind="stable")
    begins: Int64s = host.begin_ns[order[np.searchsorted(host.number[order], numbers)]]
    return begins


def _before_all(rest: Intervals, activity: Activity) -> Intervals:
    """Rows of ``rest`` that began before the first work of known launch was done."""
    if not len(activity.launched) or not len(rest):
        return EMPTY
    early = rest[rest[:, 0] < activity.launched[:, 1].min()]
    return intervals(np.full(len(early), UNKNOWN_NS), early[:, 1])
