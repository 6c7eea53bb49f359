"""The window that is measured on a rank: its steps, or all of its trace as one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Intervals
from zprof.analysis.time.activity.events import Activity
from zprof.analysis.time.activity.launches import assigned
from zprof.analysis.time.activity.steps import StepWindows, device_windows, step_windows, whole

WHOLE_TRACE = "whole trace"
RECORDER = "recorder"
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """``steps`` are what the ledger splits, ``host_steps`` when what belongs to them was launched.

    ``program``: the steps of the program by its host's marks, also where the window is one stretch over
    several of them; None where nothing marks them.
    ``unknown``: steps left out of both, for the trace ends before what they launched.
    """

    steps: StepWindows
    host_steps: StepWindows
    source: str
    program: StepWindows | None = None
    unknown: tuple[int, ...] = ()


def step_windows_of(marks: pd.DataFrame, steps: Sequence[int], activity: Activity) -> Windows:
    """The steps by their marks; on a device moved behind the work of each."""
    source = _source(marks)
    if activity.on_device and source == WHOLE_TRACE:
        return trace_windows_of(activity)
    host = step_windows(marks, steps)
    if not activity.on_device:
        program = None if source == WHOLE_TRACE else host
        return Windows(steps=host, host_steps=host, source=source, program=program)
    moved = device_windows(host, *assigned(activity, host).T)
    unknown = np.isin(host.number, host.step_at(activity.lost_launches))
    return Windows(
        steps=moved.where(~unknown),
        host_steps=host.where(~unknown),
        source=source,
        program=host.where(~unknown),
        unknown=tuple(host.number[unknown].tolist()),
    )


def trace_windows_of(activity: Activity) -> Windows:
    """One step over all work of the device, or from the first to the last event of a CPU rank."""
    ran = activity.work if activity.on_device else activity.coverage
    steps = _over(ran)
    return Windows(steps=steps, host_steps=_over(activity.coverage), source=WHOLE_TRACE)


def program_steps_of(marks: pd.DataFrame, steps: Sequence[int]) -> StepWindows | None:
    """Return the steps that the program marked, or None where it marked none."""
    return None if _source(marks) == WHOLE_TRACE else step_windows(marks, steps)


def _over(spans: Intervals) -> StepWindows:
    if not len(spans):
        return StepWindows(number=_NONE, begin_ns=_NONE, end_ns=_NONE)
    return whole(0, int(spans[:, 0].min()), int(spans[:, 1].max()))


def _source(marks: pd.DataFrame) -> str:
    names = marks.loc[marks["kind"] == "step_begin", "name"]
    return str(names.iloc[0]) or RECORDER if len(names) else RECORDER
