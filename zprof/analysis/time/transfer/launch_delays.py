"""Measure what delays a collective between launch and start, and what an earlier start could have used.

    s_i - L_i = dependency + pure          dependency = max(0, max(d_i, p_i) - L_i)

L_i: start of the host's call. p_i: end of the previous collective in the same queue. d_i: the latest end, not
after s_i, of a compute kernel launched before L_i. For gathers also: time blocked behind kernels of the unit
that was computing, free compute that a prefetch could have used, and holds by a rate limiter.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s, Intervals, covered, intervals, subtract, union
from zprof.analysis.time.activity import Activity, NamedWork
from zprof.analysis.time.collective_rows import encode_texts
from zprof.analysis.time.steps import StepWindows
from zprof.model.collectives import CollectiveKind

#: Placeholder for the end of something that does not exist: before everything.
NEVER_NS = -(1 << 62)
#: Kernels of one stream may overlap by the jitter of their timestamps.
_OVERLAP_NS = 5_000
#: Offset that separates numbers of groups from those of streams.
_NO_STREAM = -(1 << 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveLaunches:
    """Launches of collectives, one entry per row; without a recorded call ``launch_ns`` is the start.

    ``known`` is false for those rows. ``computed_ns`` (d) and ``previous_ns`` (p) are ``NEVER_NS`` if there
    is none; ``previous`` is the position of the previous collective among the rows, -1 without one.
    """

    launch_ns: Int64s
    known: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    computed_ns: Int64s
    previous_ns: Int64s
    previous: Int64s

    def columns(self, frame: pd.DataFrame) -> "dict[str, pd.Series[int] | Int64s]":
        """Return these ends as columns for the rows, with dependency_ns, null if no launch was recorded."""
        ready = np.maximum(self.computed_ns, self.previous_ns)
        waited = pd.arrays.IntegerArray(np.maximum(0, ready - self.launch_ns), ~self.known)
        previous = frame["instance"].to_numpy(np.int64)[self.previous] if len(frame) else self.previous
        return {
            "launch_ns": self.launch_ns,
            "computed_ns": self.computed_ns,
            "previous_ns": self.previous_ns,
            "previous_instance": np.where(self.previous >= 0, previous, -1),
            "dependency_ns": pd.Series(waited, index=frame.index),
        }


def find_collective_launches(
    frame: pd.DataFrame, kernels: Int64s, kernel_stream: Int64s
) -> CollectiveLaunches:
    """Return the launches of the collectives of one rank.

    Args:
        frame: Rows of the rank.
        kernels: Launch, start and end of its compute kernels.
        kernel_stream: The stream of each kernel.
    """
    start, end = frame["start_ns"].to_numpy(np.int64), frame["end_ns"].to_numpy(np.int64)
    known = frame["launch_start_ns"].notna().to_numpy(bool)
    launch = np.where(known, frame["launch_start_ns"].fillna(0).to_numpy(np.int64), start)
    previous = _find_previous(_number_queues(frame), start, end)
    return CollectiveLaunches(
        launch_ns=launch,
        known=known,
        computed_ns=find_latest_end(launch, start, kernels, kernel_stream),
        previous_ns=np.where(previous >= 0, np.minimum(end[previous], start), NEVER_NS)
        if len(start)
        else start,
        previous=previous,
    )


def _number_queues(frame: pd.DataFrame) -> Int64s:
    """Return a number for the stream of each row, or for its group if it has no stream."""
    stream = frame["stream"].fillna(NEVER_NS).to_numpy(np.int64)
    if not (stream == NEVER_NS).any():
        return stream
    return np.where(stream == NEVER_NS, encode_texts(frame["group"])[0] + _NO_STREAM, stream)


def _find_previous(queue: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """Return for each row the row of its queue with the latest end not after its start; -1 without one."""
    found = np.full(len(start), -1, dtype=np.int64)
    for number in np.unique(queue):
        mine = np.flatnonzero(queue == number)
        by_end = mine[np.argsort(end[mine], kind="stable")]
        # what ends before this row also started before it: the slack must not reach the row's own end
        latest = np.minimum(start[mine] + _OVERLAP_NS, np.maximum(start[mine], end[mine] - 1))
        place = np.searchsorted(end[by_end], latest, side="right") - 1
        place -= (place >= 0) & (by_end[np.maximum(place, 0)] == mine)
        found[mine] = np.where(place >= 0, by_end[np.maximum(place, 0)], -1)
    return found


def find_latest_end(launch: Int64s, start: Int64s, kernels: Int64s, kernel_stream: Int64s) -> Int64s:
    """Return for each row the latest end up to ``start`` of kernels launched before ``launch``, or NEVER_NS.

    A stream runs its kernels in launch order, so both limits are positions in that order.
    """
    found = np.full(len(start), NEVER_NS, dtype=np.int64)
    for number in np.unique(kernel_stream):
        mine = kernels[kernel_stream == number]
        mine = mine[np.argsort(mine[:, 0], kind="stable")]
        ends = np.maximum.accumulate(mine[:, 2])
        place = np.minimum(
            np.searchsorted(mine[:, 0], launch, side="left"), np.searchsorted(ends, start, side="right")
        )
        found = np.maximum(found, np.where(place > 0, ends[np.maximum(place - 1, 0)], NEVER_NS))
    return found


#: A kernel that waits for an event, or for space on the device, starts within this time once it has it.
_MAX_START_NS = 50_000


def measure_blocked(frame: pd.DataFrame, launch: CollectiveLaunches, named: NamedWork) -> "pd.Series[int]":
    """Return how long the computing unit's own kernels held back each all-gather of a rank.

    0 if nothing blocked the gather, null if that is unknown and for other kinds.
    """
    start = frame["start_ns"].to_numpy(np.int64)
    known = launch.known & (frame["kind"] == CollectiveKind.ALL_GATHER.value).to_numpy(bool)
    place = np.searchsorted(named.passes, launch.launch_ns, side="right")
    known &= place > 0
    began = np.concatenate(([NEVER_NS], named.passes))[place]
    earlier = find_latest_end(began, start, named.times, named.stream)
    copied = find_latest_end(launch.launch_ns, start, named.times[named.copies], named.stream[named.copies])
    own = find_latest_end(launch.launch_ns, start, named.times[~named.copies], named.stream[~named.copies])
    ready = np.maximum.reduce([launch.launch_ns, launch.previous_ns, earlier, copied])
    stood = (own > ready) & (start - own <= _MAX_START_NS)
    blocked = pd.arrays.IntegerArray(np.where(stood, own - ready, 0), ~known)
    return pd.Series(blocked, index=frame.index)


#: Columns that :func:`measure_prefetch` returns; 0 on rows that are not an all_gather.
PREFETCH_COLUMNS = ("free_compute_ns", "queued_exposed_ns")


def measure_prefetch(frame: pd.DataFrame, compute: Intervals, moving: Intervals) -> dict[str, Int64s]:
    """Return free_compute_ns and queued_exposed_ns for the collectives of one rank, sorted by start.

    Args:
        frame: Rows with step, kind, group, start_ns and end_ns.
        compute: When the rank computes, disjoint.
        moving: Its exposed transfer, disjoint.
    """
    start = frame["start_ns"].to_numpy(np.int64)
    running = union(intervals(frame["start_ns"], frame["end_ns"]))
    since = np.minimum(_previous_gather_end(frame), start)
    return {
        "free_compute_ns": covered(subtract(compute, running), since, start),
        "queued_exposed_ns": covered(moving, np.maximum(_last_compute_end(compute, start), since), start),
    }


def _previous_gather_end(frame: pd.DataFrame) -> Int64s:
    """Return the end of the previous all_gather in the same group and step; the row's own start if none."""
    found = frame["start_ns"].to_numpy(np.int64, copy=True)
    end, step = frame["end_ns"].to_numpy(np.int64), frame["step"].to_numpy(np.int64)
    gathers = np.flatnonzero(frame["kind"].astype(str).to_numpy() == CollectiveKind.ALL_GATHER.value)
    group = encode_texts(frame["group"].iloc[gathers])[0]
    for lane in np.unique(np.column_stack((group, step[gathers])), axis=0):
        mine = gathers[(group == lane[0]) & (step[gathers] == lane[1])]
        found[mine[1:]] = np.maximum.accumulate(end[mine])[:-1]
    return found


def _last_compute_end(compute: Intervals, start: Int64s) -> Int64s:
    """Return the end of the last compute that started before each start, at most that start."""
    if not len(compute):
        return np.full(len(start), np.iinfo(np.int64).min, dtype=np.int64)
    place = np.searchsorted(compute[:, 0], start, side="left") - 1
    ends = np.where(place >= 0, compute[np.maximum(place, 0), 1], np.iinfo(np.int64).min)
    return np.minimum(ends, start)


#: One row per hold.
LIMITER_COLUMNS = ("rank", "step", "start_ns", "end_ns", "idle_ns")
#: A limiter that finds its event done returns within microseconds, and holds nothing back.
_MIN_HOLD_NS = 50_000
_NO_TIME_NS = np.iinfo(np.int64).min


def make_limiter_rows(
    rank: int, limiter: Intervals, activity: Activity, steps: StepWindows, frame: pd.DataFrame
) -> pd.DataFrame:
    """Return one row per hold of a rank in a step, on the common clock; columns are ``LIMITER_COLUMNS``.

    Args:
        rank: The rank.
        limiter: When its host was in the limiter, disjoint.
        activity: Its activity; a rank without a device gets no rows, because there the host itself computes.
        steps: Its steps by the host's marks.
        frame: Its collectives.
    """
    holds = limiter[limiter[:, 1] - limiter[:, 0] >= _MIN_HOLD_NS]
    in_step = steps.step_at(holds[:, 0])
    keep = (in_step >= 0) & activity.on_device
    gathers = frame[frame["kind"].astype(str) == CollectiveKind.ALL_GATHER]
    gathered = np.sort(gathers["end_ns"].to_numpy(np.int64))
    return pd.DataFrame(
        {
            "rank": np.full(int(keep.sum()), rank, dtype=np.int64),
            "step": in_step[keep],
            "start_ns": holds[keep, 0],
            "end_ns": holds[keep, 1],
            "idle_ns": _measure_idle_after(holds[keep], activity.compute, gathered),
        }
    )


def _measure_idle_after(holds: Intervals, compute: Intervals, gathered: Int64s) -> Int64s:
    """Return the idle time of the device because of each hold; each instant counts once."""
    if not len(holds) or not len(compute):
        return np.zeros(len(holds), dtype=np.int64)
    begin, end = holds.T
    following = np.searchsorted(compute[:, 0], end, side="left")
    until = np.append(compute[:, 0], _NO_TIME_NS)[following]
    done = np.where(following > 0, compute[np.maximum(following - 1, 0), 1], begin)
    last = np.searchsorted(gathered, until, side="right") - 1
    arrived = np.where(last >= 0, np.append(gathered, 0)[np.maximum(last, 0)], begin)
    counted = np.concatenate(([_NO_TIME_NS], np.maximum.accumulate(until)[:-1]))
    since = np.maximum(np.maximum(begin, done), np.maximum(arrived, counted))
    dry = (done <= end) & (following < len(compute))
    idle: Int64s = np.where(dry, np.maximum(until, since) - since, 0).astype(np.int64)
    return idle
