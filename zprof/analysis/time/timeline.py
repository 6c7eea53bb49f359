"""Load what the time side needs of each rank of a run, and report what the recording lacks as gaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pyarrow as pa

from zprof.analysis.intervals import measure, subtract
from zprof.analysis.time.activity import Activity
from zprof.analysis.time.activity_from_events import (
    has_device_work,
    launches_device_work,
    read_device_activity,
    read_host_activity,
)
from zprof.analysis.time.clocks.rank_clock import RankClock
from zprof.analysis.time.steps import (
    StepWindows,
    Windows,
    find_program_steps,
    find_step_windows,
    find_trace_windows,
    read_mark_times,
)
from zprof.model.gaps import Gap, GapKind
from zprof.model.time import WindowPolicy
from zprof.run.reader import Run
from zprof.run.table_reader import as_frame

_EVENT_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation")
_TABLES = ("events", "collectives", "mark")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimeline:
    """Time window of one rank.

    ``host_steps`` are the steps by the host's marks, to which launches belong; ``steps`` are those that the
    ledger splits, on a device moved behind the work of each step. ``source``: what marked them.
    ``program_steps``: those of the program, even if the window is one stretch; None if none is marked.
    ``unknown_steps``: steps left out because the trace ends before the work that they launched. ``pings``:
    start and end of each clock ping by its index.
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
        """Return the same timeline on the common clock; pings keep their timestamps."""
        return replace(
            self,
            steps=self.steps.on(clock),
            host_steps=self.host_steps.on(clock),
            program_steps=self.program_steps.on(clock) if self.program_steps is not None else None,
            activity=self.activity.on(clock),
        )

    @property
    def holds_several_steps(self) -> bool:
        """Return whether the window is one stretch over steps that the program marked."""
        steps = self.program_steps
        return steps is not None and not np.array_equal(steps.begin_ns, self.host_steps.begin_ns)

    @property
    def outside_ns(self) -> int:
        """Device work outside of the window, in ns."""
        return measure(subtract(self.activity.work, self.steps.spans))


def load_timelines(
    run: Run, policy: WindowPolicy = WindowPolicy.STEP
) -> tuple[list[RankTimeline], list[Gap]]:
    """Load the ranks that recorded a time window, as ``policy`` selects it, and gaps for the other ranks.

    A snapshot has no times, and its owner cannot add them, so it gets no gap.
    """
    timelines: list[RankTimeline] = []
    gaps: list[Gap] = []
    for rank in run.ranks:
        absent = [name for name in _TABLES if not run.has_table(rank, name)]
        timeline = None if absent else _load_rank(run, rank, policy)
        if isinstance(timeline, Gap):
            gaps.append(timeline)
            continue
        unknown = timeline.unknown_steps if timeline is not None else ()
        gaps.extend(unknown_steps_gaps(rank, unknown))
        if timeline is not None and len(timeline.steps):
            timelines.append(timeline)
            gaps.extend(missing_steps_gaps(run, rank, len(timeline.steps) + len(unknown), policy))
        elif not unknown:
            gaps.extend(missing_rank_gaps(run, rank, absent))
    gaps.extend(unequal_steps_gaps({t.rank: t.steps.number.tolist() for t in timelines}))
    return timelines, gaps


def load_collectives(run: Run, timelines: list[RankTimeline]) -> pd.DataFrame:
    """Return the collectives of these ranks in one table with a ``rank`` column."""
    frame = as_frame(pa.concat_tables(_read_collectives(run, t.rank) for t in timelines).unify_dictionaries())
    # as objects: numpy's own strings would give each row the space of the longest group
    words = ["kind", "group", "dtype", "method", "unit"]
    frame[words] = frame[words].astype(object)
    return frame[frame["end_ns"] >= frame["start_ns"]].reset_index(drop=True)


def _read_collectives(run: Run, rank: int) -> pa.Table:
    table = run.table(rank, "collectives")
    ranks = pa.array(np.full(table.num_rows, rank, dtype=np.int64))
    return table.append_column(pa.field("rank", pa.int64(), nullable=False), ranks)


def _load_rank(run: Run, rank: int, policy: WindowPolicy) -> RankTimeline | Gap:
    marks = run.frame(rank, "mark")
    events = run.table(rank, "events", _EVENT_COLUMNS)
    activity = _read_activity(run, rank, events)
    if activity is None:
        return no_work_gap(rank)
    windows = _read_windows(run, rank, policy, marks, activity)
    begins, ends = read_mark_times(marks, "ping_begin"), read_mark_times(marks, "ping_end")
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


def _read_activity(run: Run, rank: int, events: pa.Table) -> Activity | None:
    """Return the activity of a rank; None if it has a device that does not appear in the trace."""
    if has_device_work(events):
        return read_device_activity(events, run.table(rank, "collectives", ("start_ns", "end_ns", "stream")))
    return None if launches_device_work(events) else read_host_activity(events)


def _read_windows(
    run: Run, rank: int, policy: WindowPolicy, marks: pd.DataFrame, activity: Activity
) -> Windows:
    steps = run.rank_manifests[rank].time_steps
    if policy is WindowPolicy.TRACE:
        return replace(find_trace_windows(activity), program=find_program_steps(marks, steps))
    return find_step_windows(marks, steps, activity)


_RECORD_DEVICE = (
    "record with the activity of the device on (ProfilerActivity.CUDA), and check that it may be read"
)


def missing_rank_gaps(run: Run, rank: int, absent: Sequence[str]) -> list[Gap]:
    """Report a rank without a time window; a snapshot never has one, so it gets no gap."""
    if run.manifest.source == "snapshot":
        return []
    reason = (
        f"no time window was recorded (no table {', '.join(absent)})"
        if absent
        else "no step of a time window ended"
    )
    remedy = "let the program run into the time window, or make the earlier ones shorter (--memory-steps, "
    return [Gap(kind=GapKind.TIME, what="time", rank=rank, reason=reason, remedy=f"{remedy}zprof.steps)")]


def missing_steps_gaps(run: Run, rank: int, found: int, policy: WindowPolicy) -> list[Gap]:
    """Report steps that the recorder counted but whose marks are missing."""
    wanted = len(run.rank_manifests[rank].time_steps)
    if policy is WindowPolicy.TRACE or found == wanted:
        return []
    reason = f"{wanted - found} of {wanted} steps lack their begin or end"
    return [Gap(kind=GapKind.STEPS, what="steps", rank=rank, reason=reason, remedy="record again")]


def unknown_steps_gaps(rank: int, steps: Sequence[int]) -> list[Gap]:
    """Report steps whose kernels are missing from the trace, so that the device's activity is unknown."""
    if not steps:
        return []
    named = ", ".join(str(step) for step in steps[:8]) + (" …" if len(steps) > 8 else "")
    reason = (
        f"the recording or its file ends before kernels that step {named} launched: "
        "what the device did then is unknown, and the step is left out"
    )
    remedy = "let the device finish before the window closes (prof.step() once more), and copy the whole file"
    return [Gap(kind=GapKind.STEPS, what="steps", rank=rank, reason=reason, remedy=remedy)]


def unequal_steps_gaps(steps: Mapping[int, Sequence[int]]) -> list[Gap]:
    """Report ranks whose windows cover different steps; each is measured over its own."""
    common = set.intersection(*map(set, steps.values())) if steps else set()
    odd = [rank for rank, mine in steps.items() if set(mine) != common]
    if not odd:
        return []
    reason = (
        f"{len(odd)} of {len(steps)} ranks have steps that others do not have: "
        f"all have {len(common)} in common, and each is measured over its own"
    )
    return [Gap(kind=GapKind.STEPS, what="steps", reason=reason, remedy="record the same steps on all ranks")]


def no_work_gap(rank: int) -> Gap:
    """Report a rank that used a device without any device work in the trace."""
    reason = "no GPU work in the trace, though this rank used a GPU: nothing is said of its time"
    return Gap(kind=GapKind.DEVICE, what="GPU work", rank=rank, reason=reason, remedy=_RECORD_DEVICE)


def no_collectives_gaps(ranks: Sequence[int], silent: Sequence[int], world_size: int) -> list[Gap]:
    """Report ranks, in a job of several, in whose window nothing communicates."""
    if world_size <= 1 or not silent:
        return []
    remedy = "measure a window in which the ranks communicate; --window trace looks at all of the trace"
    if len(silent) == len(ranks):
        return [
            Gap(
                kind=GapKind.NO_COLLECTIVES,
                what="collectives",
                reason="no collectives found in the window",
                remedy=remedy,
            )
        ]
    return [
        Gap(
            kind=GapKind.NO_COLLECTIVES,
            what="collectives",
            rank=rank,
            reason="no collectives found in its window",
            remedy=remedy,
        )
        for rank in silent
    ]


def unsplit_exposure_gaps(exposed_ns: int, unsplit_ns: int) -> list[Gap]:
    """Report exposed communication that cannot be split into wait and transfer.

    Args:
        exposed_ns: All exposed communication.
        unsplit_ns: The part in collectives of which not all ranks were seen, or could be matched.
    """
    if 100 * unsplit_ns <= exposed_ns:
        return []
    reason = (
        f"{unsplit_ns / exposed_ns:.0%} of the exposed communication lies in collectives of which not all "
        "ranks could be compared: there waiting for a late rank and moving bytes are not told apart, and "
        "exposed wait is the least, exposed transfer the most that it can be"
    )
    remedy = "give the traces of all ranks, recorded by a torch that writes their groups (2.4 or newer)"
    return [Gap(kind=GapKind.EXPOSED_TIME, what="exposed wait", reason=reason, remedy=remedy)]
