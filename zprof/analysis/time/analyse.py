"""Measure a run's times: all ranks, in this process or, if that is faster, in several processes.

Ranks depend on each other at only two points: collectives must be matched to align the clocks, and the time
from which all ranks were recording must be known to measure waits. Each process therefore loads its ranks,
keeps their timelines while the main process matches the collectives, measures them, and returns summaries.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Groups, Mask, OptionalInts, Texts, concat_columns
from zprof.analysis.time.clocks import Clocks
from zprof.analysis.time.collective_times import (
    fit_links,
    measure_volume,
    sum_collective_times,
    sum_exposed,
    sum_exposed_in_collectives,
    sum_message_sizes,
    sum_unit_times,
)
from zprof.analysis.time.compute_passes import NO_COMPUTE_PASSES, make_compute_passes
from zprof.analysis.time.critical_path import (
    find_critical_path,
    judge_lateness,
    measure_lateness,
    sum_wait_shares,
)
from zprof.analysis.time.decomposition import StepCounts, decompose_collectives, make_limiter_columns
from zprof.analysis.time.host_calls import HOST_NS, HostCalls, measure_host_pace
from zprof.analysis.time.host_idle import make_host_columns, make_wait_columns, split_idle
from zprof.analysis.time.ledger import (
    STEP_COLUMNS,
    RankTracks,
    estimate_step_noise,
    is_unsplit,
    list_step_times,
    make_rank_tracks,
)
from zprof.analysis.time.passes import (
    NO_PASSES,
    PassRank,
    make_pass_rank,
    make_pass_table,
    read_launch_times,
)
from zprof.analysis.time.rank import (
    RankResult,
    RankWork,
    RecordingStarts,
    analyse_rank,
    find_recording_start,
)
from zprof.analysis.time.steps import WHOLE_TRACE
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
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.report import Volume
from zprof.model.time import Alignment, RankTime, Time, Window, WindowPolicy
from zprof.process.workers import (
    LocalWorker,
    ProcessWorkers,
    WorkerFailed,
    Workers,
    can_use_processes,
    count_usable_processors,
)
from zprof.run.reader import Run

COLLECTIVE_COLUMNS = (
    "rank",
    "step",
    "kind",
    "group",
    "group_size",
    "sequence",
    "dtype",
    "bytes",
    "unit",
    "start_ns",
    "end_ns",
    "wait_ns",
    "transfer_ns",
    "exposed_wait_ns",
    "exposed_transfer_ns",
    "hidden_ns",
    "launch_start_ns",
    "launch_end_ns",
    "wait_start_ns",
    "wait_end_ns",
    "compute_before_wait_ns",
    "dependency_ns",
    "blocked_ns",
    "host_ns",
    "free_compute_ns",
    "queued_exposed_ns",
    "intrinsic_ns",
    "tail_ns",
    "bound",
    "last_rank",
    "blamed_rank",
    "late_reason",
    "origin_rank",
    "lateness_ns",
    "instance",
    "matched",
    "first_of_window",
    "peer_rank",
)
_TEXTS = ("kind", "group", "dtype", "unit", "late_reason")
#: CPU time to load and measure a rank, as a fixed part and per million events; measured on one core.
_SECONDS_PER_RANK = 0.02
_SECONDS_PER_MILLION_EVENTS = 1.0
#: Starting a process takes about a second of CPU time; it pays off if it takes over more work than that.
_MIN_SECONDS_PER_PROCESS = 2.0
_MAX_PROCESSES = 16


class RankSummary(Struct, frozen=True, kw_only=True):
    """A measured rank's results, on the common clock.

    ``window``: its steps. ``in_steps``: mask of the collectives launched in its steps, among all of its rows;
    ``columns``: the columns measured for each row; ``pace``: the host time before each launch in its steps.
    ``calls``: only the host calls that can make it late. ``passes``: evidence of its passes;
    ``compute_passes``: those of a pipeline. ``outside_ns``: device work outside the window.
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
    compute_passes: Columns
    tracks: RankTracks
    outside_ns: int
    gaps: list[Gap]


class TimeAnalysis(Struct, frozen=True, kw_only=True):
    """A run's times.

    ``steps`` has one row per (rank, step), ``collectives`` one per rank and collective in these steps; a
    collective belongs to the step that launched it. Times in both are on the common clock. ``tracks`` has the
    intervals behind the sums. ``host``, ``kernels``, ``passes``, ``limiter`` and ``waits`` are documented in
    the functions that create them.
    """

    time: Time
    steps: Columns
    collectives: Columns
    volume: Volume | None
    gaps: tuple[Gap, ...]
    tracks: tuple[RankTracks, ...] = ()
    host: Columns = field(default_factory=lambda: Columns({}))
    kernels: Columns = field(default_factory=lambda: Columns({}))
    passes: Columns = NO_PASSES
    compute_passes: Columns = NO_COMPUTE_PASSES
    limiter: Columns = field(default_factory=lambda: Columns({}))
    waits: Columns = field(default_factory=lambda: Columns({}))


def analyse_time(
    run: Run, policy: WindowPolicy = WindowPolicy.STEP, processes: int | None = None
) -> TimeAnalysis:
    """Measure the time window of a run, per step or as a single interval.

    Args:
        run: The run.
        policy: Its time window.
        processes: Number of processes; None: as many as pay off.
    """
    measured = measure_ranks(run, policy, processes)
    if isinstance(measured, list):
        return _make_empty_analysis(measured)
    ranks, rows, synced, gaps = measured
    collectives = _join_collectives(rows, ranks)
    del measured, rows
    work = {rank.time.rank: rank.work for rank in ranks}
    calls = {rank.time.rank: rank.calls for rank in ranks}
    windows = [rank.window for rank in ranks]
    collectives = judge_lateness(collectives, work, calls.__getitem__)
    step_counts = StepCounts(by_rank={rank.time.rank: rank.time.steps for rank in ranks})
    volume, volume_gaps = measure_volume(collectives, run.manifest.training, step_counts)
    steps = Columns.concat([rank.steps for rank in ranks])
    time = Time(
        per_rank=tuple(rank.time for rank in ranks),
        collectives=sum_collective_times(collectives, step_counts),
        units=sum_unit_times(collectives, step_counts),
        messages=sum_message_sizes(collectives, step_counts),
        fits=fit_links(collectives),
        exposed_in_collectives=sum_exposed_in_collectives(collectives, step_counts),
        blame=sum_wait_shares(collectives, list(step_counts.by_rank), step_counts.per_rank),
        alignment=_make_alignment(synced, collectives),
        window=_describe_window(policy, ranks),
        steps=list_step_times(steps),
        lateness=measure_lateness(collectives),
        step_noise_ns=estimate_step_noise(steps),
        critical_path=find_critical_path(
            collectives, work, {window.rank: window.steps for window in windows}, calls.__getitem__
        ),
    )
    rank_gaps = [gap for rank in ranks for gap in rank.gaps]
    return TimeAnalysis(
        time=time,
        steps=steps,
        collectives=collectives.pick(COLLECTIVE_COLUMNS),
        volume=volume,
        gaps=(
            *(*gaps, *synced.gaps, *rank_gaps),
            *_list_collective_gaps(run, collectives, windows),
            *_list_host_gaps(ranks, calls),
            *volume_gaps,
        ),
        kernels=Columns.concat([rank.kernels for rank in ranks]),
        tracks=tuple(rank.tracks for rank in ranks),
        host=Columns.concat([rank.host for rank in ranks]),
        limiter=Columns.concat([rank.limiter for rank in ranks]),
        waits=Columns.concat([rank.waits for rank in ranks]),
        passes=_find_passes_in_program_steps(collectives, ranks),
        compute_passes=Columns.concat([rank.compute_passes for rank in ranks]),
    )


def _join_collectives(rows: Columns, ranks: Sequence[RankSummary]) -> Columns:
    """Return the rows launched in steps with their measured columns, all sorted by rank and start."""
    in_steps = np.concatenate([rank.in_steps for rank in ranks])
    measured = Columns.concat([rank.columns for rank in ranks]).at(in_steps)
    pace = concat_columns([rank.pace for rank in ranks])
    return (
        rows.at(in_steps)
        .renumber()
        .with_columns(**{name: measured[name] for name in measured.names}, **{HOST_NS: pace})
    )


def _find_passes_in_program_steps(collectives: Columns, ranks: Sequence[RankSummary]) -> Columns:
    """Find the passes within the program's own steps, even if the window spans several steps.

    If no step is marked, not even by an optimizer, several forward passes may be micro-batches or steps, so
    the micro-batch is unknown.
    """
    step = collectives.ints("step").copy()
    launched = read_launch_times(collectives)
    for rank in ranks:
        if rank.window.has_several_steps:
            own_rows = np.flatnonzero(collectives.ints("rank") == rank.window.rank)
            step[own_rows] = rank.passes.host_steps.step_at(launched[own_rows])
    in_steps = collectives.with_columns(step=step).at(step >= 0)
    passes = make_pass_table(in_steps, [rank.passes for rank in ranks])
    evidence = {rank.window.rank: rank.passes.evidence for rank in ranks}
    unmarked = [rank.window.rank for rank in ranks if rank.window.program_steps is None]
    has_several = np.isin(passes.ints("rank"), unmarked) & (passes.ints("micro_batch") > 0)
    ranks_with_micro_batches = np.unique(passes.ints("rank")[has_several]).tolist()
    unknown = [rank for rank in ranks_with_micro_batches if not len(evidence[rank].optimizer)]
    is_known = ~np.isin(passes.ints("rank"), unknown)
    return passes.with_columns(
        **{
            name: OptionalInts(passes.ints(name), passes.known(name) & is_known)
            for name in ("micro_batch", "in_micro_batch")
        }
    )


def _list_host_gaps(ranks: Sequence[RankSummary], calls: Mapping[int, HostCalls]) -> list[Gap]:
    """Return a gap if recording Python calls slowed the hosts, and a gap if no rank trains.

    Losses outside training do not show what a training step loses.
    """
    gaps, slowed = [], [rank for rank, rank_calls in calls.items() if rank_calls.has_stacks]
    if slowed:
        gaps.append(make_gap("python_calls_recorded", rank=slowed[0] if len(slowed) == 1 else None))
    if ranks and all(len(rank.host) and rank.host.bools("is_inference").all() for rank in ranks):
        gaps.append(make_gap("no_training_step"))
    return gaps


def _describe_window(policy: WindowPolicy, ranks: Sequence[RankSummary]) -> Window:
    outside = sum(rank.outside_ns for rank in ranks)
    sources = sorted({rank.window.source for rank in ranks})
    return Window(
        policy=policy,
        source=", ".join(sources),
        pre_window_ns=outside // len(ranks),
        is_whole=policy is WindowPolicy.TRACE or WHOLE_TRACE in sources,
    )


def _list_collective_gaps(run: Run, collectives: Columns, windows: Sequence[RankWindow]) -> list[Gap]:
    """Report ranks without collectives, and exposed communication that cannot be split into wait and
    transfer.
    """
    ranks = [window.rank for window in windows]
    ranks_with_collectives = set(collectives.ints("rank").tolist())
    silent = [rank for rank in ranks if rank not in ranks_with_collectives]
    if run.manifest.world_size <= 1 or not silent:
        gaps = []
    elif len(silent) == len(ranks):
        gaps = [make_gap("no_collectives")]
    else:
        gaps = [make_gap("no_collectives_of_rank", rank=rank) for rank in silent]
    exposed_ns, unsplit_ns = sum_exposed(collectives), sum_exposed(collectives.at(collectives.bools("bound")))
    if is_unsplit(exposed_ns, unsplit_ns):
        gaps.append(make_gap("exposed_time_not_split", ratio=unsplit_ns / exposed_ns))
    return gaps


def _make_alignment(synced: SynchronisedRun, collectives: Columns) -> Alignment:
    """Return the alignment; collectives are counted by instance, not by row."""
    matched = collectives.at(collectives.bools("matched"))
    rungs = Groups(matched.texts("rung"))
    counts = rungs.count_distinct(matched.ints("instance")).tolist()
    rows = collectives.at(~collectives.bools("matched"))
    unmatched = Groups(rows.texts("group"), rows.texts("method"), rows.ints("sequence"))
    clocks = synced.clocks
    return Alignment(
        method=clocks.method,
        offsets_ns=clocks.offsets_ns,
        uncertainty_ns=clocks.uncertainty_ns,
        matched=sum(counts),
        unmatched=len(unmatched),
        rank_uncertainty_ns=clocks.rank_uncertainty_ns,
        interval_ns=clocks.interval_ns,
        drift_ppb={rank: clock.drift_ppb for rank, clock in clocks.of_rank.items() if clock.drift_ppb},
        rungs=dict(zip(map(str, matched.texts("rung").at(rungs.first)), counts, strict=True)),
        excluded=synced.excluded,
        shifts=synced.shifts,
    )


def _make_empty_analysis(gaps: Sequence[Gap]) -> TimeAnalysis:
    none = np.empty(0, dtype=np.int64)
    return TimeAnalysis(
        time=Time(),
        steps=Columns(dict.fromkeys(STEP_COLUMNS, none)),
        collectives=Columns(
            {name: Texts((), none) if name in _TEXTS else none for name in COLLECTIVE_COLUMNS}
        ),
        volume=None,
        gaps=tuple(gaps),
    )


#: All ranks with a time window, by rank; their collectives, by rank and start; the match without its
#: collectives; and gaps.
MeasuredRanks = tuple[list[RankSummary], Columns, SynchronisedRun, list[Gap]]


def measure_ranks(run: Run, policy: WindowPolicy, processes: int | None = None) -> MeasuredRanks | list[Gap]:
    """Measure a run's ranks; return only gaps if no rank has a time window.

    Args:
        run: The run.
        policy: Its time window.
        processes: Number of processes; None: as many as pay off. If one fails, this process does its work.
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
    # neighbouring ranks in parts that take about equally long
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
    """Some of a run's ranks: their timelines stay in this process, only summaries leave it."""

    def __init__(self, run: Run, policy: WindowPolicy) -> None:
        self._run = run
        self._policy = policy
        self._timelines: list[RankTimeline] = []
        self._clocks: Clocks

    def load(self, _: None) -> tuple[list[RankWindow], list[Gap], pa.Table | None]:
        """Load the ranks; return windows, gaps, and any collectives on their ranks' own clocks."""
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
        """Move the ranks to the common clock; return the start of each rank's recording."""
        self._clocks = clocks
        for position, timeline in enumerate(self._timelines):  # never two copies of the times of all ranks
            self._timelines[position] = timeline.on(clocks.of(timeline.rank))
        return {timeline.rank: find_recording_start(timeline) for timeline in self._timelines}

    def measure(self, part: tuple[Columns, int, Mapping[int, int]]) -> list[RankSummary]:
        """Measure the ranks, dropping each afterwards.

        Args:
            part: Their matched collectives, by rank and start; the clock uncertainties; and the start of
                recording of each rank of the job.
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
    # The host time before each collective launch in a step; null if the launch is unknown.
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
        compute_passes=make_compute_passes(timeline, result.collectives.at(result.in_steps)),
        tracks=make_rank_tracks(timeline, clocks.of(timeline.rank), result.exposure, result.wait_before_ns),
        outside_ns=timeline.outside_ns,
        gaps=result.gaps,
    )
