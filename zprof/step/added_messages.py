"""Insert messages into a measured step: pieces of a message, or hybrid sharding's replica all_reduce.

With shards within a host, gathers run at intra-host bandwidth. Each reduction is followed by an all_reduce of
the shard over its replicas, on a separate communicator and stream, and the update waits for this all_reduce.

A model-wide gather or reduction is split into one message per block. Each block waits only for its own part,
which is gathered while the previous block computes. Its gradients are reduced while the next block's are
computed. The recording does not show how the bytes are distributed: all blocks get the same share; the
embedding and the head get bytes in proportion to their matmul time.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.model.collectives import CollectiveKind
from zprof.step.edits import reorder_tasks, scale_transfers
from zprof.step.structure import PartnerCopies, RankMessages, is_compute, main_stream_of_rank
from zprof.step.tasks import NONE, Floats, Graph, RankGraph

#: Maximum host time to launch an extra collective, including its events.
_MAX_LAUNCH_NS = 100_000.0
_GATHER = CollectiveKind.ALL_GATHER.value
_REDUCES = frozenset({CollectiveKind.REDUCE_SCATTER.value, CollectiveKind.ALL_REDUCE.value})
#: The head's forward as a share of the compute between forward and backward pass: its backward takes twice as
#: long as its forward.
_HEAD_RATIO = 1 / 3
#: Maximum host time to launch a piece; any excess before the first message belongs to the start of the step.
_LAUNCH_NS = 150_000.0
#: Reductions shorter than this share of the longest one are assumed to be for a norm or a loss.
_LARGE_RATIO = 0.05
_MATRIX_PRODUCT = re.compile(r"gemm|nvjet|cutlass|matmul|Cijk", re.ASCII | re.IGNORECASE)


class NewTask(Struct, frozen=True, kw_only=True):
    """A task to insert, copied from an existing task of its rank.

    Attributes:
        like: Task whose call, stream and costs are copied unless overridden.
        place: Host-order position before which it is inserted.
        work_ns: Duration of its work; for a collective, added to the shared transfer.
        collective: The instance of the collective, ``NONE`` for other work.
        waits_on: Tasks that it waits for; new tasks are numbered after the rank's last task.
        gap_ns: Host time before the call.
        stream: Its stream, if different from the stream of ``like``.
    """

    like: int
    place: float
    work_ns: float
    gap_ns: float
    collective: int = NONE
    waits_on: tuple[int, ...] = ()
    stream: int | None = None


class NewCollectives(Struct):
    """Collectives added by a change, identified by a key that is the same on all ranks."""

    graph: Graph
    numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    transfer_ns: list[float] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)

    def add_member(self, key: tuple[object, ...], transfer_ns: float, lane: int) -> int:
        """Add a rank to the collective with this key and return its index."""
        number = self.numbers.setdefault(key, len(self.numbers))
        if number == len(self.members):
            self.transfer_ns.append(transfer_ns)
            self.members.append(0)
            self.lane.append(lane)
        self.members[number] += 1
        return len(self.graph.transfer_ns) + number

    def build_graph(self, ranks: Sequence[RankGraph], transfer_ns: Floats) -> Graph:
        """Return the graph with these collectives; ``transfer_ns``: times of the existing collectives."""
        return replace(
            self.graph,
            ranks=tuple(ranks),
            transfer_ns=np.concatenate((transfer_ns, np.array(self.transfer_ns))),
            members=np.concatenate((self.graph.members, np.array(self.members, dtype=np.int64))),
            lane=np.concatenate((self.graph.lane, np.array(self.lane, dtype=np.int64))),
        )


def add_tasks(rank: RankGraph, new_tasks: Sequence[NewTask]) -> RankGraph:
    """Return the rank with new tasks inserted at their positions in host order."""
    if not new_tasks:
        return rank
    count = len(rank.tasks)
    source = np.concatenate((np.arange(count), [task.like for task in new_tasks])).astype(np.int64)
    rows = np.concatenate((rank.tasks.row, np.full(len(new_tasks), NONE, dtype=np.int64)))
    extended = replace(
        rank,
        tasks=replace(rank.tasks.at(source), row=rows),
        gap_ns=np.concatenate((rank.gap_ns, [task.gap_ns for task in new_tasks])),
        call_ns=rank.call_ns[source],
        blocks_on=np.concatenate((rank.blocks_on, np.full(len(new_tasks), NONE, dtype=np.int64))),
        returns_ns=rank.returns_ns[source],
        stream=np.concatenate(
            (
                rank.stream,
                [rank.stream[task.like] if task.stream is None else task.stream for task in new_tasks],
            )
        ).astype(np.int64),
        work_ns=np.concatenate((rank.work_ns, [task.work_ns for task in new_tasks])),
        waits_on=(*rank.waits_on, *(task.waits_on for task in new_tasks)),
        lag_ns=np.concatenate((rank.lag_ns, np.zeros(len(new_tasks)))),
        collective=np.concatenate((rank.collective, [task.collective for task in new_tasks])).astype(
            np.int64
        ),
        copy_in=np.concatenate((rank.copy_in, np.full(len(new_tasks), NONE, dtype=np.int64))),
        copy_out=np.concatenate((rank.copy_out, np.full(len(new_tasks), NONE, dtype=np.int64))),
    )
    place = np.concatenate((np.arange(count, dtype=np.float64), [task.place - 0.5 for task in new_tasks]))
    return reorder_tasks(extended, np.argsort(place, kind="stable"))


def shard_within_hosts(
    graph: Graph,
    ratio_of_row: Mapping[int, float],
    replica_ns_of_row: Mapping[int, float],
    peers: Mapping[int, int],
) -> Graph:
    """Scale collectives to intra-host bandwidth, and append a replica all_reduce to each reduction.

    Args:
        graph: The measured step.
        ratio_of_row: Time ratio of each collective row that moves within hosts.
        replica_ns_of_row: Duration of the all_reduce appended to a row; no entry if there is none.
        peers: The replica group of each rank.
    """
    scaled = scale_transfers(graph, ratio_of_row)
    added = NewCollectives(scaled)
    lane = int(graph.lane.max(initial=0)) + 1
    ranks = tuple(
        _add_replica_reductions(rank, added, replica_ns_of_row, peers, lane) for rank in scaled.ranks
    )
    return added.build_graph(ranks, scaled.transfer_ns)


def _add_replica_reductions(
    rank: RankGraph,
    added: NewCollectives,
    replica_ns_of_row: Mapping[int, float],
    peers: Mapping[int, int],
    lane: int,
) -> RankGraph:
    stream = int(rank.stream.max(initial=0)) + 1
    compute = np.flatnonzero((rank.stream == main_stream_of_rank(rank)) & (rank.collective == NONE))
    new_tasks: list[NewTask] = []
    waits = list(rank.waits_on)
    group = peers[rank.tasks.rank]
    reductions = [
        task_index
        for task_index in np.flatnonzero(rank.collective != NONE).tolist()
        if int(rank.tasks.row[task_index]) in replica_ns_of_row
    ]
    for index, task_index in enumerate(reductions):
        time = replica_ns_of_row[int(rank.tasks.row[task_index])]
        number = added.add_member((group, index), time, lane + group)
        new_tasks.append(
            NewTask(
                like=task_index,
                place=task_index + 1.0,
                work_ns=time,
                gap_ns=min(float(rank.gap_ns[task_index]), _MAX_LAUNCH_NS),
                collective=number,
                waits_on=(task_index,),
                stream=stream,
            )
        )
        step = rank.tasks.step[task_index]
        if index + 1 == len(reductions) or rank.tasks.step[reductions[index + 1]] != step:
            # the update is the first compute launched after the last reduction of a step
            place = int(np.searchsorted(compute, task_index))
            if place < len(compute) and rank.tasks.step[compute[place]] == step:
                update = int(compute[place])
                waits[update] = (*waits[update], len(rank.tasks) + len(new_tasks) - 1)
    return add_tasks(replace(rank, waits_on=tuple(waits)), new_tasks)


class _BlockPass(Struct, frozen=True, kw_only=True):
    """A pass over the model's blocks: each block's first and last task."""

    first: tuple[int, ...]
    last: tuple[int, ...]


def split_units(
    graph: Graph,
    read: Callable[[RankGraph], RankMessages],
    latency_ns: Callable[[int], float],
    copies: Collection[str],
    *,
    again: bool,
) -> Graph | None:
    """Split each model-wide collective into one per block.

    Args:
        graph: The measured step.
        read: Returns a rank's messages.
        latency_ns: Returns the latency of a row of the analysis' collectives.
        copies: Names of kernels that only copy into and out of communication buffers.
        again: True if a block is freed after its forward and gathered again for its backward pass.

    Returns:
        The changed graph, None if the ranks do not issue the same collectives or no blocks are found.
    """
    each = [read(rank) for rank in graph.ranks]
    if len({messages.kind for messages in each}) > 1:
        return None
    added, transfer = NewCollectives(graph), graph.transfer_ns.copy()
    ranks = []
    for rank, messages in zip(graph.ranks, each, strict=True):
        split = _RankSplit(rank, messages, added, transfer, latency_ns, copies, again=again)
        ranks.append(split.build())
    return added.build_graph(ranks, transfer) if added.members else None


class _RankSplit:
    """Rebuilds one rank with split messages."""

    def __init__(
        self,
        rank: RankGraph,
        messages: RankMessages,
        added: NewCollectives,
        transfer: Floats,
        latency_ns: Callable[[int], float],
        copies: Collection[str],
        *,
        again: bool,
    ) -> None:
        self._rank, self._messages, self._added, self._transfer = rank, messages, added, transfer
        self._latency, self._again = latency_ns, again
        self._computing = np.flatnonzero(is_compute(rank, copies))
        self._partners = PartnerCopies(rank, messages.at[messages.gathers], copies)
        self._passes = _find_block_passes(rank, messages)
        self._new: list[NewTask] = []
        self._work = rank.work_ns.copy()
        self._waits = list(rank.waits_on)
        self._removed: list[int] = []

    def build(self) -> RankGraph:
        """Return the rank with its messages split."""
        gathers = self._messages.gathers
        needed = self._messages.needed[gathers]
        for unit in np.unique(needed).tolist():
            self._split_gather(self._messages.at[gathers[needed == unit]].tolist(), unit)
        reductions = [
            int(task)
            for task, kind in zip(self._messages.at, self._messages.kind, strict=True)
            if kind in _REDUCES
        ]
        times = self._added.graph.transfer_ns[self._rank.collective[reductions]]
        reductions = [
            task
            for task, time in zip(reductions, times.tolist(), strict=True)
            if time > _LARGE_RATIO * times.max()
        ]
        for step in np.unique(self._rank.tasks.step[reductions]).tolist():
            self._split_reductions([task for task in reductions if self._rank.tasks.step[task] == step])
        gone = np.zeros(len(self._rank.tasks), dtype=np.bool_)
        gone[self._removed] = True
        rank = replace(
            self._rank,
            work_ns=self._work,
            waits_on=tuple(self._waits),
            gap_ns=np.where(gone, 0.0, self._rank.gap_ns),
        )
        return add_tasks(rank, self._new)

    def _split_gather(self, tasks: Sequence[int], needed: int) -> None:
        passes = [
            each for each in self._passes if each.first[0] >= needed and self._is_same_step(each, tasks[0])
        ]
        if len(passes) < 2:
            return
        forward, backward = passes[0], passes[1]
        root_ratio, block_ratio = self._compute_byte_ratios(forward, backward)
        first_task = tasks[0]
        latency = self._latency(int(self._rank.tasks.row[first_task]))
        total_ns = sum(float(self._added.graph.transfer_ns[self._rank.collective[task]]) for task in tasks)
        transfer_ns = max(0.0, total_ns - latency * len(tasks))
        starts = [tasks[-1] + 1, *forward.first]
        copies = self._partners.before(first_task), self._partners.behind(tasks[-1])
        for launch, begin in pairwise(starts):
            self._add_gather(
                first_task, launch, begin, latency + transfer_ns * block_ratio, block_ratio, copies
            )
        if self._again:
            # the last block is not freed before its backward pass
            for launch, begin in pairwise(backward.first):
                self._add_gather(
                    first_task, launch, begin, latency + transfer_ns * block_ratio, block_ratio, copies
                )
        self._set_remaining_time(tasks, latency + transfer_ns * root_ratio)
        for copy in copies:
            if copy is not None:
                self._work[copy] = self._rank.work_ns[copy] * root_ratio

    def _add_gather(
        self,
        like: int,
        launch: int,
        begin: int,
        time: float,
        block_ratio: float,
        copies: tuple[int | None, int | None],
    ) -> None:
        """Add the gather of the block whose first task is ``begin``, launched before the task ``launch``."""
        copy_in, copy_out = copies
        number = int(self._rank.collective[like])
        waits = self._find_compute_before(launch)
        if copy_in is not None:
            waits = (self._add(copy_in, launch, float(self._rank.work_ns[copy_in]) * block_ratio, waits),)
        key = number, int(self._messages.blocks[begin])
        collective_index = self._added.add_member(key, time, int(self._added.graph.lane[number]))
        gather = self._add(like, launch, time, waits, collective_index)
        if copy_out is not None and copy_out > like:
            self._add(copy_out, begin, float(self._rank.work_ns[copy_out]) * block_ratio, (gather,))
        else:
            self._waits[begin] = (*self._waits[begin], gather)

    def _split_reductions(self, tasks: Sequence[int]) -> None:
        """Split a step's reductions; within a block they run in sequence (shards, then replicas)."""
        passes = [
            each for each in self._passes if each.last[-1] <= tasks[0] and self._is_same_step(each, tasks[0])
        ]
        if len(passes) < 2:
            return
        backward = passes[-1]
        root_ratio, block_ratio = self._compute_byte_ratios(passes[-2], backward)
        ends = [*backward.first[1:], self._find_compute_after(backward.last[-1])]
        done: set[int] = set()
        for block, place in enumerate(ends):
            waits = self._find_compute_before(place)
            for task in tasks:
                copy_in, copy_out = self._partners.before(task), self._partners.behind(task)
                number = int(self._rank.collective[task])
                latency = self._latency(int(self._rank.tasks.row[task]))
                transfer_ns = max(0.0, float(self._added.graph.transfer_ns[number]) - latency)
                if copy_in is not None and copy_in not in done:
                    waits = (
                        self._add(copy_in, place, float(self._rank.work_ns[copy_in]) * block_ratio, waits),
                    )
                time = latency + transfer_ns * block_ratio
                key = number, "reduce", block
                collective_index = self._added.add_member(key, time, int(self._added.graph.lane[number]))
                waits = (self._add(task, place, time, waits, collective_index),)
                if copy_out is not None:
                    waits = (
                        self._add(copy_out, place, float(self._rank.work_ns[copy_out]) * block_ratio, waits),
                    )
                    done.add(copy_out)
                self._set_remaining_time([task], latency + transfer_ns * root_ratio)
                for copy in (copy_in, copy_out):
                    if copy is not None:
                        self._work[copy] = self._rank.work_ns[copy] * root_ratio
            done.clear()

    def _add(
        self, like: int, place: float, work: float, waits: tuple[int, ...], collective: int = NONE
    ) -> int:
        self._new.append(
            NewTask(
                like=like,
                place=place,
                work_ns=work,
                gap_ns=min(float(self._rank.gap_ns[like]), _LAUNCH_NS),
                collective=collective,
                waits_on=waits,
            )
        )
        return len(self._rank.tasks) + len(self._new) - 1

    def _set_remaining_time(self, tasks: Sequence[int], time: float) -> None:
        """Set the first collective's time, and zero the others."""
        for task in tasks:
            task_ns = time if task == tasks[0] else 0.0
            self._transfer[self._rank.collective[task]] = self._work[task] = task_ns
            if task != tasks[0]:
                self._removed.append(task)

    def _compute_byte_ratios(self, forward: _BlockPass, backward: _BlockPass) -> tuple[float, float]:
        """Return the root's (embedding and head) share of the bytes, and each block's."""
        blocks_ns = max(1.0, self._sum_matmul_time(forward.first[0], forward.last[-1] + 1))
        root_ns = 2 * _HEAD_RATIO * self._sum_matmul_time(forward.last[-1] + 1, backward.first[0])
        total_ns = blocks_ns + root_ns
        return root_ns / total_ns, blocks_ns / len(forward.first) / total_ns

    def _sum_matmul_time(self, begin: int, end: int) -> float:
        """Return the matmul time between two tasks, which is proportional to their parameters."""
        tasks = self._computing[(self._computing >= begin) & (self._computing < end)]
        products = [at for at in tasks.tolist() if _MATRIX_PRODUCT.search(self._rank.tasks.kernel[at])]
        return float(self._rank.work_ns[products or tasks].sum())

    def _is_same_step(self, each: _BlockPass, task: int) -> bool:
        return bool(self._rank.tasks.step[each.first[0]] == self._rank.tasks.step[task])

    def _find_compute_before(self, place: int) -> tuple[int, ...]:
        """Return the last compute launched before a position; empty before the first."""
        at = int(np.searchsorted(self._computing, place)) - 1
        return (int(self._computing[at]),) if at >= 0 else ()

    def _find_compute_after(self, task: int) -> int:
        """Return the next compute launched after a task."""
        at = int(np.searchsorted(self._computing, task, side="right"))
        return int(self._computing[min(at, len(self._computing) - 1)])


def _find_block_passes(rank: RankGraph, messages: RankMessages) -> list[_BlockPass]:
    """Return a rank's passes: consecutive blocks that run the same kernels."""
    tasks = np.flatnonzero(messages.blocks != NONE)
    if not len(tasks):
        return []
    found: list[tuple[list[int], list[int]]] = []
    current: tuple[object, ...] = ()
    for block in np.split(tasks, np.flatnonzero(np.diff(messages.blocks[tasks])) + 1):
        kernels = (
            int(rank.tasks.step[block[0]]),
            tuple(rank.tasks.kernel[task] for task in block.tolist()),
        )
        if kernels != current:
            found.append(([], []))
            current = kernels
        found[-1][0].append(int(block[0]))
        found[-1][1].append(int(block[-1]))
    return [_BlockPass(first=tuple(first), last=tuple(last)) for first, last in found]
