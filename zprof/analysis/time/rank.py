"""Measure one rank: what blocked it and when, its step ledger, and its compute.

Kernels in steps are summed by name: alone, and concurrent with collectives. For each kernel, with o = the
part of its duration d in which a collective ran:

    alone         o <= 1 % of d        overlapped    o >= 50 % of d
    excess        d - median duration of at least two kernels that do the same work alone

Kernels do the same work if they and their three neighbours on each side have the same names. On CPU ranks,
the main thread's outermost operators replace kernels, and a collective counts from its last arrival.

Device totals over the entire trace are on the rank's own clock and ignore steps.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zprof.analysis.columns import Column, Columns, Floats, Groups, Mask, OptionalInts, Texts
from zprof.analysis.intervals import (
    Int64s,
    Intervals,
    covered,
    intersect,
    intervals,
    measure,
    subtract,
    union,
)
from zprof.analysis.time.activity import BEFORE_ALL_NS, NamedWork, RankActivity
from zprof.analysis.time.decomposition import (
    find_collective_launches,
    measure_blocked,
    measure_prefetch,
    parse_group_ranks,
)
from zprof.analysis.time.ledger import (
    RankExposure,
    attribute_exposure,
    average_rank_time,
    estimate_noise_floor,
    find_blocking,
    find_idle_spans,
    make_step_columns,
)
from zprof.analysis.time.timeline import RankTimeline, load_collectives, load_timelines
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.time import RankTime, WindowPolicy
from zprof.run.reader import Run

_NEVER = np.iinfo(np.int64).min
ALONE_RATIO = 0.01
OVERLAPPED_RATIO = 0.50
_MIN_ALONE = 2
#: Maximum rows per rank: a hostile trace may have as many names as kernels.
_MAX_NAMES = 256
OTHER_KERNELS = "(others)"

#: One row per rank, name and role. ``role``: compute, copy (a kernel) or memcpy; the last two are copies
#: around collectives. ``median_ns``: of single calls. Sums over the steps: ``total_ns``; ``beside_ns``, its
#: part concurrent with a collective; ``judged_beside_ns`` and ``excess_ns`` over the ``judged_count`` kernels
#: that are not alone and have a known duration when alone; ``uncovered_ns``, the part of copies without
#: concurrent compute. Medians are NaN without values.
KERNEL_COLUMNS = (
    "rank",
    "name",
    "role",
    "count",
    "total_ns",
    "median_ns",
    "beside_ns",
    "alone_count",
    "alone_median_ns",
    "overlapped_count",
    "overlapped_median_ns",
    "judged_count",
    "judged_beside_ns",
    "excess_ns",
    "uncovered_ns",
)
_ROLES = ("compute", "copy", "memcpy")


class RankWork(Struct, frozen=True, kw_only=True):
    """One rank's work on the common clock.

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

    def sum_launched_compute(self, starts: Int64s, ends: Int64s) -> Int64s:
        """Return the total duration of the kernels launched in each interval, regardless of when they ran."""
        total = np.concatenate(([0], np.cumsum(self.kernels[:, 1])))
        low, high = (np.searchsorted(self.kernels[:, 0], bound) for bound in (starts, ends))
        return np.maximum(0, total[high] - total[low])

    def find_ready_times(self, launches: Int64s) -> Int64s:
        """Return the time at which each launch was issued and all earlier compute had finished."""
        finished = np.concatenate(([_NEVER], np.maximum.accumulate(self.kernels[:, 2])))
        before = np.searchsorted(self.kernels[:, 0], launches, side="left")
        return np.maximum(launches, finished[before])

    @property
    def busy(self) -> Intervals:
        """Union of compute, copies and blocked time."""
        return union(self.compute, self.copies, self.blocked)


def make_rank_work(activity: RankActivity, exposure: RankExposure, begin_ns: int) -> RankWork:
    """Return a measured rank's work, for comparison with other ranks."""
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
    """Result of one rank; ``collectives``: all of its rows, sorted by start; ``in_steps`` marks those that
    were launched in its steps. ``steps`` and ``columns``: the columns measured for each step and collective.

    ``idle``: the intervals that make up the ledger's idle term. ``collective_spans``: when a collective ran.
    ``wait_before_ns``: wait in the recording's first collective, if launched before the first step.
    """

    time: RankTime
    steps: Columns
    collectives: Columns
    in_steps: Mask
    columns: Columns
    exposure: RankExposure
    work: RankWork
    kernels: Columns
    idle: Intervals
    collective_spans: Intervals
    wait_before_ns: int
    gaps: list[Gap]


def analyse_rank(
    timeline: RankTimeline,
    rows: Columns,
    uncertainty_ns: int,
    recording_start_ns: Callable[[str], int],
) -> RankResult:
    """Return one rank's exposure and ledger on the common clock.

    Args:
        timeline: Timeline of the rank.
        rows: Its collectives, with wait and transfer split, sorted by start.
        uncertainty_ns: Uncertainty of the clocks.
        recording_start_ns: Returns when all loaded ranks of a group were recording.
    """
    activity = timeline.activity
    launched, waited = rows.known("launch_end_ns"), rows.known("wait_start_ns")
    before_wait_ns = covered(activity.compute, rows.ints("launch_end_ns"), rows.ints("wait_start_ns"))
    step, first_of_window = _find_steps(timeline, rows, recording_start_ns)
    blocking, gaps = find_blocking(timeline.rank, activity, timeline.steps, rows)
    exposure = attribute_exposure(rows.ints("arrival_ns"), blocking)
    launch = find_collective_launches(rows, activity.kernels, activity.kernel_stream)
    in_steps = step >= 0
    is_before = first_of_window & ~in_steps & rows.bools("matched")
    step_columns = make_step_columns(timeline, blocking, exposure)
    noise_floor_ns = estimate_noise_floor(timeline, blocking, int(in_steps.sum()), uncertainty_ns)
    first_wait_ns = int(exposure.wait_ns[in_steps & first_of_window].sum())
    unsplit_ns = int((exposure.wait_ns + exposure.transfer_ns)[in_steps & rows.bools("bound")].sum())
    return RankResult(
        time=average_rank_time(step_columns, blocking.method, noise_floor_ns, first_wait_ns, unsplit_ns),
        steps=step_columns,
        collectives=rows,
        in_steps=in_steps,
        columns=Columns(
            {
                "step": step,
                "first_of_window": first_of_window,
                **launch.make_columns(rows),
                "blocked_ns": measure_blocked(rows, launch, activity.named),
                **measure_prefetch(rows, activity.compute, exposure.moving, step),
                "exposed_wait_ns": exposure.wait_ns,
                "exposed_transfer_ns": exposure.transfer_ns,
                "hidden_ns": covered(activity.compute, rows.ints("start_ns"), rows.ints("end_ns")),
                "compute_before_wait_ns": OptionalInts(before_wait_ns, launched & waited),
            }
        ),
        exposure=exposure,
        work=make_rank_work(activity, exposure, int(timeline.host_steps.begin_ns.min())),
        idle=find_idle_spans(timeline, blocking, exposure),
        collective_spans=union(blocking.running),
        wait_before_ns=int(rows.ints("wait_ns")[is_before].max(initial=0)),
        kernels=sum_kernels(timeline, rows),
        gaps=gaps,
    )


def _find_steps(
    timeline: RankTimeline, rows: Columns, recording_start_ns: Callable[[str], int]
) -> tuple[Int64s, Mask]:
    """Return the step that launched each collective, and mark those whose wait includes profiler start-up.

    With several steps, mark the first collective of each group; later steps have the same collective without
    start-up. If it was launched before the first step, it absorbed the start-up. With one step, mark only
    waits that fall before every rank was recording.
    """
    launched = rows.ints("launch_start_ns", BEFORE_ALL_NS)
    by_start = timeline.steps.step_at(rows.ints("start_ns"))
    by_launch = timeline.host_steps.step_at(launched)
    step = np.where(launched == BEFORE_ALL_NS, by_start, by_launch)
    if len(timeline.steps) <= 1:
        return step, _find_startup_waits(rows, step, recording_start_ns)
    earlier = (launched != BEFORE_ALL_NS) & (launched < int(timeline.host_steps.begin_ns.min()))
    recorded = (step >= 0) | earlier
    group, method, sequence = rows.texts("group"), rows.texts("method"), rows.ints("sequence")
    keys, key = np.unique(group.codes * len(method.words) + method.codes, return_inverse=True)
    min_sequence = np.full(len(keys), np.iinfo(np.int64).max)
    np.minimum.at(min_sequence, key[recorded], sequence[recorded])
    return step, recorded & (sequence == min_sequence[key])


def _find_startup_waits(rows: Columns, step: Int64s, recording_start_ns: Callable[[str], int]) -> Mask:
    """Mark collectives that waited mostly before all of their ranks were recording.

    The trace shows why a rank was late only from the start of its recording.
    """
    groups = rows.texts("group")
    used, position = np.unique(groups.codes, return_inverse=True)
    starts = [recording_start_ns(groups.words[code]) for code in used.tolist()]
    start_by_group = np.array(starts, dtype=np.int64)
    recording_start = start_by_group[position]
    arrival = rows.ints("arrival_ns")
    wait_start = rows.ints("start_ns") - rows.ints("lateness_ns")
    wait = arrival - wait_start
    wait_before_start = (np.minimum(arrival, recording_start) - wait_start).clip(min=0)
    return (step >= 0) & (wait > 0) & (2 * wait_before_start > wait)


class RecordingStarts:
    """Looks up when all of a group's loaded ranks were recording; each group's ranks are parsed once.

    ``by_rank``: start of each loaded rank's recording, on the common clock.
    """

    def __init__(self, by_rank: Mapping[int, int]) -> None:
        self._by_rank = by_rank
        self._latest = max(self._by_rank.values())
        self._by_group: dict[str, int] = {}

    def find_start_ns(self, group: str) -> int:
        """Return the latest start over a group's ranks, or over all ranks if they are unknown."""
        if group not in self._by_group:
            starts = (self._by_rank[rank] for rank in parse_group_ranks(group) if rank in self._by_rank)
            self._by_group[group] = max(starts, default=self._latest)
        return self._by_group[group]


def find_recording_start(timeline: RankTimeline) -> int:
    """Return the start of a rank's recording: its first event plus its first driver call's host time.

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


def sum_kernels(timeline: RankTimeline, collectives: Columns) -> Columns:
    """Return the rows of one rank, with ``KERNEL_COLUMNS``; times are on the common clock."""
    work, named = timeline.activity, timeline.activity.named
    launch, start, end = named.times.T
    in_steps = (timeline.host_steps.step_at(launch) >= 0) & (end > start)
    duration = (end - start)[in_steps]
    # when a collective competes with compute
    until = collectives.ints("end_ns")
    since = np.minimum(collectives.ints("start_ns" if work.on_device else "arrival_ns"), until)
    running = union(intervals(since, until), work.nameless)
    concurrent = covered(running, start[in_steps], end[in_steps])
    is_alone, overlapped = concurrent <= ALONE_RATIO * duration, concurrent >= OVERLAPPED_RATIO * duration
    excess = duration - _measure_alone(group_same_work(named.code)[in_steps], duration, is_alone)
    is_judged = ~is_alone & ~np.isnan(excess)
    group, names, roles = _group_by_name(named, in_steps)
    size = len(names)

    def total(values: "npt.NDArray[np.generic] | None", rows: Mask | slice = slice(None)) -> Int64s:
        weights = None if values is None else values[rows].astype(np.float64)
        return np.bincount(group[rows], weights, size).astype(np.int64)

    times = named.times[in_steps, 1:]
    other = union(named.times[~named.copies, 1:])
    columns: dict[str, Column] = {
        "rank": np.full(size, timeline.rank, dtype=np.int64),
        "name": Texts.of(names),
        "role": Texts.of(roles),
        "count": total(None),
        "total_ns": total(duration),
        "median_ns": group_medians(group, duration, size),
        "beside_ns": total(concurrent),
        "alone_count": total(None, is_alone),
        "alone_median_ns": group_medians(group[is_alone], duration[is_alone], size),
        "overlapped_count": total(None, overlapped),
        "overlapped_median_ns": group_medians(group[overlapped], duration[overlapped], size),
        "judged_count": total(None, is_judged),
        "judged_beside_ns": total(concurrent, is_judged),
        "excess_ns": total(excess, is_judged),
        "uncovered_ns": total(
            np.where(named.copies[in_steps], times[:, 1] - times[:, 0] - covered(other, *times.T), 0)
        ),
    }
    return Columns({name: columns[name] for name in KERNEL_COLUMNS})


def _measure_alone(kind: Int64s, duration: Int64s, is_alone: Mask) -> Floats:
    """Return each kernel's duration when running alone; NaN if unknown."""
    kinds = int(kind.max()) + 1 if len(kind) else 0
    normal = group_medians(kind[is_alone], duration[is_alone], kinds)
    normal[np.bincount(kind[is_alone], minlength=kinds) < _MIN_ALONE] = np.nan
    return normal[kind]


def _group_by_name(named: NamedWork, in_steps: Mask) -> tuple[Int64s, list[str], list[str]]:
    """Return each kernel's row, and each row's name and role; small names share one row."""
    role = named.copies.astype(np.int64) + named.memcpy
    pairs, row = np.unique(named.code[in_steps] * len(_ROLES) + role[in_steps], return_inverse=True)
    names = [named.names[pair // len(_ROLES)] for pair in pairs.tolist()]
    roles = [_ROLES[pair % len(_ROLES)] for pair in pairs.tolist()]
    if len(pairs) <= _MAX_NAMES:
        return row, names, roles
    spent = np.bincount(
        row, (named.times[in_steps, 2] - named.times[in_steps, 1]).astype(np.float64), len(pairs)
    )
    keep = np.sort(np.argsort(-spent, kind="stable")[:_MAX_NAMES])
    group = np.full(len(pairs), len(keep), dtype=np.int64)
    group[keep] = np.arange(len(keep))
    return group[row], [*(names[i] for i in keep), OTHER_KERNELS], [*(roles[i] for i in keep), _ROLES[0]]


#: Neighbouring names on each side: enough to distinguish forward GEMMs from backward GEMMs.
_NEIGHBOURS = 3
_Hashes = npt.NDArray[np.uint64]
_MIX = np.uint64(0x9E3779B97F4A7C15)


def group_same_work(code: Int64s) -> Int64s:
    """Return a group number per kernel, equal for kernels that do the same work; ``code``: name codes in
    order.
    """
    padding = np.full(_NEIGHBOURS, -1, dtype=np.int64)
    words = _mix_bits(np.concatenate((padding, code, padding)).astype(np.uint64))
    hashed = np.zeros(len(code), dtype=np.uint64)
    for offset in range(2 * _NEIGHBOURS + 1):
        hashed = _mix_bits(hashed ^ words[offset : offset + len(code)])
    return np.unique(hashed, return_inverse=True)[1].astype(np.int64)


def _mix_bits(values: _Hashes) -> _Hashes:
    """Spread values over all bits, as the finaliser of splitmix64 does, but without its first xor-shift."""
    values = (values + _MIX) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def group_medians(group: Int64s, values: Int64s, groups: int) -> Floats:
    """Return each group's median, for groups 0 ... groups - 1; NaN for an empty group."""
    medians = np.full(groups, np.nan)
    found = Groups(group)
    medians[group[found.first]] = found.median(values)
    return medians


class DeviceTotals(Struct, frozen=True, kw_only=True):
    """Total time of each kind, from the start of the first kernel or copy to the end of the last one.

    Compute, communication and memory may overlap, so they need not sum to the span; idle is the rest of the
    span. ``overlapped_ns``: communication hidden by compute.
    """

    rank: int
    span_ns: int
    compute_ns: int
    communication_ns: int
    memory_ns: int
    overlapped_ns: int
    idle_ns: int

    @property
    def overlap_ratio(self) -> float | None:
        """Share of the communication hidden by compute; None if there is none."""
        return self.overlapped_ns / self.communication_ns if self.communication_ns else None


def measure_device_totals(
    run: Run, ranks: Sequence[int] | None = None
) -> tuple[list[DeviceTotals], list[Gap]]:
    """Return the totals of ranks with device work in their trace, and gaps for other ranks."""
    timelines, gaps = load_timelines(run, WindowPolicy.TRACE)
    selected = [timeline for timeline in timelines if ranks is None or timeline.rank in ranks]
    totals: list[DeviceTotals] = []
    collectives = load_collectives(selected) if selected else None
    for timeline in selected:
        if not timeline.activity.on_device or collectives is None:
            gaps.append(make_gap("device_work_missing", rank=timeline.rank))
            continue
        rows = collectives.at(collectives.ints("rank") == timeline.rank)
        spans = intervals(rows.ints("start_ns"), rows.ints("end_ns"))
        compute, copies = timeline.activity.compute, timeline.activity.copies
        communication = union(spans, timeline.activity.nameless)
        busy = union(compute, communication, copies)
        span_ns = int(busy[-1, 1] - busy[0, 0]) if len(busy) else 0
        totals.append(
            DeviceTotals(
                rank=timeline.rank,
                span_ns=span_ns,
                compute_ns=measure(compute),
                communication_ns=measure(communication),
                memory_ns=measure(copies),
                overlapped_ns=measure(intersect(compute, communication)),
                idle_ns=span_ns - measure(busy),
            )
        )
    return totals, gaps
