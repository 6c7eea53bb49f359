"""A measured step as tasks: each rank's host calls, the work that they launch, and what both wait for.

A task is one host call with the work that it launched, if any. Times are nanoseconds on the common clock
since the start of the first replayed step.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Groups, Texts
from zprof.analysis.intervals import Int64s
from zprof.model.collectives import CollectiveKind

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NONE = -1
#: A communicator's operations that overlap by less than this still count as sequential.
_OVERLAP_NS = 4_000.0
#: Ranks that one exchange may connect, one after another.
_MAX_BATCH = 64


class RankTasks(Struct, frozen=True, kw_only=True):
    """One rank's tasks in host order. All arrays have one entry per task.

    Attributes:
        call: Start and end of the call. ``thread``, ``name`` and ``blocks`` (True if the call can block the
            host) also describe the call.
        work: Start and end of the device work; NaN if the call launched none.
        stream: The stream of the work, ``NONE`` if there is no work.
        kernel: The name of the work, "" if there is no work.
        row: The work's row in the analysis' collectives, ``NONE`` if it is not a collective.
        step: The number of the step that the call was made in.
    """

    rank: int
    thread: Int64s
    name: Texts
    blocks: Bools
    call: Floats
    work: Floats
    stream: Int64s
    kernel: Texts
    row: Int64s
    step: Int64s

    def __len__(self) -> int:
        return len(self.step)

    def at(self, indices: Int64s) -> "RankTasks":
        """Return the tasks at these indices, in that order. Indices may repeat."""
        return replace(
            self,
            thread=self.thread[indices],
            name=self.name.at(indices),
            blocks=self.blocks[indices],
            call=self.call[indices],
            work=self.work[indices],
            stream=self.stream[indices],
            kernel=self.kernel.at(indices),
            row=self.row[indices],
            step=self.step[indices],
        )

    def since_step(self, number: int, later_ns: int) -> "RankTasks":
        """Return the tasks of the steps from ``number`` on, their times since an origin that is later."""
        kept = self.at(np.flatnonzero(self.step >= number))
        return replace(kept, call=kept.call - later_ns, work=kept.work - later_ns)


class RankGraph(Struct, frozen=True, kw_only=True):
    """One rank's tasks with their costs and dependencies; one entry per task.

    Attributes:
        gap_ns: Host time between the previous call and this one.
        call_ns: Duration of the call, excluding blocked time.
        blocks_on: The task whose work the call blocks on, ``NONE`` if none. ``returns_ns``: time from the end
            of that work to the call's return.
        stream: The stream of the work, ``NONE`` without work. ``work_ns`` is its duration.
        waits_on: Tasks of other streams that this work waits for.
        held: Collectives that started just as a kernel on another stream ended, although they cannot depend
            on it: the kernel was launched later, or other collectives on the stream were launched before
            them, too.
        lag_ns: Delay before the work starts with all inputs ready.
        collective: The instance of the collective, ``NONE`` for other work.
        copy_in: For collectives, the task that fills the buffer. ``copy_out``: the task that empties the
            buffer or finishes its content. ``NONE`` if there is none.
        first_step: The number of the first replayed step.
        begin_ns: Start of the first replayed step on the device; ``host_begin_ns`` on the host.
        tail_ns: Host time after the last call.
        pick_up_ns: Time from the start of a launch to the start of its undelayed work.
    """

    tasks: RankTasks
    gap_ns: Floats
    call_ns: Floats
    blocks_on: Int64s
    returns_ns: Floats
    stream: Int64s
    work_ns: Floats
    waits_on: tuple[tuple[int, ...], ...]
    held: tuple[int, ...]
    lag_ns: Floats
    collective: Int64s
    copy_in: Int64s
    copy_out: Int64s
    first_step: int
    begin_ns: float
    host_begin_ns: float
    tail_ns: float
    pick_up_ns: float


class Graph(Struct, frozen=True, kw_only=True):
    """A run's ranks and their shared collectives.

    Attributes:
        transfer_ns: Time from the arrival of the last rank to the end, per collective instance.
        members: Number of ranks that take part in each instance.
        lane: Each instance's communicator if it runs one operation at a time, else ``NONE``.
        measured_ns: Recorded end of each step on each rank: an array of [rank, step].
        steps: Number of replayed steps.
        origin_ns: Time origin on the common clock.
        lost: Share of its rate that a communicator loses to concurrent communicators, by ``lane``.
        stages: Pipeline stage of each rank, by rank; empty without a pipeline.
        has_start: True if the recording started in the first replayed step.
        has_kernels: True if the tasks are a device's kernels, False if they are spans of a thread.
    """

    ranks: tuple[RankGraph, ...]
    transfer_ns: Floats
    members: Int64s
    lane: Int64s
    measured_ns: Floats
    steps: int
    origin_ns: int
    lost: Mapping[int, float] = field(default_factory=dict)
    stages: Mapping[int, int] = field(default_factory=dict)
    has_start: bool = True
    has_kernels: bool = True

    def list_peers(self) -> list[list[int]]:
        """Return the places of ranks that run the same program: those of one pipeline stage, else all."""
        peers: dict[int, list[int]] = {}
        for place, rank in enumerate(self.ranks):
            peers.setdefault(self.stages.get(rank.tasks.rank, 0), []).append(place)
        return list(peers.values())


def step_places(rank: RankGraph) -> Int64s:
    """Return each task's step as an index into the replayed steps, which never decreases along the tasks."""
    return np.maximum.accumulate(rank.tasks.step - rank.first_step)


def mark_rows(rank: RankGraph, rows: Set[int]) -> Bools:
    """Return a mask of the collectives with these rows, which may belong to any rank."""
    at = np.flatnonzero(rank.collective != NONE)
    found = np.zeros(len(rank.tasks), dtype=np.bool_)
    found[at] = [row in rows for row in rank.tasks.row[at].tolist()]
    return found


class SharedCollectives(Struct, frozen=True, kw_only=True):
    """All ranks' collectives; ``numbers``: each task's instance, ``NONE`` for other tasks.

    The other arrays have one entry per instance: arrival of its last rank, time from then to its first end,
    number of ranks, and its communicator if it runs one operation at a time, else ``NONE``.
    """

    numbers: tuple[Int64s, ...]
    arrival_ns: Floats
    transfer_ns: Floats
    members: Int64s
    lane: Int64s


def match_collectives(tasks: Sequence[RankTasks], rows: Columns, *, apart: bool) -> SharedCollectives:
    """Number the instances of the ranks' collectives; with ``apart``, each rank has its own instances."""
    instances = _join_batches(rows).tolist()
    known: dict[tuple[int, int], int] = {}
    numbers = []
    for each in tasks:
        mine = np.full(len(each), NONE, dtype=np.int64)
        for at in np.flatnonzero(each.row != NONE).tolist():
            row = int(each.row[at])
            is_shared = instances[row] >= 0 and not apart
            mine[at] = known.setdefault((NONE, instances[row]) if is_shared else (each.rank, row), len(known))
        numbers.append(mine)
    arrival, finish = np.full(len(known), -np.inf), np.full(len(known), np.inf)
    members, lane = np.zeros(len(known), dtype=np.int64), np.full(len(known), NONE, dtype=np.int64)
    lane_of_row = _number_lanes(rows)
    for each, mine in zip(tasks, numbers, strict=True):
        inside = np.flatnonzero(mine != NONE)
        np.maximum.at(arrival, mine[inside], each.work[inside, 0])
        np.minimum.at(finish, mine[inside], each.work[inside, 1])
        np.add.at(members, mine[inside], 1)
        lane[mine[inside]] = lane_of_row[each.row[inside]]
    is_in_order = [not apart and _is_sequential(tasks, numbers, lane == number) for number in np.unique(lane)]
    return SharedCollectives(
        numbers=tuple(numbers),
        arrival_ns=arrival,
        transfer_ns=np.maximum(0.0, finish - arrival),
        members=members,
        lane=np.where(np.isin(lane, np.unique(lane)[is_in_order]), lane, NONE),
    )


def _join_batches(rows: Columns) -> Int64s:
    """Return each row's instance; messages that one kernel exchanges are one instance, with all its ranks.

    A batch of sends and receives is one kernel: none of them is done before the last peer has arrived.
    Kernels that did not run at the same time are not joined.
    """
    instances: Int64s = rows.ints("instance").copy()
    if not len(rows):
        return instances
    message = rows.texts("kind").equals(CollectiveKind.SEND.value, CollectiveKind.RECV.value)
    at = np.flatnonzero(message & (instances >= 0))
    start, end = rows.ints("start_ns")[at], rows.ints("end_ns")[at]
    kernels, pairs = Groups(rows.ints("rank")[at], start, end), Groups(instances[at])
    joined = instances[at]
    for _ in range(_MAX_BATCH):  # the smallest number spreads from kernel to kernel
        spread = pairs.min(kernels.min(joined)[kernels.codes])[pairs.codes]
        if (spread == joined).all():
            break
        joined = spread
    batches = Groups(joined)
    is_together = (batches.max(start) <= batches.min(end))[batches.codes]
    instances[at] = np.where(is_together, joined, instances[at])
    return instances


def _number_lanes(rows: Columns) -> Int64s:
    """Return the number of each row's group; ``NONE`` for messages between two ranks.

    Two pairs of a group exchange messages at the same time.
    """
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    is_between_two = rows.texts("kind").equals(CollectiveKind.SEND.value, CollectiveKind.RECV.value)
    return np.where(is_between_two, NONE, rows.group_by("group").codes)


def _is_sequential(tasks: Sequence[RankTasks], numbers: Sequence[Int64s], is_mine: Bools) -> bool:
    """Return True if these instances ran sequentially, in launch order, on every rank."""
    for each, mine in zip(tasks, numbers, strict=True):
        at = np.flatnonzero(mine != NONE)
        at = at[is_mine[mine[at]]]
        if len(at) > 1 and (each.work[at[1:], 0] < each.work[at[:-1], 1] - _OVERLAP_NS).any():
            return False
    return True


def merge_orders(orders: Iterable[Sequence[int]]) -> list[int] | None:
    """Merge orders into one that agrees with all of them, None if they contradict each other."""
    distinct = {tuple(order): None for order in orders if len(order)}
    if len(distinct) <= 1:
        return [number for order in distinct for number in order]
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for order in distinct:
        sorter.add(order[0])
        for before, after in pairwise(order):
            sorter.add(after, before)
    try:
        return list(sorter.static_order())
    except CycleError:
        return None


def lower_median(rows: Floats) -> Floats:
    """Return each column's median, the lower median for an even number of rows."""
    return np.sort(rows, axis=0)[(len(rows) - 1) // 2]


def own_work_ns(rank: RankGraph) -> Floats:
    """Return each task's work time, 0 for collectives."""
    return np.where(rank.collective == NONE, rank.work_ns, 0.0)
