"""Determine when communication blocks a rank, and which collective blocks it at each instant.

A device is blocked by a collective whenever it does not compute; a CPU rank is blocked in the wait spans of
its main thread. If no waits were recorded, gaps between operators longer than 300 µs are used as an upper
bound. Several collectives may run at once, so each blocked instant is assigned to exactly one: the running
collective that the thread, or the compute after the gap, waits for; else the running one that started first.
"""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zprof.analysis.columns import Columns, Mask
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
from zprof.analysis.time.activity import RankActivity
from zprof.analysis.time.steps import UNKNOWN_NS, StepWindows
from zprof.model.gaps import Gap, GapKind

KERNELS = "kernels"
WAIT_SPANS = "wait spans"
UPPER_BOUND = "aten gap upper bound"
MIXED = "wait spans, and aten gaps as upper bound for collectives without a recorded wait"
MIN_HOLE_NS = 300_000
#: Maximum number of collectives without a recorded wait that need no upper bound: one in flight at each end.
_MAX_WITHOUT_WAIT = 2
#: Times before and after everything, with enough margin to add the offset of a clock.
BEFORE_ALL_NS = -(1 << 62)
AFTER_ALL_NS = 1 << 62


class Blocking(Struct, frozen=True, kw_only=True):
    """Blocked time of a rank. ``unexplained``: blocked while no known collective ran.

    ``running`` and ``awaited`` have one row per collective, in their order. ``running`` is when it can block
    the rank (empty for a host collective on a rank that computes on a device), ``awaited`` is when the rank
    is known to wait for it.
    """

    blocked: Intervals
    unexplained: Intervals
    method: str
    running: Intervals
    awaited: Intervals


def find_blocking(
    rank: int, activity: RankActivity, steps: StepWindows, collectives: Columns
) -> tuple[Blocking, list[Gap]]:
    """Return the blocked time of one rank in its steps, and gaps if its waits are unknown."""
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
            Gap(
                kind=GapKind.EXPOSED_TIME,
                what="exposed time",
                rank=rank,
                reason="no wait for a collective was recorded: gaps between operators are used as an upper "
                "bound",
                remedy="an engine can record ::wait ranges (docs/recording.md); waits of DDP cannot be "
                "recorded",
            )
        ]
    spans = _list_collective_spans(collectives)[without_wait]
    unseen_collectives = spans[~_ends_in_wait(activity.waits, spans[:, 1])]
    holes_in_collectives = intersect(holes, unseen_collectives)
    if not len(holes_in_collectives):
        return _make_host_blocking(activity, collectives, EMPTY, WAIT_SPANS), []
    return _make_host_blocking(activity, collectives, holes_in_collectives, MIXED), [
        _make_missing_waits_gap(rank, len(unseen_collectives))
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
    """Mark the collectives that end inside a wait, which suggests that the wait was for them."""
    merged = union(waits)
    index = np.searchsorted(merged[:, 0], end, side="right") - 1
    inside: npt.NDArray[np.bool_] = (index >= 0) & (end <= merged[np.maximum(index, 0), 1])
    return inside


def _list_collective_spans(collectives: Columns) -> Intervals:
    return intervals(collectives.ints("start_ns"), collectives.ints("end_ns"))


def _make_missing_waits_gap(rank: int, count: int) -> Gap:
    return Gap(
        kind=GapKind.EXPOSED_TIME,
        what="exposed time",
        rank=rank,
        reason=f"{count} collectives have no recorded wait (C++ waits for them): an upper bound is used",
        remedy="record ::wait ranges (docs/recording.md)",
    )


class RankExposure(Struct, frozen=True, kw_only=True):
    """Exposed time of one rank: as intervals, and per collective in the order of the table."""

    waiting: Intervals
    moving: Intervals
    wait_ns: Int64s
    transfer_ns: Int64s


def attribute_exposure(arrival_ns: Int64s, blocking: Blocking) -> RankExposure:
    """Split the blocked time of one rank between its collectives, into wait and transfer.

    Args:
        arrival_ns: Start of the last rank, for each collective.
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
    """Split each claim at the arrival of the last rank, and keep the blocked part."""
    middle = np.clip(arrival, claims[:, 0], np.maximum(claims[:, 0], claims[:, 1]))
    waiting, moving = intervals(claims[:, 0], middle), intervals(middle, claims[:, 1])
    return RankExposure(
        waiting=intersect(waiting, blocked),
        moving=intersect(moving, blocked),
        wait_ns=covered(blocked, waiting[:, 0], waiting[:, 1]),
        transfer_ns=covered(blocked, moving[:, 0], moving[:, 1]),
    )


def find_awaited_launches(
    compute: Intervals,
    *,
    starts: Int64s,
    streams: Int64s,
    launched: Int64s,
    computes: Mask,
    wait_calls: Intervals,
) -> Int64s:
    """Return, per compute interval, the time before which an awaited collective must have been launched.

    Compute awaits the last wait call between its launch and that of its predecessor on the stream. Work with
    an unknown launch, or launched by the same call as its predecessor, gets ``AFTER_ALL_NS``, because its
    waits are unknown.

    Args:
        compute: Disjoint intervals, sorted.
        starts: Start of each piece of work.
        streams: Its stream.
        launched: Its launch, ``UNKNOWN_NS`` if unknown.
        computes: Mask of the work that is compute.
        wait_calls: Stream and time of each call that makes a stream wait for an event.
    """
    if not len(wait_calls):
        return np.full(len(compute), AFTER_ALL_NS, dtype=np.int64)
    order = np.lexsort((starts, streams))
    last_wait = np.empty(len(starts), dtype=np.int64)
    for stream in np.unique(streams).tolist():
        stream_rows = order[streams[order] == stream]
        own, calls = launched[stream_rows], np.sort(wait_calls[wait_calls[:, 0] == stream, 1])
        before = np.concatenate(([BEFORE_ALL_NS], own[:-1]))
        last = np.concatenate(([BEFORE_ALL_NS], calls))[np.searchsorted(calls, own, side="right")]
        last = np.where(last > before, last, BEFORE_ALL_NS)
        last_wait[stream_rows] = np.where((own == UNKNOWN_NS) | (own == before), AFTER_ALL_NS, last)
    awaited_launch = np.full(len(compute), BEFORE_ALL_NS, dtype=np.int64)
    index = np.searchsorted(compute[:, 0], starts[computes])
    first = compute[np.minimum(index, len(compute) - 1), 0] == starts[computes]
    np.maximum.at(awaited_launch, index[first], last_wait[computes][first])
    return awaited_launch


def find_awaited_by_compute(
    running: Intervals, launched: Int64s, compute: Intervals, awaits: Int64s
) -> Intervals:
    """Return, for each collective, when the compute after it waits for it; the intervals are disjoint.

    Each gap in the compute ends with the kernel that waited. It may have waited for the collectives that had
    ended by then: the last one, and before its start, those that ended earlier. A collective that still runs
    when the kernel starts did not block it.

    Args:
        running: When each collective runs; an empty interval if it does not run on the device.
        launched: When each was launched.
        compute: Disjoint intervals, sorted.
        awaits: For each of them, the result of :func:`find_awaited_launches`.
    """
    if not len(running) or not len(compute):
        return intervals(running[:, 0], running[:, 0]) if len(running) else EMPTY
    start, end = running.T
    next_compute = np.searchsorted(compute[:, 0], end, side="left")
    bound = np.append(compute[:, 0], 0)[next_compute]
    gap_begin = np.where(next_compute > 0, compute[np.maximum(next_compute - 1, 0), 1], BEFORE_ALL_NS)
    has_ended = (next_compute < len(compute)) & (gap_begin < end) & (end <= bound) & (end > start)
    has_ended &= launched < np.append(awaits, BEFORE_ALL_NS)[next_compute]
    # Each chosen interval without time before ``not_before`` or taken by later-ending intervals.
    # If two end together, the one that starts first takes all. Intervals that are not chosen become empty.
    claims = intervals(start, start)
    rows = np.flatnonzero(has_ended)
    rows = rows[np.lexsort((start[rows], -end[rows]))]
    begin = np.maximum(start, gap_begin)[rows]
    taken_from = np.concatenate(([AFTER_ALL_NS], np.minimum.accumulate(begin)))[: len(rows)]
    claims[rows] = intervals(begin, np.maximum(begin, np.minimum(end[rows], taken_from)))
    return claims


def share_by_first_start(start: Int64s, end: Int64s) -> Intervals:
    """Return each interval without the time already taken by intervals that started earlier."""
    if not len(start):
        return EMPTY
    end = np.maximum(start, end)
    order = np.argsort(start, kind="stable")
    taken_until = np.concatenate(([BEFORE_ALL_NS], np.maximum.accumulate(end[order])[:-1]))
    claims = np.empty((len(start), 2), dtype=np.int64)
    claims[order, 0] = np.maximum(start[order], taken_until)
    claims[:, 1] = np.maximum(claims[:, 0], end)
    return claims
