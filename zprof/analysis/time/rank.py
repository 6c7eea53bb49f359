"""Measure one rank: when and by which collective it was blocked, its step ledger, and its work."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s, Intervals, covered, subtract, union
from zprof.analysis.time.activity import Activity
from zprof.analysis.time.blocking import BEFORE_ALL_NS, Exposure, attribute_exposure, find_blocking
from zprof.analysis.time.collective_rows import Mask, encode_texts, parse_group_ranks
from zprof.analysis.time.kernels import KernelColumns, sum_kernels
from zprof.analysis.time.ledger import (
    average_rank_time,
    estimate_noise_floor,
    find_idle_spans,
    make_step_rows,
)
from zprof.analysis.time.timeline import RankTimeline
from zprof.analysis.time.transfer.launch_delays import (
    find_collective_launches,
    measure_blocked,
    measure_prefetch,
)
from zprof.model.gaps import Gap
from zprof.model.time import RankTime

_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """Work of one rank on the common clock.

    ``blocked``: held up by a collective. ``copies``: copies outside both compute and blocked time.
    ``kernels``: launch, duration and end of each compute kernel of a device, sorted by launch. ``begin_ns``:
    start of the window.
    """

    on_device: bool
    begin_ns: int
    compute: Intervals
    copies: Intervals
    blocked: Intervals
    kernels: Int64s

    def computed(self, starts: Int64s, ends: Int64s) -> Int64s:
        """Return the compute time within each interval."""
        return covered(self.compute, starts, ends)

    def computed_in_program(self, launched_from: Int64s, launched_to: Int64s) -> Int64s:
        """Return the duration of the kernels launched in each interval of the program, whenever they ran."""
        total = np.concatenate(([0], np.cumsum(self.kernels[:, 1])))
        low, high = (np.searchsorted(self.kernels[:, 0], edge) for edge in (launched_from, launched_to))
        computed: Int64s = np.maximum(0, total[high] - total[low])
        return computed

    def reached(self, launches: Int64s) -> Int64s:
        """Return when each point of the program was reached: launched, and all compute before it finished."""
        done = np.concatenate(([_NEVER], np.maximum.accumulate(self.kernels[:, 2])))
        before = np.searchsorted(self.kernels[:, 0], launches, side="left")
        reached: Int64s = np.maximum(launches, done[before])
        return reached

    def copied(self, starts: Int64s, ends: Int64s) -> Int64s:
        """Return the time of exposed copies within each interval."""
        return covered(self.copies, starts, ends)

    def held_up(self, starts: Int64s, ends: Int64s) -> Int64s:
        """Return the blocked time within each interval."""
        return covered(self.blocked, starts, ends)

    @property
    def busy(self) -> Intervals:
        """Union of compute, copies and blocked time."""
        return union(self.compute, self.copies, self.blocked)

    def idle(self, starts: Int64s, ends: Int64s) -> Int64s:
        """Return the time within each interval that is neither compute, copies nor blocked."""
        idle: Int64s = np.maximum(0, ends - starts) - covered(self.busy, starts, ends)
        return idle


def make_rank_work(activity: Activity, exposure: Exposure, begin_ns: int) -> RankWork:
    """Return the work of a measured rank that other ranks are compared with."""
    blocked = union(exposure.waiting, exposure.moving)
    order = np.argsort(activity.kernels[:, 0], kind="stable")
    launch, start, end = activity.kernels[order].T
    return RankWork(
        on_device=activity.on_device,
        begin_ns=begin_ns,
        compute=activity.compute,
        copies=subtract(activity.copies, union(activity.compute, blocked)),
        blocked=blocked,
        kernels=np.column_stack((launch, end - start, end)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """Result of one rank; ``collectives`` are those of its steps.

    ``idle``: the intervals behind the ledger's idle term. ``ran``: when a collective ran. ``wait_before_ns``:
    the wait in the first collective of the recording, if that was launched before the rank's steps.
    """

    time: RankTime
    steps: pd.DataFrame
    collectives: pd.DataFrame
    exposure: Exposure
    work: RankWork
    kernels: KernelColumns
    idle: Intervals
    ran: Intervals
    wait_before_ns: int
    gaps: list[Gap]


def analyse_rank(
    timeline: RankTimeline, frame: pd.DataFrame, uncertainty_ns: int, started_ns: Mapping[int, int]
) -> RankResult:
    """Return exposure and ledger of one rank on the common clock.

    Args:
        timeline: Timeline of the rank.
        frame: Its collectives, decomposed.
        uncertainty_ns: Uncertainty of the clocks.
        started_ns: When the recording of each loaded rank had started.
    """
    order = np.lexsort((frame["end_ns"].to_numpy(), frame["start_ns"].to_numpy()))
    frame = _add_steps(timeline, frame.iloc[order], started_ns)
    activity = timeline.activity
    blocking, gaps = find_blocking(timeline.rank, activity, timeline.steps, frame)
    exposure = attribute_exposure(frame["arrival_ns"].to_numpy(dtype=np.int64), blocking)
    launch = find_collective_launches(frame, activity.kernels, activity.kernel_stream)
    frame = frame.assign(
        **launch.columns(frame),
        blocked_ns=measure_blocked(frame, launch, activity.named),
        **measure_prefetch(frame, activity.compute, exposure.moving),
        exposed_wait_ns=exposure.wait_ns,
        exposed_transfer_ns=exposure.transfer_ns,
        hidden_ns=covered(activity.compute, frame["start_ns"], frame["end_ns"]),
        compute_before_wait_ns=_measure_compute_before_wait(timeline, frame),
    )
    rows = make_step_rows(timeline, blocking, exposure)
    in_steps = frame[frame["step"] >= 0]
    floor = estimate_noise_floor(timeline, blocking, in_steps, uncertainty_ns)
    return RankResult(
        time=average_rank_time(
            rows, blocking.method, floor, _sum_first_waits(in_steps), sum_unsplit(in_steps)
        ),
        steps=rows,
        collectives=in_steps,
        exposure=exposure,
        work=make_rank_work(activity, exposure, int(timeline.host_steps.begin_ns.min())),
        idle=find_idle_spans(timeline, blocking, exposure),
        ran=union(blocking.running),
        wait_before_ns=_find_wait_before(frame),
        kernels=sum_kernels(timeline, frame),
        gaps=gaps,
    )


def _add_steps(timeline: RankTimeline, frame: pd.DataFrame, started_ns: Mapping[int, int]) -> pd.DataFrame:
    """Add the step that launched each collective, and whether its wait includes the start of the profiler.

    With several steps, the first collective of each group is marked; the other steps contain the same
    collective without the start. If that first one was launched before the first step, the start was waited
    out there. With a single step, only the wait before all ranks were recorded is marked.
    """
    launched = frame["launch_start_ns"].fillna(BEFORE_ALL_NS).to_numpy(dtype=np.int64)
    by_start = timeline.steps.step_at(frame["start_ns"].to_numpy(dtype=np.int64))
    by_launch = timeline.host_steps.step_at(launched)
    step = np.where(launched == BEFORE_ALL_NS, by_start, by_launch)
    several = len(timeline.steps) > 1
    if not several:
        return frame.assign(step=step, first_of_window=_find_started_early(frame, step, started_ns))
    earlier = (launched != BEFORE_ALL_NS) & (launched < int(timeline.host_steps.begin_ns.min()))
    return frame.assign(step=step, first_of_window=_find_first_of_groups(frame, (step >= 0) | earlier))


def _find_started_early(frame: pd.DataFrame, step: Int64s, started_ns: Mapping[int, int]) -> Mask:
    """Mark collectives with most of their wait before the recording of all their ranks had started.

    What a rank did before its recording started is not in the trace; what made it late after that is.
    """
    every = max(started_ns.values())
    started = {
        group: max(
            (started_ns[rank] for rank in parse_group_ranks(group) if rank in started_ns), default=every
        )
        for group in frame["group"].unique().tolist()
    }
    until = frame["group"].map(started).to_numpy(np.int64) if len(frame) else np.empty(0, dtype=np.int64)
    arrival = frame["arrival_ns"].to_numpy(np.int64)
    first = frame["start_ns"].to_numpy(np.int64) - frame["lateness_ns"].to_numpy(np.int64)
    waited = arrival - first
    before = (np.minimum(arrival, until) - first).clip(min=0)
    found: Mask = (step >= 0) & (waited > 0) & (2 * before > waited)
    return found


def find_recording_start(timeline: RankTimeline) -> int:
    """Return when the recording of a rank had started: at its first event, plus the first call's own time.

    The first call into a profiled driver may take a third of a second, with nothing on the device.
    """
    activity = timeline.activity
    if not len(activity.coverage):
        return int(timeline.host_steps.begin_ns.min())
    call = activity.first_call
    alone = int((call[:, 1] - call[:, 0]).sum()) - int(covered(activity.work, call[:, 0], call[:, 1]).sum())
    return int(activity.coverage[0, 0]) + alone


def _find_first_of_groups(frame: pd.DataFrame, recorded: Mask) -> Mask:
    """Mark the rows with the lowest sequence of their group among those recorded from their launch on."""
    rows = np.flatnonzero(recorded)
    sequence = frame["sequence"].to_numpy(np.int64)
    (group, _), (method, methods) = encode_texts(frame["group"]), encode_texts(frame["method"])
    lane = group * len(methods) + method
    least = np.full(int(lane.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, lane[rows], sequence[rows])
    first: Mask = recorded & (sequence == least[lane])
    return first


def _measure_compute_before_wait(timeline: RankTimeline, frame: pd.DataFrame) -> pd.arrays.IntegerArray:
    launch_end, wait_start = frame["launch_end_ns"], frame["wait_start_ns"]
    between = covered(
        timeline.activity.compute,
        launch_end.fillna(0).to_numpy(dtype=np.int64),
        wait_start.fillna(0).to_numpy(dtype=np.int64),
    )
    return pd.arrays.IntegerArray(between, (launch_end.isna() | wait_start.isna()).to_numpy(bool))


def _sum_first_waits(collectives: pd.DataFrame) -> int:
    first = collectives["first_of_window"].to_numpy(bool)
    return int(collectives["exposed_wait_ns"].to_numpy(np.int64)[first].sum())


def _find_wait_before(collectives: pd.DataFrame) -> int:
    before = collectives["first_of_window"].to_numpy(bool) & (collectives["step"].to_numpy(np.int64) < 0)
    waits = collectives["wait_ns"].to_numpy(np.int64)
    return int(waits[before & collectives["matched"].to_numpy(bool)].max(initial=0))


def sum_unsplit(collectives: pd.DataFrame) -> int:
    """Return the exposed time in collectives of which not all ranks were seen."""
    bound = collectives["bound"].to_numpy(bool)
    waits, transfers = (
        collectives[name].to_numpy(np.int64)[bound] for name in ("exposed_wait_ns", "exposed_transfer_ns")
    )
    return int(waits.sum() + transfers.sum())
