"""Measure one rank: what blocked it and when, its step ledger, and its compute."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from msgspec import Struct

from zprof.analysis.intervals import Int64s, Intervals, covered, subtract, union
from zprof.analysis.time.activity import RankActivity
from zprof.analysis.time.blocking import BEFORE_ALL_NS, RankExposure, attribute_exposure, find_blocking
from zprof.analysis.time.collective_rows import Mask, factorize_texts, parse_group_ranks
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


class RankWork(Struct, frozen=True, kw_only=True):
    """Work of one rank on the common clock.

    ``blocked``: intervals blocked by a collective. ``copies``: copies outside compute and blocked time.
    ``kernels``: launch, duration and end of each compute kernel of a device, sorted by launch. ``begin_ns``:
    start of the window.
    """

    on_device: bool
    begin_ns: int
    compute: Intervals
    copies: Intervals
    blocked: Intervals
    kernels: Int64s

    def measure_compute(self, starts: Int64s, ends: Int64s) -> Int64s:
        """Return the compute time within each interval."""
        return covered(self.compute, starts, ends)

    def sum_launched_compute(self, starts: Int64s, ends: Int64s) -> Int64s:
        """Return the duration of the kernels launched in each interval, regardless of when they ran."""
        total = np.concatenate(([0], np.cumsum(self.kernels[:, 1])))
        low, high = (np.searchsorted(self.kernels[:, 0], bound) for bound in (starts, ends))
        compute_ns: Int64s = np.maximum(0, total[high] - total[low])
        return compute_ns

    def find_ready_times(self, launches: Int64s) -> Int64s:
        """Return the time at which each launch was issued and all earlier compute had finished."""
        finished = np.concatenate(([_NEVER], np.maximum.accumulate(self.kernels[:, 2])))
        before = np.searchsorted(self.kernels[:, 0], launches, side="left")
        ready: Int64s = np.maximum(launches, finished[before])
        return ready

    def measure_copies(self, starts: Int64s, ends: Int64s) -> Int64s:
        """Return the time of exposed copies within each interval."""
        return covered(self.copies, starts, ends)

    def measure_blocked_time(self, starts: Int64s, ends: Int64s) -> Int64s:
        """Return the blocked time within each interval."""
        return covered(self.blocked, starts, ends)

    @property
    def busy(self) -> Intervals:
        """Union of compute, copies and blocked time."""
        return union(self.compute, self.copies, self.blocked)

    def measure_idle(self, starts: Int64s, ends: Int64s) -> Int64s:
        """Return the time within each interval that is neither compute, copies nor blocked."""
        idle: Int64s = np.maximum(0, ends - starts) - covered(self.busy, starts, ends)
        return idle


def make_rank_work(activity: RankActivity, exposure: RankExposure, begin_ns: int) -> RankWork:
    """Return the work of a measured rank, for comparison with other ranks."""
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


class RankResult(Struct, frozen=True, kw_only=True):
    """Result of one rank; ``collectives``: those launched in its steps.

    ``idle``: the intervals that make up the ledger's idle term. ``collective_spans``: when a collective ran.
    ``wait_before_ns``: wait in the recording's first collective, if launched before the first step.
    """

    time: RankTime
    steps: pd.DataFrame
    collectives: pd.DataFrame
    exposure: RankExposure
    work: RankWork
    kernels: KernelColumns
    idle: Intervals
    collective_spans: Intervals
    wait_before_ns: int
    gaps: list[Gap]


def analyse_rank(
    timeline: RankTimeline, frame: pd.DataFrame, uncertainty_ns: int, recording_start_ns: Mapping[int, int]
) -> RankResult:
    """Return exposure and ledger of one rank on the common clock.

    Args:
        timeline: Timeline of the rank.
        frame: Its collectives, with wait and transfer split.
        uncertainty_ns: Uncertainty of the clocks.
        recording_start_ns: Start of each loaded rank's recording.
    """
    order = np.lexsort((frame["end_ns"].to_numpy(), frame["start_ns"].to_numpy()))
    frame = _add_steps(timeline, frame.iloc[order], recording_start_ns)
    activity = timeline.activity
    blocking, gaps = find_blocking(timeline.rank, activity, timeline.steps, frame)
    exposure = attribute_exposure(frame["arrival_ns"].to_numpy(dtype=np.int64), blocking)
    launch = find_collective_launches(frame, activity.kernels, activity.kernel_stream)
    frame = frame.assign(
        **launch.make_columns(frame),
        blocked_ns=measure_blocked(frame, launch, activity.named),
        **measure_prefetch(frame, activity.compute, exposure.moving),
        exposed_wait_ns=exposure.wait_ns,
        exposed_transfer_ns=exposure.transfer_ns,
        hidden_ns=covered(activity.compute, frame["start_ns"], frame["end_ns"]),
        compute_before_wait_ns=_measure_compute_before_wait(timeline, frame),
    )
    rows = make_step_rows(timeline, blocking, exposure)
    in_steps = frame[frame["step"] >= 0]
    noise_floor_ns = estimate_noise_floor(timeline, blocking, in_steps, uncertainty_ns)
    return RankResult(
        time=average_rank_time(
            rows, blocking.method, noise_floor_ns, _sum_startup_waits(in_steps), sum_unsplit_exposed(in_steps)
        ),
        steps=rows,
        collectives=in_steps,
        exposure=exposure,
        work=make_rank_work(activity, exposure, int(timeline.host_steps.begin_ns.min())),
        idle=find_idle_spans(timeline, blocking, exposure),
        collective_spans=union(blocking.running),
        wait_before_ns=_find_wait_before_steps(frame),
        kernels=sum_kernels(timeline, frame),
        gaps=gaps,
    )


def _add_steps(
    timeline: RankTimeline, frame: pd.DataFrame, recording_start_ns: Mapping[int, int]
) -> pd.DataFrame:
    """Add the step that launched each collective, and mark those whose wait includes profiler start-up.

    With several steps, mark the first collective of each group; later steps have the same collective without
    start-up. If it was launched before the first step, it absorbed the start-up. With one step, mark only
    waits that fall before every rank was recording.
    """
    launched = frame["launch_start_ns"].fillna(BEFORE_ALL_NS).to_numpy(dtype=np.int64)
    by_start = timeline.steps.step_at(frame["start_ns"].to_numpy(dtype=np.int64))
    by_launch = timeline.host_steps.step_at(launched)
    step = np.where(launched == BEFORE_ALL_NS, by_start, by_launch)
    has_several_steps = len(timeline.steps) > 1
    if not has_several_steps:
        return frame.assign(step=step, first_of_window=_find_startup_waits(frame, step, recording_start_ns))
    earlier = (launched != BEFORE_ALL_NS) & (launched < int(timeline.host_steps.begin_ns.min()))
    return frame.assign(step=step, first_of_window=_find_first_of_groups(frame, (step >= 0) | earlier))


def _find_startup_waits(frame: pd.DataFrame, step: Int64s, recording_start_ns: Mapping[int, int]) -> Mask:
    """Mark collectives that waited mostly before all their ranks were recording.

    The trace shows why a rank was late only from the start of its recording.
    """
    latest_start = max(recording_start_ns.values())
    start_by_group = {
        group: max(
            (recording_start_ns[rank] for rank in parse_group_ranks(group) if rank in recording_start_ns),
            default=latest_start,
        )
        for group in frame["group"].unique().tolist()
    }
    recording_start = (
        frame["group"].map(start_by_group).to_numpy(np.int64) if len(frame) else np.empty(0, dtype=np.int64)
    )
    arrival = frame["arrival_ns"].to_numpy(np.int64)
    wait_start = frame["start_ns"].to_numpy(np.int64) - frame["lateness_ns"].to_numpy(np.int64)
    wait = arrival - wait_start
    wait_before_start = (np.minimum(arrival, recording_start) - wait_start).clip(min=0)
    is_startup: Mask = (step >= 0) & (wait > 0) & (2 * wait_before_start > wait)
    return is_startup


def find_recording_start(timeline: RankTimeline) -> int:
    """Return the start of a rank's recording: its first event plus the host time of its first driver call.

    The first call into a profiled driver may take 0.3 s while the device is idle.
    """
    activity = timeline.activity
    if not len(activity.coverage):
        return int(timeline.host_steps.begin_ns.min())
    call = activity.first_call
    host_only_ns = int((call[:, 1] - call[:, 0]).sum()) - int(
        covered(activity.work, call[:, 0], call[:, 1]).sum()
    )
    return int(activity.coverage[0, 0]) + host_only_ns


def _find_first_of_groups(frame: pd.DataFrame, recorded: Mask) -> Mask:
    """Mark the rows with the lowest sequence number of their group among the ``recorded`` rows."""
    rows = np.flatnonzero(recorded)
    sequence = frame["sequence"].to_numpy(np.int64)
    (group, _), (method, methods) = factorize_texts(frame["group"]), factorize_texts(frame["method"])
    group_key = group * len(methods) + method
    min_sequence = np.full(int(group_key.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(min_sequence, group_key[rows], sequence[rows])
    first: Mask = recorded & (sequence == min_sequence[group_key])
    return first


def _measure_compute_before_wait(timeline: RankTimeline, frame: pd.DataFrame) -> pd.arrays.IntegerArray:
    launch_end, wait_start = frame["launch_end_ns"], frame["wait_start_ns"]
    between = covered(
        timeline.activity.compute,
        launch_end.fillna(0).to_numpy(dtype=np.int64),
        wait_start.fillna(0).to_numpy(dtype=np.int64),
    )
    return pd.arrays.IntegerArray(between, (launch_end.isna() | wait_start.isna()).to_numpy(bool))


def _sum_startup_waits(collectives: pd.DataFrame) -> int:
    first = collectives["first_of_window"].to_numpy(bool)
    return int(collectives["exposed_wait_ns"].to_numpy(np.int64)[first].sum())


def _find_wait_before_steps(collectives: pd.DataFrame) -> int:
    before = collectives["first_of_window"].to_numpy(bool) & (collectives["step"].to_numpy(np.int64) < 0)
    waits = collectives["wait_ns"].to_numpy(np.int64)
    return int(waits[before & collectives["matched"].to_numpy(bool)].max(initial=0))


def sum_unsplit_exposed(collectives: pd.DataFrame) -> int:
    """Return the exposed time in collectives that are missing some ranks."""
    bound = collectives["bound"].to_numpy(bool)
    waits, transfers = (
        collectives[name].to_numpy(np.int64)[bound] for name in ("exposed_wait_ns", "exposed_transfer_ns")
    )
    return int(waits.sum() + transfers.sum())
