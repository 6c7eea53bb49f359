"""Add messages to a measured step: pieces of one, or the all_reduce over replicas of hybrid sharding.

With shards within a host gathers run at that host's rate, and each reduction is followed by an all_reduce of
the shard over the replicas, on a communicator and a stream of its own, for which the update waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from zprof.replay.blocks import main_stream_of_rank
from zprof.replay.edits import reorder_tasks, scale_transfers
from zprof.replay.graph import Graph, RankGraph
from zprof.replay.tasks import NONE, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task like another one of its rank.

    Attributes:
        like: The task that it is like: its call, its stream, its costs where nothing else is said.
        place: Before which place of the host's order it is launched.
        work_ns: How long its work runs; of a collective, beyond the transfer that all ranks share.
        collective: The instance that it is of, ``NONE`` for other work.
        waits_on: Tasks that it waits for; new ones are numbered on from the rank's last task.
        gap_ns: What the host does before the call.
        stream: Its stream, where that is not the other one's.
    """

    like: int
    place: float
    work_ns: float
    gap_ns: float
    collective: int = NONE
    waits_on: tuple[int, ...] = ()
    stream: int | None = None


@dataclass(slots=True)
class NewCollectives:
    """Collectives that a change adds, by what they are for: the same on all ranks."""

    graph: Graph
    numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    transfer_ns: list[float] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)

    def join(self, key: tuple[object, ...], transfer_ns: float, lane: int) -> int:
        """Return the number of the collective with this key, of which one more rank takes part."""
        number = self.numbers.setdefault(key, len(self.numbers))
        if number == len(self.members):
            self.transfer_ns.append(transfer_ns)
            self.members.append(0)
            self.lane.append(lane)
        self.members[number] += 1
        return len(self.graph.transfer_ns) + number

    def added_to(self, ranks: Sequence[RankGraph], transfer_ns: Floats) -> Graph:
        """Return the graph with them; ``transfer_ns``: of those that were there."""
        return replace(
            self.graph,
            ranks=tuple(ranks),
            transfer_ns=np.concatenate((transfer_ns, np.array(self.transfer_ns))),
            members=np.concatenate((self.graph.members, np.array(self.members, dtype=np.int64))),
            lane=np.concatenate((self.graph.lane, np.array(self.lane, dtype=np.int64))),
        )


def add_tasks(rank: RankGraph, new: Sequence[NewTask]) -> RankGraph:
    """Return the rank with new tasks at their places of the host's order."""
    if not new:
        return rank
    count = len(rank.tasks)
    source = np.concatenate((np.arange(count), [task.like for task in new])).astype(np.int64)
    rows = np.concatenate((rank.tasks.row, np.full(len(new), NONE, dtype=np.int64)))
    longer = replace(
        rank,
        tasks=replace(rank.tasks.at(source), row=rows),
        gap_ns=np.concatenate((rank.gap_ns, [task.gap_ns for task in new])),
        call_ns=rank.call_ns[source],
        blocks_on=np.concatenate((rank.blocks_on, np.full(len(new), NONE, dtype=np.int64))),
        returns_ns=rank.returns_ns[source],
        stream=np.concatenate(
            (
                rank.stream,
                [rank.stream[task.like] if task.stream is None else task.stream for task in new],
            )
        ).astype(np.int64),
        work_ns=np.concatenate((rank.work_ns, [task.work_ns for task in new])),
        waits_on=(*rank.waits_on, *(task.waits_on for task in new)),
        lag_ns=np.concatenate((rank.lag_ns, np.zeros(len(new)))),
        collective=np.concatenate((rank.collective, [task.collective for task in new])).astype(np.int64),
        copy_in=np.concatenate((rank.copy_in, np.full(len(new), NONE, dtype=np.int64))),
        copy_out=np.concatenate((rank.copy_out, np.full(len(new), NONE, dtype=np.int64))),
    )
    place = np.concatenate((np.arange(count, dtype=np.float64), [task.place - 0.5 for task in new]))
    return reorder_tasks(longer, np.argsort(place, kind="stable"))


#: What the host takes to launch one more message, with its events.
_MAX_LAUNCH_NS = 100_000.0


def shard_within_hosts(
    graph: Graph,
    ratio_of_row: Mapping[int, float],
    replica_ns_of_row: Mapping[int, float],
    peers: Mapping[int, int],
) -> Graph:
    """Let collectives take a multiple of their time, and reductions be followed by one over the replicas.

    Args:
        graph: The measured step.
        ratio_of_row: Of each row of the analysis' collectives that moves within a host then.
        replica_ns_of_row: How long the all_reduce takes that follows a row; none for rows that have none.
        peers: Which replicas' group each rank is in.
    """
    scaled = scale_transfers(graph, ratio_of_row)
    added = NewCollectives(scaled)
    lane = int(graph.lane.max(initial=0)) + 1
    ranks = tuple(
        _add_replica_reductions(rank, added, replica_ns_of_row, peers, lane) for rank in scaled.ranks
    )
    return added.added_to(ranks, scaled.transfer_ns)


def _add_replica_reductions(
    rank: RankGraph,
    added: NewCollectives,
    replica_ns_of_row: Mapping[int, float],
    peers: Mapping[int, int],
    lane: int,
) -> RankGraph:
    stream = int(rank.stream.max(initial=0)) + 1
    compute = np.flatnonzero((rank.stream == main_stream_of_rank(rank)) & (rank.collective == NONE))
    new: list[NewTask] = []
    waits = list(rank.waits_on)
    group = peers[rank.tasks.rank]
    mine = [
        at
        for at in np.flatnonzero(rank.collective != NONE).tolist()
        if int(rank.tasks.row[at]) in replica_ns_of_row
    ]
    for order, at in enumerate(mine):
        time = replica_ns_of_row[int(rank.tasks.row[at])]
        number = added.join((group, order), time, lane + group)
        new.append(
            NewTask(
                like=at,
                place=at + 1.0,
                work_ns=time,
                gap_ns=min(float(rank.gap_ns[at]), _MAX_LAUNCH_NS),
                collective=number,
                waits_on=(at,),
                stream=stream,
            )
        )
        step = rank.tasks.step[at]
        if order + 1 == len(mine) or rank.tasks.step[mine[order + 1]] != step:
            # the update is what is launched behind the last reduction of a step
            place = int(np.searchsorted(compute, at))
            if place < len(compute) and rank.tasks.step[compute[place]] == step:
                update = int(compute[place])
                waits[update] = (*waits[update], len(rank.tasks) + len(new) - 1)
    return add_tasks(replace(rank, waits_on=tuple(waits)), new)
