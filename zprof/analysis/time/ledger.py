"""Compute the step ledger: each step's wall time, split into terms that sum to it exactly.

    wall = compute + exposed_wait + exposed_transfer + exposed_memcpy + idle + unexplained

Idle is the remainder: the device has no work, or the main thread neither computes nor is blocked on a
collective. Unexplained is time without information in the trace: before its first and after its last event,
waits without a recorded collective, and communication kernels without a collective. Separately, collective =
overlapped + exposed_wait + exposed_transfer. This module also provides the intervals behind the sums (tracks)
and the variation of step times.

A device is blocked by a running collective whenever it does not compute; a CPU rank is blocked in its main
thread's wait spans. If no waits were recorded, gaps between operators longer than 300 µs are used as an upper
bound. Several collectives may run at once, so each blocked moment is assigned to exactly one: the running
collective that the thread, or the compute after the gap, waits for; else the running collective that started
first.
"""

import itertools
from collections.abc import Sequence
from math import sqrt

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import fields

from zprof.analysis.columns import Columns, Groups, Mask
from zprof.analysis.intervals import (
    EMPTY,
    Int64s,
    Intervals,
    covered,
    intersect,
    intervals,
    subtract,
    union,
)
from zprof.analysis.time.activity import AFTER_ALL_NS, BEFORE_ALL_NS, RankActivity
from zprof.analysis.time.clocks import RankClock
from zprof.analysis.time.steps import StepWindows
from zprof.analysis.time.timeline import RankTimeline
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.quantities import Bound, Bounds
from zprof.model.time import LEDGER_TERMS, SPLIT_BOUNDS, RankTime, StepTime

KERNELS = "kernels"
WAIT_SPANS = "wait spans"
UPPER_BOUND = "aten gap upper bound"
MIXED = "wait spans, and aten gaps as upper bound for collectives without a recorded wait"
MIN_HOLE_NS = 300_000
#: Maximum number of collectives without a recorded wait for exact times: one in flight at each end.
_MAX_WITHOUT_WAIT = 2
STEP_COLUMNS = ("rank", "step", "wall_ns", *LEDGER_TERMS, "overlapped_ns", "collective_ns", "memcpy_ns")
_EXPOSED = ("exposed_wait_ns", "exposed_transfer_ns")
#: Below this share of all exposed time, exposed time that cannot be split is negligible.
_MIN_UNSPLIT_RATIO = 0.01
#: Profiler overhead at each edge of an interval.
STAMP_NS = 1_000
_MIN_STEPS = 3


class Blocking(Struct, frozen=True, kw_only=True):
    """A rank's blocked time. ``unexplained``: blocked while no known collective ran.

    ``running`` and ``awaited`` have one row per collective, in table order. ``running``: when it can block
    the rank (empty for a host collective on a rank that computes on a device); ``awaited``: when the rank is
    known to wait for it.
    """

    blocked: Intervals
    unexplained: Intervals
    method: str
    running: Intervals
    awaited: Intervals


def find_blocking(
    rank: int, activity: RankActivity, steps: StepWindows, collectives: Columns
) -> tuple[Blocking, list[Gap]]:
    """Return one rank's blocked time in its steps, and gaps if its waits are unknown."""
    if activity.on_device:
        return _find_device_blocking(activity, steps, collectives), []
    inside = steps.step_at(collectives.ints("start_ns")) >= 0
    without_wait = np.flatnonzero(inside & ~collectives.known("wait_start_ns"))
    open_waits = activity.anonymous_waits[~_starts_known_wait(activity.anonymous_waits, collectives, inside)]
    has_waits = len(intersect(activity.waits, steps.spans)) > 0 or not len(without_wait)
    if has_waits and len(without_wait) - len(intersect(open_waits, steps.spans)) <= max(
        _MAX_WITHOUT_WAIT, int(inside.sum()) // 10
    ):
        return _make_host_blocking(activity, collectives, EMPTY, WAIT_SPANS), []
    within = intersect(steps.spans, activity.coverage)
    holes = subtract(within, union(activity.compute, activity.waits, activity.copies))
    holes = holes[holes[:, 1] - holes[:, 0] > MIN_HOLE_NS]
    if not has_waits:
        return _make_host_blocking(activity, collectives, holes, UPPER_BOUND), [
            make_gap("waits_not_recorded", rank=rank)
        ]
    spans = _list_collective_spans(collectives)[without_wait]
    unseen_collectives = spans[~_ends_in_wait(activity.waits, spans[:, 1])]
    holes_in_collectives = intersect(holes, unseen_collectives)
    if not len(holes_in_collectives):
        return _make_host_blocking(activity, collectives, EMPTY, WAIT_SPANS), []
    return _make_host_blocking(activity, collectives, holes_in_collectives, MIXED), [
        make_gap("some_waits_not_recorded", rank=rank, collectives=len(unseen_collectives))
    ]


def _find_device_blocking(activity: RankActivity, steps: StepWindows, collectives: Columns) -> Blocking:
    start = collectives.ints("start_ns")
    running = intervals(start, np.where(collectives.known("stream"), collectives.ints("end_ns"), start))
    launched = collectives.ints("launch_start_ns", BEFORE_ALL_NS)
    return Blocking(
        blocked=subtract(steps.spans, activity.compute),
        unexplained=subtract(activity.nameless, running),
        method=KERNELS,
        running=running,
        awaited=find_awaited_by_compute(running, launched, activity.compute, activity.awaits_until),
    )


def _make_host_blocking(
    activity: RankActivity, collectives: Columns, holes: Intervals, method: str
) -> Blocking:
    running = _list_collective_spans(collectives)
    waits = activity.waits
    explained = _starts_known_wait(waits, collectives) | (covered(running, waits[:, 0], waits[:, 1]) > 0)
    wait_start, wait_end = (collectives.ints(name) for name in ("wait_start_ns", "wait_end_ns"))
    start, end = _list_collective_spans(collectives).T
    return Blocking(
        blocked=union(waits, holes),
        unexplained=waits[~explained],
        method=method,
        running=running,
        awaited=share_by_first_start(np.maximum(start, wait_start), np.minimum(end, wait_end)),
    )


def _starts_known_wait(
    waits: Intervals, collectives: Columns, rows: Mask | bool = True
) -> npt.NDArray[np.bool_]:
    """Mark the waits that start at the recorded wait start of one of these collectives."""
    known = collectives.known("wait_start_ns") & rows
    return np.isin(waits[:, 0], collectives.ints("wait_start_ns")[known])


def _ends_in_wait(waits: Intervals, end: Int64s) -> npt.NDArray[np.bool_]:
    """Mark the collectives that end inside a wait, which was then probably for them."""
    merged = union(waits)
    index = np.searchsorted(merged[:, 0], end, side="right") - 1
    return (index >= 0) & (end <= merged[np.maximum(index, 0), 1])


def _list_collective_spans(collectives: Columns) -> Intervals:
    return intervals(collectives.ints("start_ns"), collectives.ints("end_ns"))


class RankExposure(Struct, frozen=True, kw_only=True):
    """One rank's exposed time, as intervals and per collective in table order."""

    waiting: Intervals
    moving: Intervals
    wait_ns: Int64s
    transfer_ns: Int64s


def attribute_exposure(arrival_ns: Int64s, blocking: Blocking) -> RankExposure:
    """Attribute one rank's blocked time to its collectives, split into wait and transfer.

    Args:
        arrival_ns: Each collective's start on the last rank.
        blocking: When the rank is blocked, and by which collective.
    """
    queued = share_by_first_start(*blocking.running.T)
    unclaimed = subtract(blocking.blocked, blocking.awaited)
    parts = [
        _split_at_arrival(blocking.awaited, arrival_ns, blocking.blocked),
        _split_at_arrival(queued, arrival_ns, unclaimed),
    ]
    return RankExposure(
        waiting=union(*(part.waiting for part in parts)),
        moving=union(*(part.moving for part in parts)),
        wait_ns=parts[0].wait_ns + parts[1].wait_ns,
        transfer_ns=parts[0].transfer_ns + parts[1].transfer_ns,
    )


def _split_at_arrival(claims: Intervals, arrival: Int64s, blocked: Intervals) -> RankExposure:
    """Split each claim at the last rank's arrival, and keep the blocked part."""
    middle = np.clip(arrival, claims[:, 0], np.maximum(claims[:, 0], claims[:, 1]))
    waiting, moving = intervals(claims[:, 0], middle), intervals(middle, claims[:, 1])
    return RankExposure(
        waiting=intersect(waiting, blocked),
        moving=intersect(moving, blocked),
        wait_ns=covered(blocked, waiting[:, 0], waiting[:, 1]),
        transfer_ns=covered(blocked, moving[:, 0], moving[:, 1]),
    )


def find_awaited_by_compute(
    running: Intervals, launched: Int64s, compute: Intervals, awaits: Int64s
) -> Intervals:
    """Return, for each collective, when the following compute waits for it, as disjoint intervals.

    Each gap in the compute ends with the kernel that waited. It may have waited for collectives that had
    ended by then: for the last one, and before that one's start, for earlier ones. A collective still running
    when the kernel starts did not block it.

    Args:
        running: When each collective runs; empty if it does not run on the device.
        launched: Each collective's launch.
        compute: Disjoint intervals, sorted.
        awaits: The result of :func:`find_awaited_launches` for each compute interval.
    """
    if not len(running) or not len(compute):
        return intervals(running[:, 0], running[:, 0]) if len(running) else EMPTY
    start, end = running.T
    next_compute = np.searchsorted(compute[:, 0], end, side="left")
    bound = np.append(compute[:, 0], 0)[next_compute]
    gap_begin = np.where(next_compute > 0, compute[np.maximum(next_compute - 1, 0), 1], BEFORE_ALL_NS)
    has_ended = (next_compute < len(compute)) & (gap_begin < end) & (end <= bound) & (end > start)
    has_ended &= launched < np.append(awaits, BEFORE_ALL_NS)[next_compute]
    # Each chosen interval, without time before ``not_before`` or taken by later-ending intervals.
    # If two end together, the earlier start takes all. Intervals not chosen become empty.
    claims = intervals(start, start)
    rows = np.flatnonzero(has_ended)
    rows = rows[np.lexsort((start[rows], -end[rows]))]
    begin = np.maximum(start, gap_begin)[rows]
    taken_from = np.concatenate(([AFTER_ALL_NS], np.minimum.accumulate(begin)))[: len(rows)]
    claims[rows] = intervals(begin, np.maximum(begin, np.minimum(end[rows], taken_from)))
    return claims


def share_by_first_start(start: Int64s, end: Int64s) -> Intervals:
    """Return each interval without the time taken by earlier-starting intervals."""
    if not len(start):
        return EMPTY
    end = np.maximum(start, end)
    order = np.argsort(start, kind="stable")
    taken_until = np.concatenate(([BEFORE_ALL_NS], np.maximum.accumulate(end[order])[:-1]))
    claims = np.empty((len(start), 2), dtype=np.int64)
    claims[order, 0] = np.maximum(start[order], taken_until)
    claims[:, 1] = np.maximum(claims[:, 0], end)
    return claims


def make_step_columns(timeline: RankTimeline, blocking: Blocking, exposure: RankExposure) -> Columns:
    """Return a rank's steps with ``STEP_COLUMNS``."""
    steps, activity = timeline.steps, timeline.activity
    running = union(blocking.running)
    copies, unknown = _find_copies_and_unknown(timeline, blocking, exposure)

    def inside(spans: Intervals) -> Int64s:
        return covered(spans, steps.begin_ns, steps.end_ns)

    terms = {
        "compute_ns": inside(activity.compute),
        "exposed_wait_ns": inside(exposure.waiting),
        "exposed_transfer_ns": inside(exposure.moving),
        "exposed_memcpy_ns": inside(copies),
        "unexplained_ns": inside(subtract(unknown, copies)),
    }
    wall = steps.end_ns - steps.begin_ns
    rows = {
        "rank": np.full(len(steps), timeline.rank, dtype=np.int64),
        "step": steps.number,
        "wall_ns": wall,
        **terms,
        "idle_ns": wall - sum(terms.values()),
        "overlapped_ns": inside(subtract(running, union(exposure.waiting, exposure.moving))),
        "collective_ns": inside(running),
        "memcpy_ns": inside(activity.copies),
    }
    return Columns({name: rows[name] for name in STEP_COLUMNS})


def find_idle_spans(timeline: RankTimeline, blocking: Blocking, exposure: RankExposure) -> Intervals:
    """Return a rank's idle intervals: in its steps, outside all other terms."""
    others = (timeline.activity.compute, exposure.waiting, exposure.moving)
    return subtract(
        timeline.steps.spans, union(*others, *_find_copies_and_unknown(timeline, blocking, exposure))
    )


def _find_copies_and_unknown(
    timeline: RankTimeline, blocking: Blocking, exposure: RankExposure
) -> tuple[Intervals, Intervals]:
    """Return exposed copies, and intervals without information in the trace; the two may overlap."""
    activity = timeline.activity
    known = union(activity.compute, exposure.waiting, exposure.moving)
    copies = subtract(activity.copies, union(known, union(blocking.running)))
    outside = subtract(timeline.steps.spans, activity.coverage)
    return copies, subtract(union(blocking.unexplained, outside), known)


def average_rank_time(
    rows: Columns, method: str, noise_floor_ns: int, first_wait_ns: int = 0, unsplit_ns: int = 0
) -> RankTime:
    """Return one rank's means over steps, in integer nanoseconds that still sum to the wall time.

    Args:
        rows: The rank's steps.
        method: How exposure was determined.
        noise_floor_ns: Terms below this are noise.
        first_wait_ns: Exposed wait in each group's first collective, summed over all steps.
        unsplit_ns: Exposed time in collectives that are missing some ranks, summed over all steps.
    """
    count = len(rows)
    means = divide_evenly([int(rows.ints(term).sum()) for term in LEDGER_TERMS], count)
    terms = dict(zip(LEDGER_TERMS, means, strict=True))
    collective, overlapped = int(rows.ints("collective_ns").sum()), int(rows.ints("overlapped_ns").sum())
    exposed_ns = terms["exposed_wait_ns"] + terms["exposed_transfer_ns"]
    unsplit_ns = min(unsplit_ns // count, exposed_ns)
    is_upper = method in (UPPER_BOUND, MIXED)
    return RankTime(
        rank=int(rows.ints("rank")[0]),
        steps=count,
        wall_ns=int(rows.ints("wall_ns").sum()) // count,
        wall_median_ns=int(np.median(rows.ints("wall_ns"))),
        collective_ns=collective // count,
        overlapped_ns=overlapped // count,
        overlap_ratio=overlapped / collective if collective else None,
        method=method,
        noise_floor_ns=noise_floor_ns,
        upper_bound=is_upper,
        memcpy_ns=int(rows.ints("memcpy_ns").sum()) // count,
        first_wait_ns=min(first_wait_ns // count, terms["exposed_wait_ns"]),
        unsplit_ns=unsplit_ns,
        bounds=find_ledger_bounds(exposed_ns, unsplit_ns, is_upper=is_upper),
        **terms,
    )


def find_ledger_bounds(exposed_ns: int, unsplit_ns: int, *, is_upper: bool) -> Bounds:
    """Return which of a rank's terms are bounds.

    Args:
        exposed_ns: Exposed time in collectives.
        unsplit_ns: The part of the exposed time that could not be split into wait and transfer.
        is_upper: True if the recording may lack a wait, so exposed times are upper bounds.
    """
    has_bounds = is_unsplit(exposed_ns, unsplit_ns)
    if not is_upper:
        return {name: SPLIT_BOUNDS[name] for name in _EXPOSED if has_bounds}
    wait = Bound.UNKNOWN if has_bounds else Bound.AT_MOST
    others = ("exposed_transfer_ns", "exposed_memcpy_ns")
    return {"exposed_wait_ns": wait, **dict.fromkeys(others, Bound.AT_MOST), "overlapped_ns": Bound.AT_LEAST}


def is_unsplit(exposed_ns: int, unsplit_ns: int) -> bool:
    """Return True if wait and transfer are only bounds, because too much exposed time could not be split."""
    return unsplit_ns > _MIN_UNSPLIT_RATIO * exposed_ns


def list_step_times(rows: Columns) -> tuple[StepTime, ...]:
    """Convert step rows to report leaves."""
    names = [field.name for field in fields(StepTime)]
    columns = [rows[name].tolist() for name in names]
    return tuple(StepTime(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True))


def divide_evenly(sums: Sequence[int], count: int) -> list[int]:
    """Divide each sum by ``count``, rounding so that the results add up to the divided total."""
    running = [0]
    for value in sums:
        running.append(running[-1] + value)
    return [high // count - low // count for low, high in itertools.pairwise(running)]


def estimate_noise_floor(
    timeline: RankTimeline, blocking: Blocking, collectives: int, uncertainty_ns: int
) -> int:
    """Return the worst-case size per step below which a ledger term is noise.

    Each edge of a compute or blocked span has an error of about 1 µs. Each collective's last arrival has an
    error of twice the clock uncertainty.
    """
    within = timeline.steps.spans
    edges = 2 * (len(intersect(timeline.activity.compute, within)) + len(intersect(blocking.blocked, within)))
    clocks = 2 * uncertainty_ns * collectives
    return max(STAMP_NS, (edges * STAMP_NS + clocks) // max(1, len(timeline.steps)))


def estimate_step_noise(steps: Columns) -> int | None:
    """Return the half width of the 95 % interval of the difference between two recordings' mean step times.

    The standard deviation is computed from ``steps``, with one row per rank and step. None for fewer than
    three steps.
    """
    walls = Groups(steps.ints("step")).mean(steps.ints("wall_ns"))
    if len(walls) < _MIN_STEPS:
        return None
    return round(1.96 * sqrt(2 / len(walls)) * float(walls.std(ddof=1)))


class RankTracks(Struct, frozen=True, kw_only=True):
    """One rank's intervals on the common clock; ``clock`` converts its other times.

    ``waiting`` and ``moving``: blocked by a collective before and after the last rank's arrival. Clipped to
    ``steps``, they are the ledger's exposed wait and transfer. ``host_steps``: the same steps by host marks.
    ``wait_before_ns``: wait in the recording's first collective, if launched before the first step.
    ``opened_ns``: when the rank left the recorder's last ping before the first step, with its profiler
    running; None without pings.
    """

    rank: int
    host: str
    clock: RankClock
    steps: StepWindows
    host_steps: StepWindows
    coverage: Intervals
    waiting: Intervals
    moving: Intervals
    wait_before_ns: int = 0
    opened_ns: int | None = None


def make_rank_tracks(
    timeline: RankTimeline, clock: RankClock, exposure: RankExposure, wait_before_ns: int
) -> RankTracks:
    """Return a measured rank's tracks; ``timeline`` is on the common clock."""
    ping_ends = clock.common(np.array([end for _, end in timeline.pings.values()], dtype=np.int64))
    before = ping_ends[ping_ends <= timeline.host_steps.begin_ns.min(initial=np.iinfo(np.int64).max)]
    has_opening = len(before) and len(timeline.host_steps)
    return RankTracks(
        rank=timeline.rank,
        host=timeline.host,
        clock=clock,
        steps=timeline.steps,
        host_steps=timeline.host_steps,
        coverage=timeline.activity.coverage,
        waiting=exposure.waiting,
        moving=exposure.moving,
        wait_before_ns=wait_before_ns,
        opened_ns=int(before.max()) if has_opening else None,
    )
