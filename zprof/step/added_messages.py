"""Insert messages into a measured step: pieces of a message, or the replica all_reduce of hybrid sharding.

With shards within a host, gathers run at intra-host bandwidth. Each reduction is followed by an all_reduce of
the shard over the replicas, on a separate communicator and stream, and the update waits for it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.step.blocks import main_stream_of_rank
from zprof.step.edits import reorder_tasks, scale_transfers
from zprof.step.tasks import NONE, Floats, Graph, RankGraph

#: Maximum host time to launch an extra collective, including its events.
_MAX_LAUNCH_NS = 100_000.0


class NewTask(Struct, frozen=True, kw_only=True):
    """A task to insert, copied from an existing task of its rank.

    Attributes:
        like: Task whose call, stream and costs are copied unless overridden.
        place: Host-order position to insert it before.
        work_ns: Duration of its work; for a collective, in addition to the shared transfer.
        collective: The instance of the collective, ``NONE`` for other work.
        waits_on: Tasks that it waits for; new tasks are numbered after the last task of the rank.
        gap_ns: Host time before the call.
        stream: Its stream, if that differs from the stream of ``like``.
    """

    like: int
    place: float
    work_ns: float
    gap_ns: float
    collective: int = NONE
    waits_on: tuple[int, ...] = ()
    stream: int | None = None


class NewCollectives(Struct):
    """Collectives that a change adds, identified by a key that is the same on all ranks."""

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
        """Return the graph with these collectives; ``transfer_ns`` holds the times of the existing ones."""
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
        ratio_of_row: Time ratio of each collective row that becomes intra-host.
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
