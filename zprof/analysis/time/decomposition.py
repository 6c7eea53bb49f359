"""Group collective rows, and split each into waiting for the last rank and transfer.

With S = the latest start among the ranks that rank i waits for, on the common clock:

    wait_i = max(0, min(S, e_i) - s_i)      transfer_i = e_i - max(S, s_i), at least 0
    tail_i = max_j e_j - e_i                T = min_i (e_i - max(S, s_i)) over the ranks that wait

and wait + transfer = duration. Ranks wait for each other as follows:

    all_reduce, all_gather, reduce_scatter, all_to_all, barrier: all ranks for the last one
    broadcast, scatter: all ranks for the root          reduce, gather: the root for the last rank
    send, recv: for each other                          other kinds, or without a peer: for no rank

A send may be buffered: if it ended before its receive started, it waited for nobody.

A rank b arrived last if for every other rank j  s_b - s_j > 2 max(u_b, u_j), where u is a rank's clock
uncertainty; else the last two are tied. If ranks are missing, the wait is a lower bound and the transfer an
upper bound.

The delay between launch and start of a collective is split by its cause:

    s_i - L_i = dependency + pure          dependency = max(0, max(d_i, p_i) - L_i)

L_i: start of the host call. p_i: end of the previous collective in the same queue. d_i: the latest end, not
after s_i, of a compute kernel launched before L_i. For gathers also: time blocked by kernels of the currently
computing unit, free compute that a prefetch could have overlapped with, and delays by a rate limiter.

Rows are grouped by string column, rank group or instance. Group totals are averaged over the group's own
loaded ranks: averaged over all ranks, a group of 2 of 8 ranks would appear to run only a quarter of its
collectives.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zprof.analysis.columns import Column, Columns, Floats, Groups, Mask, OptionalInts
from zprof.analysis.intervals import Int64s, Intervals, covered, intervals, subtract, union
from zprof.analysis.time.activity import NamedWork, RankActivity
from zprof.analysis.time.clocks import Clocks
from zprof.analysis.time.steps import StepWindows
from zprof.model.collectives import FULL_SYNC, CollectiveKind

UNKNOWN_RANK = -1
_FROM_ROOT = (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
_TO_ROOT = (CollectiveKind.REDUCE, CollectiveKind.GATHER)
_MESSAGES = (CollectiveKind.SEND, CollectiveKind.RECV)
#: Placeholder for a missing end time: earlier than any timestamp.
NEVER_NS = -(1 << 62)
#: Kernels of one stream may overlap by the jitter of their timestamps.
_OVERLAP_NS = 5_000
#: Offset that separates group numbers from stream numbers.
_NO_STREAM = -(1 << 60)
#: A kernel that waited for an event, or for free SMs, starts within this time after the wait.
_MAX_START_NS = 50_000
#: A limiter wait for a completed event returns within microseconds and delays no gather.
_MIN_DELAY_NS = 50_000
_NO_TIME_NS = np.iinfo(np.int64).min
_T = TypeVar("_T", bound=np.generic)
#: A string with more digits is not a rank.
_MAX_DIGITS = 9


class Instances:
    """Rows grouped by instance.

    ``rows``: rows with an instance, sorted by it. ``index``: each row's instance index. ``first_rows``:
    position in ``rows`` of each instance's first row.
    """

    def __init__(self, instance: Int64s) -> None:
        known = np.flatnonzero(instance >= 0)
        groups = Groups(instance[known])
        self.rows: Int64s = known[groups.order]
        self.first_rows: Int64s = groups.starts
        #: Number of rows of each instance.
        self.counts: Int64s = groups.sizes
        self.index: Int64s = np.repeat(np.arange(len(groups)), self.counts)
        self.ids: Int64s = instance[self.rows[self.first_rows]]
        self._size = len(instance)

    def reduce(self, operation: np.ufunc, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Reduce row values to one value per instance with ``np.maximum``, ``np.minimum``, ``np.add``, ..."""
        if not len(self.first_rows):
            return values[:0]
        return operation.reduceat(values[self.rows], self.first_rows)

    def broadcast(self, values: npt.NDArray[_T], default: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Expand instance values to rows; rows without an instance keep their ``default``."""
        out = default.copy()
        out[self.rows] = values[self.index]
        return out

    def find_largest_rows(self, values: Int64s) -> Int64s:
        """Return each instance's row with the largest value; ties go to the later row."""
        order = np.lexsort((values[self.rows], self.index))
        last = np.append(self.first_rows[1:], len(self.rows)) - 1 if len(self.first_rows) else self.first_rows
        return self.rows[order[last]]

    def median_of_others(self, values: Int64s | Floats) -> Floats:
        """Return, for each row, the median over its instance's other rows; NaN if there are none."""
        out = np.full(self._size, np.nan)
        row_values = values[self.rows].astype(np.float64)
        order = np.lexsort((row_values, self.index))
        ordered, count = row_values[order], self.counts[self.index]
        first = self.first_rows[self.index]
        position = np.arange(len(order)) - first
        # indices of the medians among the other n - 1 rows; skip the row itself
        middles = [(count - 2) // 2, (count - 1) // 2]
        medians = [
            ordered[first + np.clip(middle + (middle >= position), 0, np.maximum(count - 1, 0))]
            for middle in middles
        ]
        out[self.rows[order]] = np.where(count > 1, (medians[0] + medians[1]) / 2, np.nan)
        return out


def decompose_collectives(collectives: Columns, clocks: Clocks) -> Columns:
    """Add the columns that relate a collective's ranks to each other.

    arrival_ns (S: the start of the last rank waited for, else the row's own start), wait_ns, transfer_ns,
    bound (the row can wait, but some of the ranks that it waits for are unknown), lateness_ns (relative to
    the first rank), last_rank (-1 if ranks are missing or the last two are tied), offset_uncertainty_ns
    (twice the clock uncertainty), and, NaN if unknown, tail_ns and intrinsic_ns.
    """
    instances = Instances(collectives.ints("instance"))
    start, end, rank = (collectives.ints(name) for name in ("start_ns", "end_ns", "rank"))
    # Each row's clock uncertainty; the maximum over ranks if the rank's own is unknown.
    known = clocks.rank_uncertainty_ns
    numbers, codes = np.unique(rank, return_inverse=True)
    uncertainties = [known.get(int(number), clocks.uncertainty_ns) for number in numbers]
    uncertainty = np.array(uncertainties, dtype=np.int64)[codes]
    awaited_row, waits, bound, is_clearly_last = _find_awaited_rows(collectives, instances, uncertainty)
    arrival = np.maximum(start, start[awaited_row])
    wait = (np.minimum(arrival, end) - start).clip(min=0)
    is_full_sync = mark_full_syncs(collectives) & (collectives.ints("instance") >= 0)
    first = instances.broadcast(instances.reduce(np.minimum, start), start)
    last_end = instances.broadcast(instances.reduce(np.maximum, end), end)
    transfer_times = np.where(waits, (end - arrival).astype(np.float64), np.nan)
    # Each instance's minimum known value, on all of its rows.
    intrinsic = instances.broadcast(
        instances.reduce(np.fmin, transfer_times), np.full(len(transfer_times), np.nan)
    )
    return collectives.with_columns(
        arrival_ns=arrival,
        wait_ns=wait,
        transfer_ns=end - start - wait,
        bound=bound,
        lateness_ns=np.where(is_full_sync, start - first, 0),
        last_rank=np.where(waits & is_clearly_last, rank[awaited_row], UNKNOWN_RANK),
        offset_uncertainty_ns=instances.broadcast(
            instances.reduce(np.maximum, 2 * uncertainty), 2 * uncertainty
        ),
        tail_ns=np.where(is_full_sync, (last_end - end).astype(np.float64), np.nan),
        intrinsic_ns=intrinsic,
    )


def _find_awaited_rows(
    collectives: Columns, instances: Instances, uncertainty: Int64s
) -> tuple[Int64s, Mask, Mask, Mask]:
    """Return, for each row, the row of the last rank that it waits for, or itself; and three masks.

    The masks: rows that can wait and whose awaited ranks are all known; rows that can wait and have an
    unknown awaited rank; rows whose awaited rank arrived last by more than the uncertainty.
    """
    start, rank, instance = (collectives.ints(name) for name in ("start_ns", "rank", "instance"))
    itself = np.arange(len(rank))
    peer = collectives.ints("peer_rank", UNKNOWN_RANK)
    kind = collectives.texts("kind")
    waits_for_all = kind.equals(*FULL_SYNC) | (kind.equals(*_TO_ROOT) & (rank == peer))
    waits_for_one = (kind.equals(*_FROM_ROOT) & (rank != peer)) | kind.equals(*_MESSAGES)
    last = instances.broadcast(instances.find_largest_rows(start), np.full(len(rank), -1))
    row = np.where(waits_for_one, RowFinder(instance, rank).find(instance, peer), last)
    is_buffered = kind.equals(CollectiveKind.SEND) & (row >= 0) & (collectives.ints("end_ns") < start[row])
    waits_for_one &= ~is_buffered
    complete = (waits_for_all & collectives.bools("matched")) | (waits_for_one & (row >= 0))
    awaited_row = np.where((waits_for_all | waits_for_one) & (row >= 0), row, itself)
    trails_peer = start[awaited_row] - start > 2 * np.maximum(uncertainty, uncertainty[awaited_row])
    # Instances in which the last rank trails every other rank by more than the uncertainty.
    last = np.where(last >= 0, last, itself)
    lead = start[last] - start - 2 * np.maximum(uncertainty, uncertainty[last])
    lead = np.where(last == itself, np.iinfo(np.int64).max, lead)
    clear = (instances.reduce(np.minimum, lead) > 0) & (instances.counts > 1)
    trails_all = instances.broadcast(clear, np.zeros(len(start), dtype=np.bool_))
    can_wait = waits_for_all | waits_for_one | kind.equals(CollectiveKind.OTHER)
    can_wait |= kind.equals(*_TO_ROOT) & (peer < 0)
    bound = can_wait & ~complete & (collectives.ints("group_size") != 1)
    return awaited_row, complete, bound, np.where(waits_for_one, trails_peer, waits_for_all & trails_all)


class CollectiveLaunches(Struct, frozen=True, kw_only=True):
    """Collective launches, one entry per row; without a recorded call, ``launch_ns`` is the start.

    ``known`` is False for rows without a recorded call. ``computed_ns`` (d) and ``previous_ns`` (p) are
    ``NEVER_NS`` if missing; ``previous``: the row of the previous collective, -1 if there is none.
    """

    launch_ns: Int64s
    known: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    computed_ns: Int64s
    previous_ns: Int64s
    previous: Int64s

    def make_columns(self, rows: Columns) -> dict[str, Column]:
        """Return the times as columns, with dependency_ns, which is null if no launch was recorded."""
        ready = np.maximum(self.computed_ns, self.previous_ns)
        instance = rows.ints("instance")
        previous = instance[self.previous] if len(instance) else self.previous
        return {
            "launch_ns": self.launch_ns,
            "computed_ns": self.computed_ns,
            "previous_ns": self.previous_ns,
            "previous_instance": np.where(self.previous >= 0, previous, -1),
            "dependency_ns": OptionalInts(np.maximum(0, ready - self.launch_ns), self.known),
        }


def find_collective_launches(rows: Columns, kernels: Int64s, kernel_stream: Int64s) -> CollectiveLaunches:
    """Return the launches of one rank's collectives.

    Args:
        rows: The rank's collectives.
        kernels: Launch, start and end of its compute kernels.
        kernel_stream: Each kernel's stream.
    """
    start, end = rows.ints("start_ns"), rows.ints("end_ns")
    known = rows.known("launch_start_ns")
    launch = np.where(known, rows.ints("launch_start_ns"), start)
    # For each row, the row in its queue with the latest end not after its start; -1 if there is none.
    queue = np.where(  # the stream of each row, or a code of its group if it has no stream
        rows.known("stream"), rows.ints("stream", NEVER_NS), rows.texts("group").codes + _NO_STREAM
    )
    previous = np.full(len(start), -1, dtype=np.int64)
    for number in np.unique(queue):
        queue_rows = np.flatnonzero(queue == number)
        by_end = queue_rows[np.argsort(end[queue_rows], kind="stable")]
        # limit the slack to less than the row's own end, so that only rows that started earlier qualify
        latest = np.minimum(
            start[queue_rows] + _OVERLAP_NS, np.maximum(start[queue_rows], end[queue_rows] - 1)
        )
        position = np.searchsorted(end[by_end], latest, side="right") - 1
        position -= (position >= 0) & (by_end[np.maximum(position, 0)] == queue_rows)
        previous[queue_rows] = np.where(position >= 0, by_end[np.maximum(position, 0)], -1)
    return CollectiveLaunches(
        launch_ns=launch,
        known=known,
        computed_ns=find_latest_end(launch, start, kernels, kernel_stream),
        previous_ns=np.where(previous >= 0, np.minimum(end[previous], start), NEVER_NS)
        if len(start)
        else start,
        previous=previous,
    )


def find_latest_end(launch: Int64s, start: Int64s, kernels: Int64s, kernel_stream: Int64s) -> Int64s:
    """Return, for each row, the latest end up to ``start`` of kernels launched before ``launch``, or
    NEVER_NS.

    A stream runs its kernels in launch order, so both limits are positions in that order.
    """
    latest_end = np.full(len(start), NEVER_NS, dtype=np.int64)
    for number in np.unique(kernel_stream):
        stream_kernels = kernels[kernel_stream == number]
        stream_kernels = stream_kernels[np.argsort(stream_kernels[:, 0], kind="stable")]
        ends = np.maximum.accumulate(stream_kernels[:, 2])
        position = np.minimum(
            np.searchsorted(stream_kernels[:, 0], launch, side="left"),
            np.searchsorted(ends, start, side="right"),
        )
        latest_end = np.maximum(
            latest_end, np.where(position > 0, ends[np.maximum(position - 1, 0)], NEVER_NS)
        )
    return latest_end


def measure_blocked(rows: Columns, launch: CollectiveLaunches, named: NamedWork) -> OptionalInts:
    """Measure each all-gather's delay by the computing unit's own kernels, for one rank.

    0 if nothing blocked the gather; null if unknown and for other kinds.
    """
    start = rows.ints("start_ns")
    known = launch.known & rows.texts("kind").equals(CollectiveKind.ALL_GATHER.value)
    pass_index = np.searchsorted(named.passes, launch.launch_ns, side="right")
    known &= pass_index > 0
    pass_start = np.concatenate(([NEVER_NS], named.passes))[pass_index]
    earlier = find_latest_end(pass_start, start, named.times, named.stream)
    copied = find_latest_end(launch.launch_ns, start, named.times[named.copies], named.stream[named.copies])
    own = find_latest_end(launch.launch_ns, start, named.times[~named.copies], named.stream[~named.copies])
    ready = np.maximum.reduce([launch.launch_ns, launch.previous_ns, earlier, copied])
    was_blocked = (own > ready) & (start - own <= _MAX_START_NS)
    return OptionalInts(np.where(was_blocked, own - ready, 0), known)


def measure_prefetch(
    rows: Columns, compute: Intervals, moving: Intervals, step: Int64s | None = None
) -> dict[str, Int64s]:
    """Return free_compute_ns and queued_exposed_ns for one rank's collectives, sorted by start.

    Both are 0 for rows that are not all_gathers.

    Args:
        rows: Rows with kind, group, start_ns and end_ns.
        compute: When the rank computes, as disjoint intervals.
        moving: Its exposed transfer, as disjoint intervals.
        step: Each row's step; default: the ``step`` column.
    """
    start = rows.ints("start_ns")
    running = union(intervals(start, rows.ints("end_ns")))
    gather_end = _find_previous_gather_end(rows, rows.ints("step") if step is None else step)
    search_start = np.minimum(gather_end, start)
    # the end of the last compute that started before each start, capped at that start
    position = np.searchsorted(compute[:, 0], start, side="left")
    compute_end = np.minimum(np.concatenate(([NEVER_NS], compute[:, 1]))[position], start)
    return {
        "free_compute_ns": covered(subtract(compute, running), search_start, start),
        "queued_exposed_ns": covered(moving, np.maximum(compute_end, search_start), start),
    }


def _find_previous_gather_end(rows: Columns, step: Int64s) -> Int64s:
    """Return the end of the previous all_gather in the same group and step, or the row's own start."""
    gather_end, end = rows.ints("start_ns").copy(), rows.ints("end_ns")
    gathers = np.flatnonzero(rows.texts("kind").equals(CollectiveKind.ALL_GATHER.value))
    if not len(gathers):
        return gather_end
    group = rows.texts("group").codes[gathers]
    order = np.lexsort((step[gathers], group))
    gathers, group = gathers[order], group[order]
    is_first = np.concatenate(([True], (np.diff(group) != 0) | (np.diff(step[gathers]) != 0)))
    for lane in np.split(gathers, np.flatnonzero(is_first)[1:]):
        gather_end[lane[1:]] = np.maximum.accumulate(end[lane])[:-1]
    return gather_end


def make_limiter_columns(
    rank: int, limiter: Intervals, activity: RankActivity, steps: StepWindows, gather_ends: Int64s
) -> Columns:
    """Return the limiter delays in steps, with rank, step, start_ns, end_ns and idle_ns.

    Args:
        rank: The rank.
        limiter: When its host was in the limiter, as disjoint intervals.
        activity: Its activity; a rank without an accelerator gets no rows, because the host itself computes.
        steps: Its steps by host marks.
        gather_ends: Ends of its all_gathers, sorted.
    """
    delays = limiter[limiter[:, 1] - limiter[:, 0] >= _MIN_DELAY_NS]
    in_step = steps.step_at(delays[:, 0])
    keep = (in_step >= 0) & activity.on_device
    return Columns(
        {
            "rank": np.full(int(keep.sum()), rank, dtype=np.int64),
            "step": in_step[keep],
            "start_ns": delays[keep, 0],
            "end_ns": delays[keep, 1],
            "idle_ns": _measure_idle_after(delays[keep], activity.compute, gather_ends),
        }
    )


def _measure_idle_after(delays: Intervals, compute: Intervals, gather_ends: Int64s) -> Int64s:
    """Return the device idle time caused by each delay, counting each moment once."""
    if not len(delays) or not len(compute):
        return np.zeros(len(delays), dtype=np.int64)
    begin, end = delays.T
    following = np.searchsorted(compute[:, 0], end, side="left")
    next_start = np.append(compute[:, 0], _NO_TIME_NS)[following]
    compute_end = np.where(following > 0, compute[np.maximum(following - 1, 0), 1], begin)
    last = np.searchsorted(gather_ends, next_start, side="right") - 1
    gather_end = np.where(last >= 0, np.append(gather_ends, 0)[np.maximum(last, 0)], begin)
    counted_until = np.concatenate(([_NO_TIME_NS], np.maximum.accumulate(next_start)[:-1]))
    search_start = np.maximum(np.maximum(begin, compute_end), np.maximum(gather_end, counted_until))
    ran_dry = (compute_end <= end) & (following < len(compute))
    return np.where(ran_dry, np.maximum(next_start, search_start) - search_start, 0).astype(np.int64)


def mark_full_syncs(rows: Columns) -> Mask:
    """Mark rows whose kind no rank can leave before all have entered."""
    return rows.texts("kind").equals(*FULL_SYNC)


def select_kind(rows: Columns, *kinds: str) -> Columns:
    """Return the rows with these collective kinds."""
    return rows.at(rows.texts("kind").equals(*kinds))


class RowFinder:
    """Index for finding a rank's row in an instance."""

    def __init__(self, instance: Int64s, rank: Int64s) -> None:
        self._width = int(rank.max(initial=0)) + 1
        key = np.where(instance >= 0, instance * self._width + rank, -1)
        self._order = np.argsort(key, kind="stable")
        self._keys = key[self._order]

    def find(self, instance: Int64s, rank: Int64s) -> Int64s:
        """Return row numbers; -1 if the rank has no row in the instance."""
        possible = (instance >= 0) & (rank >= 0) & (rank < self._width)
        key = np.where(possible, instance * self._width + np.where(possible, rank, 0), -1)
        if not len(self._keys):
            return np.full(len(key), -1, dtype=np.int64)
        index = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        is_match = possible & (self._keys[index] == key)
        return np.where(is_match, self._order[index], -1)


def group_rows_by_text(
    rows: Columns, by: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], Columns]]:
    """Yield (strings, rows) per distinct combination of the string columns ``by``; rows have only
    ``columns``.
    """
    keys = [rows.texts(name) for name in by]
    selected = rows.pick(dict.fromkeys(columns))
    for places in Groups(*keys).split():
        yield tuple(key[places[0]] for key in keys), selected.at(places)


def parse_group_ranks(group: str) -> frozenset[int]:
    """Return the ranks in a group "0,1" or "0,1#description"; empty if unknown."""
    words = group.split("#", 1)[0].split(",")
    if not all(word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS for word in words):
        return frozenset()
    return frozenset(int(word) for word in words)


class StepCounts(Struct, frozen=True, kw_only=True):
    """Number of steps in the window, by loaded rank."""

    by_rank: Mapping[int, int]

    @property
    def per_rank(self) -> int:
        """Steps per rank: the maximum over ranks, at least 1."""
        return max(1, max(self.by_rank.values(), default=1))

    def sum_for_group(self, group: str, rows: Columns) -> int:
        """Return the sum of steps over a group's loaded ranks, at least 1.

        If the group's ranks are unknown, use the ranks that have rows.
        """
        ranks = parse_group_ranks(group) or set(rows.ints("rank").tolist())
        return max(1, sum(self.by_rank.get(rank, 0) for rank in ranks))
