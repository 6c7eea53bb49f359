"""Measure the time side of a run: tables in, frozen values out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from zprof.analysis.time.blame.judge import judge_lateness, measure_lateness, sum_wait_shares
from zprof.analysis.time.collective_rows import RankSteps
from zprof.analysis.time.critical_path import find_critical_path
from zprof.analysis.time.host_calls import add_host_pace, read_host_calls
from zprof.analysis.time.host_idle import make_host_rows
from zprof.analysis.time.kernels import make_kernel_frame
from zprof.analysis.time.ledger import (
    STEP_COLUMNS,
    RankTracks,
    estimate_step_noise,
    list_step_times,
    make_rank_tracks,
)
from zprof.analysis.time.passes.phases import PhaseEvidence, read_phase_evidence
from zprof.analysis.time.passes.table import make_pass_table
from zprof.analysis.time.rank import analyse_rank, find_recording_start, sum_unsplit
from zprof.analysis.time.synchronise import SynchronisedRun, synchronise
from zprof.analysis.time.timeline import (
    RankTimeline,
    load_collectives,
    load_timelines,
    no_collectives_gaps,
    unsplit_exposure_gaps,
)
from zprof.analysis.time.transfer.collective_times import (
    sum_collective_times,
    sum_exposed_in_collectives,
    sum_message_sizes,
    sum_unit_times,
)
from zprof.analysis.time.transfer.decomposition import decompose_collectives
from zprof.analysis.time.transfer.launch_delays import make_limiter_rows
from zprof.analysis.time.transfer.link_fits import fit_links
from zprof.analysis.time.transfer.volume import measure_volume
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAnalysis:
    """Time side of the analysis of a run.

    ``steps`` has one row per (rank, step), ``collectives`` one per rank and collective of these steps; a
    collective belongs to the step that launched it. Times in both are on the common clock. ``tracks`` has the
    instants behind the sums. ``host``, ``kernels``, ``passes`` and ``limiter`` are described where they are
    created.
    """

    time: Time
    steps: pd.DataFrame
    collectives: pd.DataFrame
    volume: Volume | None
    gaps: tuple[Gap, ...]
    tracks: tuple[RankTracks, ...] = ()
    host: pd.DataFrame = field(default_factory=pd.DataFrame)
    kernels: pd.DataFrame = field(default_factory=pd.DataFrame)
    passes: pd.DataFrame = field(default_factory=pd.DataFrame)
    limiter: pd.DataFrame = field(default_factory=pd.DataFrame)


def analyse_time(run: Run, policy: WindowPolicy = WindowPolicy.STEP) -> TimeAnalysis:
    """Measure the time window of a run, step by step or as one stretch."""
    timelines, gaps = load_timelines(run, policy)
    if not timelines:
        return _make_empty(gaps)
    seen = synchronise(load_collectives(run, timelines), timelines, run.manifest.world_size)
    clocks = seen.clocks
    timelines = [timeline.on(clocks.of(timeline.rank)) for timeline in timelines]
    frame = decompose_collectives(seen.collectives, clocks)
    mine = {int(str(rank)): rows for rank, rows in frame.groupby("rank")}
    started = {timeline.rank: find_recording_start(timeline) for timeline in timelines}
    ranks = [
        analyse_rank(t, mine.get(t.rank, frame.iloc[:0]), clocks.uncertainty_ns, started) for t in timelines
    ]
    calls = {t.rank: read_host_calls(run, t.rank).on(clocks.of(t.rank)) for t in timelines}
    limiter = [
        make_limiter_rows(t.rank, calls[t.rank].limiter, t.activity, t.host_steps, rank.collectives)
        for t, rank in zip(timelines, ranks, strict=True)
    ]
    paced = [
        add_host_pace(rank.collectives, calls[t.rank], rank.work.blocked, rank.work.begin_ns)
        for t, rank in zip(timelines, ranks, strict=True)
    ]
    collectives = judge_lateness(
        pd.concat(paced, ignore_index=True),
        {rank.time.rank: rank.work for rank in ranks},
        calls.__getitem__,
    )
    count = RankSteps(of_rank={rank.time.rank: rank.time.steps for rank in ranks})
    volume, volume_gaps = measure_volume(collectives, run.manifest.training, count)
    steps = pd.concat([rank.steps for rank in ranks], ignore_index=True)
    time = Time(
        per_rank=tuple(rank.time for rank in ranks),
        collectives=sum_collective_times(collectives, count),
        units=sum_unit_times(collectives, count),
        messages=sum_message_sizes(collectives, count),
        fits=fit_links(collectives),
        exposed_in_collectives=sum_exposed_in_collectives(collectives, count),
        blame=sum_wait_shares(collectives, list(count.of_rank), count.each),
        alignment=_make_alignment(seen, collectives),
        window=_describe_window(policy, timelines),
        steps=list_step_times(steps),
        lateness=measure_lateness(collectives),
        step_noise_ns=estimate_step_noise(steps),
        critical_path=find_critical_path(
            collectives,
            {rank.time.rank: rank.work for rank in ranks},
            {timeline.rank: timeline.steps for timeline in timelines},
            calls.__getitem__,
        ),
    )
    rank_gaps = [gap for rank in ranks for gap in rank.gaps]
    return TimeAnalysis(
        time=time,
        steps=steps,
        collectives=collectives[list(COLLECTIVE_COLUMNS)],
        volume=volume,
        gaps=(
            *(*gaps, *seen.gaps, *rank_gaps),
            *_silent_rank_gaps(run, collectives, timelines),
            *_unsplit_gaps(collectives),
            *volume_gaps,
        ),
        kernels=make_kernel_frame([rank.kernels for rank in ranks]),
        tracks=tuple(
            make_rank_tracks(timeline, clocks.of(timeline.rank), rank.exposure, rank.wait_before_ns)
            for timeline, rank in zip(timelines, ranks, strict=True)
        ),
        host=pd.concat(
            [make_host_rows(t, rank, calls[t.rank]) for t, rank in zip(timelines, ranks, strict=True)],
            ignore_index=True,
        ),
        limiter=pd.concat(limiter, ignore_index=True),
        passes=_find_program_passes(
            collectives, timelines, lambda rank: read_phase_evidence(run, rank, clocks.of(rank))
        ),
    )


def _find_program_passes(
    collectives: pd.DataFrame, timelines: Sequence[RankTimeline], evidence_of: Callable[[int], PhaseEvidence]
) -> pd.DataFrame:
    """Find the passes within the program's own steps, even if the window spans several steps.

    If nothing marks a step, not even an optimizer, several forwards may be micro-batches or steps: then the
    micro-batch is unknown.
    """
    step = collectives["step"].to_numpy(np.int64).copy()
    rank = collectives["rank"].to_numpy(np.int64)
    by_program = []
    for timeline in timelines:
        if timeline.holds_several_steps:
            timeline = replace(timeline, host_steps=timeline.program_steps or timeline.host_steps)
            mine = np.flatnonzero(rank == timeline.rank)
            rows = collectives.iloc[mine]
            launched = rows["launch_start_ns"].fillna(rows["start_ns"]).to_numpy(np.int64)
            step[mine] = timeline.host_steps.step_at(launched)
        by_program.append(timeline)
    found = make_pass_table(collectives.assign(step=step)[step >= 0], by_program, evidence_of)
    unmarked = {timeline.rank for timeline in timelines if timeline.program_steps is None}
    several = found.loc[found["rank"].isin(unmarked) & (found["micro_batch"] > 0).fillna(False), "rank"]
    unknown = [rank for rank in several.unique().tolist() if not len(evidence_of(rank).optimizer)]
    numbers = ["micro_batch", "in_micro_batch"]
    return found.assign(**{name: found[name].mask(found["rank"].isin(unknown)) for name in numbers})


def _describe_window(policy: WindowPolicy, timelines: Sequence[RankTimeline]) -> Window:
    outside = sum(timeline.outside_ns for timeline in timelines)
    sources = sorted({timeline.source for timeline in timelines})
    return Window(policy=policy, source=", ".join(sources), pre_window_ns=outside // len(timelines))


def _silent_rank_gaps(run: Run, collectives: pd.DataFrame, timelines: Sequence[RankTimeline]) -> list[Gap]:
    ranks = [timeline.rank for timeline in timelines]
    heard = set(collectives["rank"].tolist())
    return no_collectives_gaps(ranks, [rank for rank in ranks if rank not in heard], run.manifest.world_size)


def _unsplit_gaps(collectives: pd.DataFrame) -> list[Gap]:
    exposed = collectives["exposed_wait_ns"] + collectives["exposed_transfer_ns"]
    return unsplit_exposure_gaps(int(exposed.sum()), sum_unsplit(collectives))


def _make_alignment(seen: SynchronisedRun, collectives: pd.DataFrame) -> Alignment:
    """Return the alignment; matched and unmatched collectives are counted by instance, not by row."""
    by_rung = collectives[collectives["matched"]].groupby("rung")["instance"].nunique()
    alone = collectives[~collectives["matched"]]
    unmatched = alone.groupby(["group", "method", "sequence"]).ngroups
    clocks = seen.clocks
    return Alignment(
        method=clocks.method,
        offsets_ns=clocks.offsets_ns,
        uncertainty_ns=clocks.uncertainty_ns,
        matched=int(by_rung.sum()),
        unmatched=int(unmatched),
        rank_uncertainty_ns=clocks.rank_uncertainty_ns,
        interval_ns=clocks.interval_ns,
        drift_ppb={rank: clock.drift_ppb for rank, clock in clocks.of_rank.items() if clock.drift_ppb},
        rungs={str(rung): int(count) for rung, count in by_rung.items()},
        excluded=seen.excluded,
        shifts=seen.shifts,
    )


def _make_empty(gaps: Sequence[Gap]) -> TimeAnalysis:
    return TimeAnalysis(
        time=Time(),
        steps=pd.DataFrame(columns=list(STEP_COLUMNS)),
        collectives=pd.DataFrame(columns=list(COLLECTIVE_COLUMNS)),
        volume=None,
        gaps=tuple(gaps),
    )
