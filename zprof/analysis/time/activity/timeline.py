"""Loads what the time side needs of each rank of a run."""

from dataclasses import dataclass, replace

import pandas as pd

from zprof.analysis.time.activity.events import Activity, read_activity
from zprof.analysis.time.activity.steps import StepWindows, device_windows, mark_times, step_windows
from zprof.analysis.time.clocks.offsets import RankClock
from zprof.model.gaps import Gap
from zprof.model.time import WindowPolicy
from zprof.run.reader import Run

_EVENT_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation")
_TABLES = ("events", "collectives", "mark")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimeline:
    """One rank's time window.

    ``host_steps`` are the steps by the host's marks, to which launches belong; ``steps`` those that the
    ledger splits, on a device moved behind the work of each step.  ``pings``: begin and end of each
    clock ping by its index.
    """

    rank: int
    host: str
    steps: StepWindows
    host_steps: StepWindows
    activity: Activity
    pings: dict[int, tuple[int, int]]

    def on(self, clock: RankClock) -> "RankTimeline":
        """The same on the common clock; pings stay as they were stamped."""
        return replace(
            self,
            steps=self.steps.on(clock),
            host_steps=self.host_steps.on(clock),
            activity=self.activity.on(clock),
        )


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
        timeline = None if absent else _load(run, rank)
        if timeline is None or not len(timeline.steps):
            gaps.extend([_no_window(rank, absent)] if run.manifest.source == "recording" else [])
        else:
            timelines.append(timeline)
            gaps.extend(_missing_steps(run, timeline))
    return timelines, gaps


def load_collectives(run: Run, timelines: list[RankTimeline]) -> pd.DataFrame:
    """The collectives of these ranks in one table with a ``rank`` column."""
    frames = [run.frame(t.rank, "collectives").assign(rank=t.rank) for t in timelines]
    frame = pd.concat(frames, ignore_index=True)
    words = ["kind", "group", "dtype", "method"]
    frame[words] = frame[words].astype(str)
    frame["unit"] = frame["unit"].astype(object)
    return frame[frame["end_ns"] >= frame["start_ns"]].reset_index(drop=True)


def _load(run: Run, rank: int) -> RankTimeline:
    manifest = run.rank_manifests[rank]
    marks = run.frame(rank, "mark")
    begins, ends = mark_times(marks, "ping_begin"), mark_times(marks, "ping_end")
    host_steps = step_windows(marks, manifest.time_steps)
    activity = read_activity(run.table(rank, "events", _EVENT_COLUMNS))
    return RankTimeline(
        rank=rank,
        host=manifest.host,
        steps=device_windows(host_steps, *activity.launched.T) if activity.on_device else host_steps,
        host_steps=host_steps,
        activity=activity,
        pings={n: (begins[n], ends[n]) for n in begins.keys() & ends.keys() if ends[n] >= begins[n]},
    )


def _no_window(rank: int, absent: list[str]) -> Gap:
    return Gap(
        what="time",
        rank=rank,
        reason=f"no time window was recorded (no table {', '.join(absent)})"
        if absent
        else "no step of a time window ended",
        remedy="let the program run into the time window, or make the earlier ones shorter (--memory-steps, "
        "zprof.steps)",
    )


def _missing_steps(run: Run, timeline: RankTimeline) -> list[Gap]:
    wanted = len(run.rank_manifests[timeline.rank].time_steps)
    if len(timeline.steps) == wanted:
        return []
    return [
        Gap(
            what="steps",
            rank=timeline.rank,
            reason=f"{wanted - len(timeline.steps)} of {wanted} steps lack their begin or end",
            remedy="record again",
        )
    ]
