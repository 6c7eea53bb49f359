"""One rank: when communication blocked it, which collective that was, and the ledger of its steps."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s, Intervals, covered, union
from zprof.analysis.time.activity.blocking import find_blocking
from zprof.analysis.time.activity.claims import NOTHING_NS
from zprof.analysis.time.activity.timeline import RankTimeline
from zprof.analysis.time.blame.work import RankWork, rank_work
from zprof.analysis.time.exposure import Exposure, expose
from zprof.analysis.time.kernels.sums import Columns, kernel_sums
from zprof.analysis.time.ledger import idle_spans, noise_floor, rank_time, step_rows
from zprof.analysis.time.transfer.blocked import blocked_ns
from zprof.analysis.time.transfer.instances import Mask
from zprof.analysis.time.transfer.launch import find_launch
from zprof.analysis.time.transfer.members import group_ranks
from zprof.analysis.time.transfer.prefetch import prefetch_columns
from zprof.analysis.time.transfer.texts import codes_of
from zprof.model.gaps import Gap
from zprof.model.time import RankTime


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What is known of one rank; ``collectives`` are those of its steps.

    ``idle``: the instants behind the ledger's idle; ``ran``: when a collective did.  ``wait_before_ns``: how
    long it waited in the first collective of the recording, where that was launched before its steps.
    """

    time: RankTime
    steps: pd.DataFrame
    collectives: pd.DataFrame
    exposure: Exposure
    work: RankWork
    kernels: Columns
    idle: Intervals
    ran: Intervals
    wait_before_ns: int
    gaps: list[Gap]


def analyse_rank(
    timeline: RankTimeline, frame: pd.DataFrame, uncertainty_ns: int, started_ns: Mapping[int, int]
) -> RankResult:
    """Return exposure and ledger of one rank on the common clock.

    Args:
        timeline: The rank's.
        frame: Its collectives, decomposed.
        uncertainty_ns: Of the clocks.
        started_ns: When the recording of each loaded rank had started.
    """
    order = np.lexsort((frame["end_ns"].to_numpy(), frame["start_ns"].to_numpy()))
    frame = _with_steps(timeline, frame.iloc[order], started_ns)
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
        wait_before_ns=_wait_before_ns(frame),
        kernels=kernel_sums(timeline, frame),
        gaps=gaps,
    )


def _with_steps(timeline: RankTimeline, frame: pd.DataFrame, started_ns: Mapping[int, int]) -> pd.DataFrame:
    """Add the step that launched each collective, and whether the start of the profiler is in its waiting.

    Of several steps that is taken from the first of each group: the other steps have the same without it.
    Where that was launched before the first step, the start was waited out there.  Of a single step only what
    was waited before all ranks were recorded is set apart.
    """
    launched = frame["launch_start_ns"].fillna(NOTHING_NS).to_numpy(dtype=np.int64)
    by_start = timeline.steps.step_at(frame["start_ns"].to_numpy(dtype=np.int64))
    by_launch = timeline.host_steps.step_at(launched)
    step = np.where(launched == NOTHING_NS, by_start, by_launch)
    several = len(timeline.steps) > 1
    if not several:
        return frame.assign(step=step, first_of_window=_before_all_started(frame, step, started_ns))
    earlier = (launched != NOTHING_NS) & (launched < int(timeline.host_steps.begin_ns.min()))
    return frame.assign(step=step, first_of_window=_first_of_groups(frame, (step >= 0) | earlier))


def _before_all_started(frame: pd.DataFrame, step: Int64s, started_ns: Mapping[int, int]) -> Mask:
    """Mark collectives most of whose waiting lies before the recording of all of their ranks had started.

    What a rank did before its recording started is not in the trace; what made it late after that is.
    """
    every = max(started_ns.values())
    started = {
        group: max((started_ns[rank] for rank in group_ranks(group) if rank in started_ns), default=every)
        for group in frame["group"].unique().tolist()
    }
    until = frame["group"].map(started).to_numpy(np.int64) if len(frame) else np.empty(0, dtype=np.int64)
    arrival = frame["arrival_ns"].to_numpy(np.int64)
    first = frame["start_ns"].to_numpy(np.int64) - frame["lateness_ns"].to_numpy(np.int64)
    waited = arrival - first
    before = (np.minimum(arrival, until) - first).clip(min=0)
    found: Mask = (step >= 0) & (waited > 0) & (2 * before > waited)
    return found


def started_ns(timeline: RankTimeline) -> int:
    """Return when the recording of a rank had started: from its first event on, and after its first call.

    The first call into a driver that is being profiled may take a third of a second, with nothing on the
    device.
    """
    activity = timeline.activity
    if not len(activity.coverage):
        return int(timeline.host_steps.begin_ns.min())
    call = activity.first_call
    alone = int((call[:, 1] - call[:, 0]).sum()) - int(covered(activity.work, call[:, 0], call[:, 1]).sum())
    return int(activity.coverage[0, 0]) + alone


def _first_of_groups(frame: pd.DataFrame, recorded: Mask) -> Mask:
    """Rows with the least sequence of their group among those that were recorded from their launch on."""
    rows = np.flatnonzero(recorded)
    sequence = frame["sequence"].to_numpy(np.int64)
    (group, _), (method, methods) = codes_of(frame["group"]), codes_of(frame["method"])
    lane = group * len(methods) + method
    least = np.full(int(lane.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, lane[rows], sequence[rows])
    first: Mask = recorded & (sequence == least[lane])
    return first


def _compute_before_wait(timeline: RankTimeline, frame: pd.DataFrame) -> pd.arrays.IntegerArray:
    launch_end, wait_start = frame["launch_end_ns"], frame["wait_start_ns"]
    between = covered(
        timeline.activity.compute,
        launch_end.fillna(0).to_numpy(dtype=np.int64),
        wait_start.fillna(0).to_numpy(dtype=np.int64),
    )
    return pd.arrays.IntegerArray(between, (launch_end.isna() | wait_start.isna()).to_numpy(bool))


def _first_wait_ns(collectives: pd.DataFrame) -> int:
    first = collectives["first_of_window"].to_numpy(bool)
    return int(collectives["exposed_wait_ns"].to_numpy(np.int64)[first].sum())


def _wait_before_ns(collectives: pd.DataFrame) -> int:
    before = collectives["first_of_window"].to_numpy(bool) & (collectives["step"].to_numpy(np.int64) < 0)
    waits = collectives["wait_ns"].to_numpy(np.int64)
    return int(waits[before & collectives["matched"].to_numpy(bool)].max(initial=0))


def unsplit_ns(collectives: pd.DataFrame) -> int:
    """Exposed time in collectives of which not all ranks were seen."""
    bound = collectives["bound"].to_numpy(bool)
    waits, transfers = (
        collectives[name].to_numpy(np.int64)[bound] for name in ("exposed_wait_ns", "exposed_transfer_ns")
    )
    return int(waits.sum() + transfers.sum())
