"""One rank: when communication blocked it, which collective that was, and the ledger of its steps."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Intervals, covered, union
from zprof.analysis.time.activity.blocking import find_blocking
from zprof.analysis.time.activity.claims import NOTHING_NS
from zprof.analysis.time.activity.timeline import RankTimeline
from zprof.analysis.time.blame.work import RankWork, rank_work
from zprof.analysis.time.exposure import Exposure, expose
from zprof.analysis.time.kernels.sums import Columns, kernel_sums
from zprof.analysis.time.ledger import idle_spans, noise_floor, rank_time, step_rows
from zprof.analysis.time.transfer.blocked import blocked_ns
from zprof.analysis.time.transfer.launch import find_launch
from zprof.analysis.time.transfer.prefetch import prefetch_columns
from zprof.model.gaps import Gap
from zprof.model.time import RankTime


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What is known of one rank; ``collectives`` are those of its steps.

    ``idle``: the instants behind the ledger's idle; ``ran``: when a collective did.
    """

    time: RankTime
    steps: pd.DataFrame
    collectives: pd.DataFrame
    exposure: Exposure
    work: RankWork
    kernels: Columns
    idle: Intervals
    ran: Intervals
    gaps: list[Gap]


def analyse_rank(timeline: RankTimeline, frame: pd.DataFrame, uncertainty_ns: int) -> RankResult:
    """Exposure and ledger of one rank on the common clock, from its decomposed collectives."""
    frame = _with_steps(timeline, frame.sort_values(["start_ns", "end_ns"], kind="stable"))
    activity = timeline.activity
    blocking, gaps = find_blocking(timeline.rank, activity, timeline.steps, frame)
    exposure = expose(frame["arrival_ns"].to_numpy(dtype=np.int64), blocking)
    launch = find_launch(frame, activity.kernels, activity.kernel_stream)
    frame = frame.assign(
        **launch.columns(frame),
        blocked_ns=blocked_ns(frame, launch, activity.named),
        **prefetch_columns(frame, activity.compute, exposure.moving),
        exposed_wait_ns=exposure.wait_ns,
        exposed_transfer_ns=exposure.transfer_ns,
        hidden_ns=covered(activity.compute, frame["start_ns"], frame["end_ns"]),
        compute_before_wait_ns=_compute_before_wait(timeline, frame),
    )
    rows = step_rows(timeline, blocking, exposure)
    in_steps = frame[frame["step"] >= 0]
    floor = noise_floor(timeline, blocking, in_steps, uncertainty_ns)
    return RankResult(
        time=rank_time(rows, blocking.method, floor, _first_wait_ns(in_steps), unsplit_ns(in_steps)),
        steps=rows,
        collectives=in_steps,
        exposure=exposure,
        work=rank_work(activity, exposure, int(timeline.host_steps.begin_ns.min())),
        idle=idle_spans(timeline, blocking, exposure),
        ran=union(blocking.running),
        kernels=kernel_sums(timeline, frame),
        gaps=gaps,
    )


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


def _first_wait_ns(collectives: pd.DataFrame) -> int:
    return int(collectives.loc[collectives["first_of_window"], "exposed_wait_ns"].sum())


def unsplit_ns(collectives: pd.DataFrame) -> int:
    """Exposed time in collectives of which not all ranks were seen."""
    bound = collectives[collectives["bound"]]
    return int((bound["exposed_wait_ns"] + bound["exposed_transfer_ns"]).sum())
