"""Measure all ranks of a run, in this process or, where that pays, in several.

The ranks depend on each other at two points only. Their collectives must be matched before they are on one
clock, and when all were recording must be known before a wait is measured. Each process therefore loads its
ranks, keeps their timelines while this one matches the collectives, measures them, and returns summaries.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Mask, OptionalInts
from zprof.analysis.time.clocks import Clocks
from zprof.analysis.time.decomposition import decompose_collectives, make_limiter_columns
from zprof.analysis.time.host_calls import HostCalls, measure_host_pace
from zprof.analysis.time.host_idle import make_host_columns, make_wait_columns, split_idle
from zprof.analysis.time.ledger import RankTracks, make_rank_tracks
from zprof.analysis.time.passes import PassRank, make_pass_rank
from zprof.analysis.time.rank import (
    RankResult,
    RankWork,
    RecordingStarts,
    analyse_rank,
    find_recording_start,
)
from zprof.analysis.time.synchronise import SynchronisedRun, synchronise
from zprof.analysis.time.timeline import (
    RankTimeline,
    RankWindow,
    join_collective_tables,
    load_timeline,
    make_collective_rows,
    report_unequal_steps,
)
from zprof.model.collectives import CollectiveKind
from zprof.model.gaps import Gap
from zprof.model.time import RankTime, WindowPolicy
from zprof.process.workers import (
    LocalWorker,
    ProcessWorkers,
    WorkerFailed,
    Workers,
    can_use_processes,
    count_usable_processors,
)
from zprof.run.reader import Run

#: CPU time to load and measure a rank without events, and per million events; measured on one core.
_SECONDS_PER_RANK = 0.02
_SECONDS_PER_MILLION_EVENTS = 1.0
#: A process starts in about a second of CPU time; it pays if it takes over more than that.
_MIN_SECONDS_PER_PROCESS = 2.0
_MAX_PROCESSES = 16


class RankSummary(Struct, frozen=True, kw_only=True):
    """What is known of a rank after it was measured, on the common clock.

    ``window``: its steps. ``in_steps`` marks the collectives launched in them, among all of its rows;
    ``columns``: the columns measured for each row; ``pace``: the host time before each launch in its steps.
    ``calls``: the host calls that can make it late, without the others. ``passes``: what tells its passes.
    ``outside_ns``: device work outside the window.
    """

    window: RankWindow
    time: RankTime
    steps: Columns
    in_steps: Mask
    columns: Columns
    pace: OptionalInts
    work: RankWork
    calls: HostCalls
    kernels: Columns
    host: Columns
    waits: Columns
    limiter: Columns
    passes: PassRank
    tracks: RankTracks
    outside_ns: int
    gaps: list[Gap]


#: All ranks with a time window, by rank; their collectives, by rank and start; the match of these, without
#: its collectives; and gaps.
MeasuredRanks = tuple[list[RankSummary], Columns, SynchronisedRun, list[Gap]]


def measure_ranks(run: Run, policy: WindowPolicy, processes: int | None = None) -> MeasuredRanks | list[Gap]:
    """Measure the ranks of a run; return only gaps if none has a time window.

    Args:
        run: The run.
        policy: Its time window.
        processes: Number of processes; None: as many as pay. If one fails, this process does the work.
    """
    ranks, seconds = np.array(run.ranks, dtype=np.int64), np.zeros(len(run.ranks))
    for place, rank in enumerate(run.ranks):
        manifest = run.rank_manifests[rank]
        table, parts = manifest.files.get("events"), manifest.parts.get("events", ())
        events = table.rows if table is not None else sum(part.rows for part in parts)
        seconds[place] = _SECONDS_PER_RANK + events / 1e6 * _SECONDS_PER_MILLION_EVENTS
    if processes is None:  # as many as pay: each must have more to do than starting it takes
        most = min(count_usable_processors(), _MAX_PROCESSES) if can_use_processes() else 1
        processes = max(1, min(most, len(ranks), int(seconds.sum() / _MIN_SECONDS_PER_PROCESS)))
    # neighbouring ranks in parts that take about as long as one another
    middles = np.cumsum(seconds) - seconds / 2
    part_of = (middles / seconds.sum() * processes).astype(np.int64)
    groups = [ranks[part_of == number].tolist() for number in np.unique(part_of).tolist()]
    if len(groups) > 1:
        try:
            with ProcessWorkers([RankPart(run.select(group), policy) for group in groups]) as workers:
                return _measure_parts(run, workers, len(groups))
        except WorkerFailed:
            pass
    return _measure_parts(run, LocalWorker(RankPart(run, policy)), 1)


class RankPart:
    """Some ranks of a run: their timelines stay here, only summaries leave."""

    def __init__(self, run: Run, policy: WindowPolicy) -> None:
        self._run = run
        self._policy = policy
        self._timelines: list[RankTimeline] = []
        self._clocks: Clocks

    def load(self, _: None) -> tuple[list[RankWindow], list[Gap], pa.Table | None]:
        """Load the ranks; return their windows, gaps, and collectives on their own clocks, if any."""
        gaps: list[Gap] = []
        for rank in self._run.ranks:
            timeline, rank_gaps = load_timeline(self._run, rank, self._policy)
            self._timelines += [timeline] if timeline is not None else []
            gaps += rank_gaps
        collectives = join_collective_tables(self._timelines) if self._timelines else None
        self._timelines = [replace(timeline, collectives=None) for timeline in self._timelines]
        windows = [timeline.window for timeline in self._timelines]
        return windows, gaps, collectives

    def move_to(self, clocks: Clocks) -> dict[int, int]:
        """Move the ranks to the common clock, and return the start of each rank's recording."""
        self._clocks = clocks
        for position, timeline in enumerate(self._timelines):  # never two copies of the times of all ranks
            self._timelines[position] = timeline.on(clocks.of(timeline.rank))
        return {timeline.rank: find_recording_start(timeline) for timeline in self._timelines}

    def measure(self, part: tuple[Columns, int, Mapping[int, int]]) -> list[RankSummary]:
        """Measure the ranks, and forget them one by one.

        Args:
            part: Their collectives, matched, by rank and start; the uncertainty of the clocks; and when each
                rank of the job was recording.
        """
        rows, uncertainty_ns, recording_start_ns = part
        starts = RecordingStarts(recording_start_ns)
        rank = rows.ints("rank")
        summaries = []
        self._timelines.reverse()
        while self._timelines:
            timeline = self._timelines.pop()
            own_rows = rows.at(slice(*np.searchsorted(rank, (timeline.rank, timeline.rank + 1)).tolist()))
            result = analyse_rank(timeline, own_rows, uncertainty_ns, starts.find_start_ns)
            summaries.append(_summarize(timeline, result, self._clocks))
        return summaries


def _measure_parts(run: Run, workers: Workers[RankPart], parts: int) -> MeasuredRanks | list[Gap]:
    loaded = workers.call(RankPart.load, [None] * parts)
    windows = [window for own_windows, _, _ in loaded for window in own_windows]
    gaps = [*(gap for _, own_gaps, _ in loaded for gap in own_gaps), *report_unequal_steps(windows)]
    if not windows:
        return gaps
    collectives = make_collective_rows([table for _, _, table in loaded if table is not None])
    synced = synchronise(collectives, windows, run.manifest.world_size)
    clocks = synced.clocks
    moved = workers.call(RankPart.move_to, [clocks] * parts)
    rows = decompose_collectives(synced.collectives, clocks)
    rows = rows.at(np.lexsort([rows.ints(name) for name in ("end_ns", "start_ns", "rank")])).renumber()
    rank = rows.ints("rank")
    recording_start_ns = {rank: start for starts in moved for rank, start in starts.items()}
    jobs = [
        (
            rows.at(
                slice(*np.searchsorted(rank, (min(starts), max(starts) + 1)).tolist()) if starts else slice(0)
            ),
            clocks.uncertainty_ns,
            recording_start_ns,
        )
        for starts in moved
    ]
    measured = workers.call(RankPart.measure, jobs)
    summaries = [summary for part in measured for summary in part]
    return summaries, rows, replace(synced, collectives=rows.at(slice(0))), gaps


def _summarize(timeline: RankTimeline, result: RankResult, clocks: Clocks) -> RankSummary:
    calls = timeline.calls
    shares = split_idle(timeline, result)
    # The host time before each launch of a collective in a step; null if the launch is unknown.
    launch = result.collectives.ints("launch_start_ns")[result.in_steps]
    known = result.collectives.known("launch_start_ns")[result.in_steps]
    work = result.work
    pace_ns = measure_host_pace(launch, known, timeline.calls, work.blocked, work.begin_ns)
    rows = result.collectives
    is_gather = result.in_steps & rows.texts("kind").equals(CollectiveKind.ALL_GATHER)
    gather_ends = np.sort(rows.ints("end_ns")[is_gather])
    return RankSummary(
        window=timeline.window,
        time=result.time,
        steps=result.steps,
        in_steps=result.in_steps,
        columns=result.columns,
        pace=OptionalInts(pace_ns, known),
        work=result.work,
        calls=HostCalls(
            allocator=calls.allocator, sync=calls.sync, loader=calls.loader, has_stacks=calls.has_stacks
        ),
        kernels=result.kernels,
        host=make_host_columns(timeline, result, shares),
        waits=make_wait_columns(timeline, result, shares),
        limiter=make_limiter_columns(
            timeline.rank, timeline.calls.limiter, timeline.activity, timeline.host_steps, gather_ends
        ),
        passes=make_pass_rank(timeline),
        tracks=make_rank_tracks(timeline, clocks.of(timeline.rank), result.exposure, result.wait_before_ns),
        outside_ns=timeline.outside_ns,
        gaps=result.gaps,
    )
