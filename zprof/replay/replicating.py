"""Move the shards of a run to within a host: gathers at that host's rate, and an all_reduce between hosts.

Each reduction is followed by an all_reduce of the shard over the replicas, on a communicator and a stream of
its own, for which the update waits.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from zprof.replay.adding import NewCollectives, NewTask, add_tasks
from zprof.replay.blocks import main_stream
from zprof.replay.edits import scale_transfers
from zprof.replay.graph import Graph, RankGraph
from zprof.replay.tasks import NONE

#: What the host takes to launch one more message, with its events.
_LAUNCH_NS = 100_000.0


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
    ranks = tuple(_replicate(rank, added, replica_ns_of_row, peers, lane) for rank in scaled.ranks)
    return added.added_to(ranks, scaled.transfer_ns)


def _replicate(
    rank: RankGraph,
    added: NewCollectives,
    replica_ns_of_row: Mapping[int, float],
    peers: Mapping[int, int],
    lane: int,
) -> RankGraph:
    stream = int(rank.stream.max(initial=0)) + 1
    compute = np.flatnonzero((rank.stream == main_stream(rank)) & (rank.collective == NONE))
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
                gap_ns=min(float(rank.gap_ns[at]), _LAUNCH_NS),
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
