"""Measure the times of a run."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from zprof.analysis.columns import Columns, Groups, OptionalInts, Texts, concat_columns
from zprof.analysis.time.blame import judge_lateness, measure_lateness, sum_wait_shares
from zprof.analysis.time.collective_rows import StepCounts
from zprof.analysis.time.collective_times import (
    fit_links,
    measure_volume,
    sum_collective_times,
    sum_exposed,
    sum_exposed_in_collectives,
    sum_message_sizes,
    sum_unit_times,
)
from zprof.analysis.time.critical_path import find_critical_path
from zprof.analysis.time.host_calls import HOST_NS, HostCalls
from zprof.analysis.time.ledger import (
    STEP_COLUMNS,
    RankTracks,
    estimate_step_noise,
    is_unsplit,
    list_step_times,
)
from zprof.analysis.time.measure_ranks import RankSummary, measure_ranks
from zprof.analysis.time.passes import NO_PASSES, make_pass_table
from zprof.analysis.time.steps import WHOLE_TRACE
from zprof.analysis.time.synchronise import SynchronisedRun
from zprof.analysis.time.timeline import RankWindow
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.report import Volume
from zprof.model.time import Alignment, Time, Window, WindowPolicy
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
)
_TEXTS = ("kind", "group", "dtype", "unit", "late_reason")


class TimeAnalysis(Struct, frozen=True, kw_only=True):
    """Times of a run.

    ``steps`` has one row per (rank, step), ``collectives`` one per rank and collective of these steps; a
    collective belongs to the step that launched it. Times in both are on the common clock. ``tracks`` has the
    intervals that make up the sums. ``host``, ``kernels``, ``passes``, ``limiter`` and ``waits`` are
    documented in the functions that create them.
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
    limiter: Columns = field(default_factory=lambda: Columns({}))
    waits: Columns = field(default_factory=lambda: Columns({}))


def analyse_time(
    run: Run, policy: WindowPolicy = WindowPolicy.STEP, processes: int | None = None
) -> TimeAnalysis:
    """Measure the time window of a run, per step or as a single interval.

    Args:
        run: The run.
        policy: Its time window.
        processes: Number of processes that measure the ranks; None: as many as pay.
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
    )


def _join_collectives(rows: Columns, ranks: Sequence[RankSummary]) -> Columns:
    """Return the rows launched in steps, with the columns measured for them; all are by rank and start."""
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

    If no step is marked, not even by an optimizer, several forwards may be micro-batches or steps, so the
    micro-batch is unknown.
    """
    step = collectives.ints("step").copy()
    launched = np.where(
        collectives.known("launch_start_ns"),
        collectives.ints("launch_start_ns"),
        collectives.ints("start_ns"),
    )
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
    """Return a gap if the recording of Python calls slowed the hosts, and one if no rank trains.

    What is lost without training is not what a training step loses.
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
    """Report ranks without collectives, and exposed communication that cannot be split."""
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
    """Return the alignment; matched and unmatched collectives are counted by instance, not by row."""
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
