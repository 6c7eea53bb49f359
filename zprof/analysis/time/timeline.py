"""Load the time window of each of a run's ranks, and report missing data as gaps."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.columns import Columns
from zprof.analysis.intervals import EMPTY, measure, subtract
from zprof.analysis.time.activity import (
    RankActivity,
    has_device_work,
    launches_device_work,
    read_device_activity,
    read_host_activity,
)
from zprof.analysis.time.clocks import RankClock
from zprof.analysis.time.events import EventColumns
from zprof.analysis.time.host_calls import HostCalls, select_host_calls
from zprof.analysis.time.steps import (
    PhaseEvidence,
    StepWindows,
    ThreadTimes,
    collect_phase_evidence,
    find_program_steps,
    find_step_windows,
    find_trace_windows,
    read_mark_times,
    read_thread_times,
)
from zprof.base.formatting import printable
from zprof.model.collectives import CollectiveKind
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap, GapKind
from zprof.model.time import WindowPolicy
from zprof.run.reader import Run
from zprof.run.schema import TEXT
from zprof.run.table_reader import make_array, make_masked, read_known, read_numbers

_EVENT_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation", "bytes")
_TABLES = ("events", "collectives", "mark")


class RankWindow(Struct, frozen=True, kw_only=True):
    """One rank's steps, and the data to align all ranks' clocks.

    ``host_steps``: the steps by host marks, to which launches are assigned; ``steps``: the steps split by the
    ledger, whose boundaries on a device are moved to the end of each step's work. ``source``: what marked
    them. ``program_steps``: the program's steps, even if the window is a single interval; None without marks.
    ``unknown_steps``: steps left out because the trace ends before the work that they launched. ``pings``:
    start and end of each clock ping by index.
    """

    rank: int
    host: str
    steps: StepWindows
    host_steps: StepWindows
    pings: dict[int, tuple[int, int]]
    source: str = ""
    program_steps: StepWindows | None = None
    unknown_steps: tuple[int, ...] = ()

    @property
    def has_several_steps(self) -> bool:
        """Return True if the window is a single interval over several steps that the program marked."""
        steps = self.program_steps
        return steps is not None and not np.array_equal(steps.begin_ns, self.host_steps.begin_ns)


class RankTimeline(RankWindow, frozen=True, kw_only=True):
    """One rank's time window, and what happened in it.

    ``thread_times``: the training-loop thread's times in each recorded step. ``waits_block``: waits for
    collectives use no processor. ``calls`` and ``evidence``: what the host did. ``collectives``: the table on
    the rank's own clock; None on the common clock. ``unknown_kinds``: kinds unknown to this version, which
    count as ``other``.
    """

    activity: RankActivity
    thread_times: Mapping[int, ThreadTimes] = field(default_factory=dict)
    waits_block: bool = False
    calls: HostCalls = field(default_factory=lambda: HostCalls(allocator=EMPTY, sync=EMPTY, loader=EMPTY))
    evidence: PhaseEvidence = field(default_factory=PhaseEvidence)
    collectives: pa.Table | None = None
    unknown_kinds: tuple[str, ...] = ()

    def on(self, clock: RankClock) -> "RankTimeline":
        """Return the same timeline on the common clock; pings keep their timestamps."""
        return replace(
            self,
            steps=self.steps.on(clock),
            host_steps=self.host_steps.on(clock),
            program_steps=self.program_steps.on(clock) if self.program_steps is not None else None,
            activity=self.activity.on(clock),
            calls=self.calls.on(clock),
            evidence=self.evidence.on(clock),
            collectives=None,
        )

    @property
    def window(self) -> RankWindow:
        """The window alone, which is small."""
        return RankWindow(**{name: getattr(self, name) for name in RankWindow.__struct_fields__})

    @property
    def outside_ns(self) -> int:
        """Device work outside the window, in ns."""
        return measure(subtract(self.activity.work, self.steps.spans))


def load_timelines(
    run: Run, policy: WindowPolicy = WindowPolicy.STEP
) -> tuple[list[RankTimeline], list[Gap]]:
    """Load the ranks with a time window, as selected by ``policy``, and report the other ranks as gaps."""
    timelines: list[RankTimeline] = []
    gaps: list[Gap] = []
    for rank in run.ranks:
        timeline, rank_gaps = load_timeline(run, rank, policy)
        timelines += [timeline] if timeline is not None else []
        gaps += rank_gaps
    return timelines, [*gaps, *report_unequal_steps(timelines)]


def load_timeline(run: Run, rank: int, policy: WindowPolicy) -> tuple[RankTimeline | None, list[Gap]]:
    """Load the time window of a rank; None, and perhaps a gap, without one.

    A snapshot never has times, so it gets no gap; an unsupported device already has a gap from its import.
    """
    if any(gap.kind is GapKind.UNKNOWN_DEVICE for gap in run.rank_manifests[rank].gaps):
        return None, []
    absent = [name for name in _TABLES if not run.has_table(rank, name)]
    timeline = None if absent else _load_rank(run, rank, policy)
    if isinstance(timeline, Gap):
        return None, [timeline]
    gaps, unknown = [], () if timeline is None else timeline.unknown_steps
    if unknown:
        gaps.append(make_gap("steps_without_kernels", rank=rank, steps=unknown))
    if timeline is not None and timeline.unknown_kinds:
        kinds = [printable(kind)[:40] for kind in timeline.unknown_kinds]
        gaps.append(make_gap("collective_kinds_unknown", rank=rank, kinds=kinds))
    if timeline is not None and len(timeline.steps):
        # The recorder counts steps; each step has two marks.
        recorded = len(run.rank_manifests[rank].time_steps)
        missing = recorded - len(timeline.steps) - len(unknown)
        if missing and policy is not WindowPolicy.TRACE:
            gaps.append(make_gap("steps_without_marks", rank=rank, missing=missing, steps=recorded))
        return timeline, gaps
    if unknown:
        return None, gaps
    if run.manifest.source == "snapshot":
        return None, []
    if absent:
        return None, [make_gap("time_window_missing", rank=rank, tables=absent)]
    return None, [make_gap("time_window_without_step", rank=rank)]


def load_collectives(timelines: Sequence[RankTimeline]) -> Columns:
    """Return the collectives of these ranks, on their own clocks, in one table with a ``rank`` column."""
    return make_collective_rows([join_collective_tables(timelines)])


def join_collective_tables(timelines: Sequence[RankTimeline]) -> pa.Table:
    """Return the collectives of these ranks as one Arrow table with a ``rank`` column."""
    tables = [
        t.collectives.append_column(
            pa.field("rank", pa.int64(), nullable=False),
            make_array(np.full(t.collectives.num_rows, t.rank, dtype=np.int64), pa.int64()),
        )
        for t in timelines
        if t.collectives is not None
    ]
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def make_collective_rows(tables: Sequence[pa.Table]) -> Columns:
    """Concatenate collective tables, without rows that end before they start."""
    rows = Columns.from_arrow(pa.concat_tables(tables).unify_dictionaries())
    return rows.at(rows.ints("end_ns") >= rows.ints("start_ns")).renumber()


def _load_rank(run: Run, rank: int, policy: WindowPolicy) -> RankTimeline | Gap:
    """Read a rank's tables once, and keep what is needed of its events."""
    marks = Columns.from_arrow(run.table(rank, "mark"))
    events = EventColumns(run.table(rank, "events", _EVENT_COLUMNS))
    collectives, unknown_kinds = _replace_unknown(run.table(rank, "collectives"))
    if has_device_work(events):
        activity = read_device_activity(events, collectives)
    elif not launches_device_work(events):
        activity = read_host_activity(events)
    else:
        return make_gap("gpu_work_missing", rank=rank)
    steps = run.rank_manifests[rank].time_steps
    if policy is WindowPolicy.TRACE:
        windows = replace(find_trace_windows(activity), program=find_program_steps(marks, steps))
    else:
        windows = find_step_windows(marks, steps, activity)
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
        thread_times={} if policy is WindowPolicy.TRACE else read_thread_times(marks),
        waits_block="gloo" in run.manifest.backend,
        calls=select_host_calls(events),
        evidence=collect_phase_evidence(events, marks),
        collectives=collectives,
        unknown_kinds=unknown_kinds,
    )


def _replace_unknown(collectives: pa.Table) -> tuple[pa.Table, tuple[str, ...]]:
    """Make half-known intervals null, and kinds from a newer zprof ``other``; also return these kinds."""
    for start, end in (("launch_start_ns", "launch_end_ns"), ("wait_start_ns", "wait_end_ns")):
        pair = [collectives.column(name) for name in (start, end)]
        if pair[0].null_count == pair[1].null_count == 0:
            continue
        is_unknown = ~(read_known(pair[0]) & read_known(pair[1]))
        for name, column in zip((start, end), pair, strict=True):
            if column.null_count != np.count_nonzero(is_unknown):
                values = make_masked(read_numbers(column), pa.int64(), is_unknown)
                collectives = _set_column(collectives, name, values)
    kinds = collectives.column("kind").unify_dictionaries()
    words = kinds.chunk(0).dictionary.to_pylist() if kinds.num_chunks else []
    unknown = tuple(sorted(set(words) - set(CollectiveKind)))
    if unknown:
        texts = [CollectiveKind.OTHER if kind in unknown else kind for kind in kinds.to_pylist()]
        collectives = _set_column(collectives, "kind", make_array(texts, TEXT))
    return collectives, unknown


def _set_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), table.schema.field(name), values)


def report_unequal_steps(windows: Sequence[RankWindow]) -> list[Gap]:
    """Report ranks whose windows cover different steps; each rank is measured over its own steps."""
    steps = {window.rank: window.steps.number.tolist() for window in windows}
    common = set.intersection(*map(set, steps.values())) if steps else set()
    differing = [rank for rank, own_steps in steps.items() if set(own_steps) != common]
    if not differing:
        return []
    return [make_gap("steps_unequal", differing=len(differing), ranks=len(steps), common=len(common))]
