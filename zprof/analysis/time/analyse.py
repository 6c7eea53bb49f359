"""Measures the time side of a run: tables in, frozen values out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import covered
from zprof.analysis.time.activity.blocking import find_blocking
from zprof.analysis.time.activity.claims import NOTHING_NS
from zprof.analysis.time.activity.missing import no_collectives, not_split
from zprof.analysis.time.activity.timeline import RankTimeline, load_collectives, load_timelines
from zprof.analysis.time.blame.host_calls import read_host_calls
from zprof.analysis.time.blame.judge import judge
from zprof.analysis.time.blame.shares import wait_shares
from zprof.analysis.time.blame.work import RankWork, rank_work
from zprof.analysis.time.exposure import Exposure, expose
from zprof.analysis.time.ledger import STEP_COLUMNS, noise_floor, rank_time, step_rows, step_times
from zprof.analysis.time.synchronise import Synchronised, synchronise
from zprof.analysis.time.tracks import RankTracks, rank_tracks
from zprof.analysis.time.transfer.bandwidth import collective_times
from zprof.analysis.time.transfer.decomposition import decompose
from zprof.analysis.time.transfer.fits import link_fits
from zprof.analysis.time.transfer.launch import find_launch
from zprof.analysis.time.transfer.members import Steps
from zprof.analysis.time.transfer.messages import message_sizes
from zprof.analysis.time.transfer.units import unit_times
from zprof.analysis.time.transfer.volume import measure_volume
from zprof.model.gaps import Gap
from zprof.model.report import Volume
from zprof.model.time import Alignment, RankTime, Time, Window, WindowPolicy
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
    """What is known of a run's time.

    ``steps`` has one row per (rank, step), ``collectives`` one per collective of these steps and rank; a
    collective belongs to the step that launched it.  Times of both are on the common clock.  ``tracks`` has
    the instants behind the sums.
    """

    time: Time
    steps: pd.DataFrame
    collectives: pd.DataFrame
    volume: Volume | None
    gaps: tuple[Gap, ...]
    tracks: tuple[RankTracks, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankResult:
    time: RankTime
    steps: pd.DataFrame
    collectives: pd.DataFrame
    exposure: Exposure
    work: RankWork
    gaps: list[Gap]


def analyse_time(run: Run, policy: WindowPolicy = WindowPolicy.STEP) -> TimeAnalysis:
    """Measure the time window of a run: its steps, or all of it as one stretch."""
    timelines, gaps = load_timelines(run, policy)
    if not timelines:
        return _nothing(gaps)
    seen = synchronise(load_collectives(run, timelines), timelines, run.manifest.world_size)
    clocks = seen.clocks
    timelines = [timeline.on(clocks.of(timeline.rank)) for timeline in timelines]
    frame = decompose(seen.collectives, clocks)
    mine = {int(str(rank)): rows for rank, rows in frame.groupby("rank")}
    ranks = [_analyse_rank(t, mine.get(t.rank, frame.iloc[:0]), clocks.uncertainty_ns) for t in timelines]
    collectives = judge(
        pd.concat([rank.collectives for rank in ranks], ignore_index=True),
        {rank.time.rank: rank.work for rank in ranks},
        lambda rank: read_host_calls(run, rank).on(clocks.of(rank)),
    )
    count = Steps(of_rank={rank.time.rank: rank.time.steps for rank in ranks})
    volume, volume_gaps = measure_volume(collectives, run.manifest.training, count)
    steps = pd.concat([rank.steps for rank in ranks], ignore_index=True)
    time = Time(
        per_rank=tuple(rank.time for rank in ranks),
        collectives=collective_times(collectives, count),
        units=unit_times(collectives, count),
        messages=message_sizes(collectives, count),
        fits=link_fits(collectives),
        blame=wait_shares(collectives, list(count.of_rank), count.each),
        alignment=_alignment(seen, collectives),
        window=_window(policy, timelines),
        steps=step_times(steps),
    )
    rank_gaps = [gap for rank in ranks for gap in rank.gaps]
    return TimeAnalysis(
        time=time,
        steps=steps,
        collectives=collectives[list(COLLECTIVE_COLUMNS)],
        volume=volume,
        gaps=(
            *(*gaps, *seen.gaps, *rank_gaps),
            *_silent_ranks(run, collectives, timelines),
            *_not_split(collectives),
            *volume_gaps,
        ),
        tracks=tuple(
            rank_tracks(timeline, clocks.of(timeline.rank), rank.exposure)
            for timeline, rank in zip(timelines, ranks, strict=True)
        ),
    )


def _analyse_rank(timeline: RankTimeline, frame: pd.DataFrame, uncertainty_ns: int) -> _RankResult:
    frame = _with_steps(timeline, frame.sort_values(["start_ns", "end_ns"], kind="stable"))
    activity = timeline.activity
    blocking, gaps = find_blocking(timeline.rank, activity, timeline.steps, frame)
    exposure = expose(frame["arrival_ns"].to_numpy(dtype=np.int64), blocking)
    launch = find_launch(frame, activity.kernels, activity.kernel_stream)
    frame = frame.assign(
        **launch.columns(frame),
        exposed_wait_ns=exposure.wait_ns,
        exposed_transfer_ns=exposure.transfer_ns,
        hidden_ns=covered(activity.compute, frame["start_ns"], frame["end_ns"]),
        compute_before_wait_ns=_compute_before_wait(timeline, frame),
    )
    rows = step_rows(timeline, blocking, exposure)
    in_steps = frame[frame["step"] >= 0]
    floor = noise_floor(timeline, blocking, in_steps, uncertainty_ns)
    return _RankResult(
        time=rank_time(rows, blocking.method, floor, _first_wait_ns(in_steps), _unsplit_ns(in_steps)),
        steps=rows,
        collectives=in_steps,
        exposure=exposure,
        work=rank_work(activity, exposure, int(timeline.host_steps.begin_ns.min())),
        gaps=gaps,
    )


def _window(policy: WindowPolicy, timelines: Sequence[RankTimeline]) -> Window:
    outside = sum(timeline.outside_ns for timeline in timelines)
    sources = sorted({timeline.source for timeline in timelines})
    return Window(policy=policy, source=", ".join(sources), pre_window_ns=outside // len(timelines))


def _silent_ranks(run: Run, collectives: pd.DataFrame, timelines: Sequence[RankTimeline]) -> list[Gap]:
    ranks = [timeline.rank for timeline in timelines]
    heard = set(collectives["rank"].tolist())
    return no_collectives(ranks, [rank for rank in ranks if rank not in heard], run.manifest.world_size)


def _not_split(collectives: pd.DataFrame) -> list[Gap]:
    exposed = collectives["exposed_wait_ns"] + collectives["exposed_transfer_ns"]
    return not_split(int(exposed.sum()), _unsplit_ns(collectives))


def _unsplit_ns(collectives: pd.DataFrame) -> int:
    bound = collectives[collectives["bound"]]
    return int((bound["exposed_wait_ns"] + bound["exposed_transfer_ns"]).sum())


def _first_wait_ns(collectives: pd.DataFrame) -> int:
    return int(collectives.loc[collectives["first_of_window"], "exposed_wait_ns"].sum())


def _with_steps(timeline: RankTimeline, frame: pd.DataFrame) -> pd.DataFrame:
    """Add the step that launched each collective, and whether it is the first of its group in a window."""
    launched = frame["launch_start_ns"].fillna(NOTHING_NS).to_numpy(dtype=np.int64)
    by_start = timeline.steps.step_at(frame["start_ns"].to_numpy(dtype=np.int64))
    by_launch = timeline.host_steps.step_at(launched)
    frame = frame.assign(step=np.where(launched == NOTHING_NS, by_start, by_launch))
    in_steps = frame[frame["step"] >= 0]
    first = in_steps.groupby(["group", "method"])["sequence"].transform("min") == in_steps["sequence"]
    return frame.assign(first_of_window=first.reindex(frame.index, fill_value=False).astype(bool))


def _compute_before_wait(timeline: RankTimeline, frame: pd.DataFrame) -> "pd.Series[int]":
    launch_end, wait_start = frame["launch_end_ns"], frame["wait_start_ns"]
    known = launch_end.notna() & wait_start.notna()
    between = covered(
        timeline.activity.compute,
        launch_end.fillna(0).to_numpy(dtype=np.int64),
        wait_start.fillna(0).to_numpy(dtype=np.int64),
    )
    return pd.Series(between, index=frame.index, dtype="Int64").where(known)


def _alignment(seen: Synchronised, collectives: pd.DataFrame) -> Alignment:
    """Counts of matched and unmatched collectives are of instances, not of rows."""
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


def _nothing(gaps: Sequence[Gap]) -> TimeAnalysis:
    return TimeAnalysis(
        time=Time(),
        steps=pd.DataFrame(columns=list(STEP_COLUMNS)),
        collectives=pd.DataFrame(columns=list(COLLECTIVE_COLUMNS)),
        volume=None,
        gaps=tuple(gaps),
    )
