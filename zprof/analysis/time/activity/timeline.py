"""Loads what the time side needs of each rank of a run."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pyarrow as pa

from zprof.analysis.intervals import measure, subtract
from zprof.analysis.time.activity.device import device_activity, feeds_a_device, has_device_work
from zprof.analysis.time.activity.events import Activity
from zprof.analysis.time.activity.host import host_activity
from zprof.analysis.time.activity.missing import (
    missing_rank,
    missing_steps,
    no_work,
    unequal_steps,
    unknown_steps,
)
from zprof.analysis.time.activity.steps import StepWindows, mark_times
from zprof.analysis.time.activity.windows import Windows, program_steps_of, step_windows_of, trace_windows_of
from zprof.analysis.time.clocks.offsets import RankClock
from zprof.model.gaps import Gap
from zprof.model.time import WindowPolicy
from zprof.run.reader import Run
from zprof.run.table_reader import as_frame

_EVENT_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation")
_TABLES = ("events", "collectives", "mark")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimeline:
    """One rank's time window.

    ``host_steps`` are the steps by the host's marks, to which launches belong; ``steps`` those that the
    ledger splits, on a device moved behind the work of each step.  ``source``: what marked them.
    ``program_steps``: those of the program, also where the window is one stretch; None where none is marked.
    ``unknown_steps``: those left out because the trace ends before what they launched.
    ``pings``: begin and end of each clock ping by its index.
    """

    rank: int
    host: str
    steps: StepWindows
    host_steps: StepWindows
    activity: Activity
    pings: dict[int, tuple[int, int]]
    source: str = ""
    program_steps: StepWindows | None = None
    unknown_steps: tuple[int, ...] = ()

    def on(self, clock: RankClock) -> "RankTimeline":
        """The same on the common clock; pings stay as they were stamped."""
        return replace(
            self,
            steps=self.steps.on(clock),
            host_steps=self.host_steps.on(clock),
            program_steps=self.program_steps.on(clock) if self.program_steps is not None else None,
            activity=self.activity.on(clock),
        )

    @property
    def holds_several_steps(self) -> bool:
        """Whether the window is one stretch over steps that the program marked."""
        steps = self.program_steps
        return steps is not None and not np.array_equal(steps.begin_ns, self.host_steps.begin_ns)

    @property
    def outside_ns(self) -> int:
        """How long the device worked outside of the window."""
        return measure(subtract(self.activity.work, self.steps.spans))


def load_timelines(
    run: Run, policy: WindowPolicy = WindowPolicy.STEP
) -> tuple[list[RankTimeline], list[Gap]]:
    """The ranks that recorded a time window, cut to ``policy``, and gaps for those that did not.

    A snapshot has no times, and nothing that its owner can do would add them: no gap.
    """
    timelines: list[RankTimeline] = []
    gaps: list[Gap] = []
    for rank in run.ranks:
        absent = [name for name in _TABLES if not run.has_table(rank, name)]
        timeline = None if absent else _load(run, rank, policy)
        if isinstance(timeline, Gap):
            gaps.append(timeline)
            continue
        unknown = timeline.unknown_steps if timeline is not None else ()
        gaps.extend(unknown_steps(rank, unknown))
        if timeline is not None and len(timeline.steps):
            timelines.append(timeline)
            gaps.extend(missing_steps(run, rank, len(timeline.steps) + len(unknown), policy))
        elif not unknown:
            gaps.extend(missing_rank(run, rank, absent))
    gaps.extend(unequal_steps({t.rank: t.steps.number.tolist() for t in timelines}))
    return timelines, gaps


def load_collectives(run: Run, timelines: list[RankTimeline]) -> pd.DataFrame:
    """The collectives of these ranks in one table with a ``rank`` column."""
    frame = as_frame(pa.concat_tables(_collectives(run, t.rank) for t in timelines).unify_dictionaries())
    # as objects: numpy's own strings would give each row the room of the longest group
    words = ["kind", "group", "dtype", "method", "unit"]
    frame[words] = frame[words].astype(object)
    return frame[frame["end_ns"] >= frame["start_ns"]].reset_index(drop=True)


def _collectives(run: Run, rank: int) -> pa.Table:
    table = run.table(rank, "collectives")
    ranks = pa.array(np.full(table.num_rows, rank, dtype=np.int64))
    return table.append_column(pa.field("rank", pa.int64(), nullable=False), ranks)


def _load(run: Run, rank: int, policy: WindowPolicy) -> RankTimeline | Gap:
    marks = run.frame(rank, "mark")
    events = run.table(rank, "events", _EVENT_COLUMNS)
    activity = _activity(run, rank, events)
    if activity is None:
        return no_work(rank)
    windows = _windows(run, rank, policy, marks, activity)
    begins, ends = mark_times(marks, "ping_begin"), mark_times(marks, "ping_end")
    return RankTimeline(
        rank=rank,
        host=run.rank_manifests[rank].host,
        steps=windows.steps,
        host_steps=windows.host_steps,
        activity=activity,
        pings={n: (begins[n], ends[n]) for n in begins.keys() & ends.keys() if ends[n] >= begins[n]},
        source=windows.source,
        program_steps=windows.program,
        unknown_steps=windows.unknown,
    )


def _activity(run: Run, rank: int, events: pa.Table) -> Activity | None:
    """What the rank did; None where it has a device of which the trace shows nothing."""
    if has_device_work(events):
        return device_activity(events, run.table(rank, "collectives", ("start_ns", "end_ns", "stream")))
    return None if feeds_a_device(events) else host_activity(events)


def _windows(run: Run, rank: int, policy: WindowPolicy, marks: pd.DataFrame, activity: Activity) -> Windows:
    steps = run.rank_manifests[rank].time_steps
    if policy is WindowPolicy.TRACE:
        return replace(trace_windows_of(activity), program=program_steps_of(marks, steps))
    return step_windows_of(marks, steps, activity)
