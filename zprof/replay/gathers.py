"""What the gathers of a step wait for, and what is left to hide them."""

from collections.abc import Collection

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.replay.blocks import main_stream
from zprof.replay.graph import Graph, RankGraph, step_places
from zprof.replay.tasks import NONE, Bools


def late_gathers_ratio(graph: Graph, rows: Collection[int]) -> float:
    """Return how many of the gathers in ``rows`` start only when the compute before theirs is done.

    What made a gather start when it did is followed back, through its stream and its waits, to a kernel
    of compute or to a launch.  It is late if that is a kernel behind which no other runs until it is
    needed: nothing is left that could hide it.  Prefetched ones go back to an earlier kernel, whatever delays
    them on their way, and on a slow host to a launch, which prefetch does not make faster.
    """
    late = count = 0
    for rank in graph.ranks:
        gathers = np.flatnonzero(np.isin(rank.tasks.row, list(rows)) & (rank.collective != NONE))
        users = _first_users(rank, gathers)
        on_compute = rank.stream == main_stream(rank)
        worked_ns = np.cumsum(np.where(on_compute, rank.work_ns, 0.0))
        before = _stream_predecessors(rank)
        count += len(users)
        for gather, user in users.items():
            bound = _bound_by(rank, before, on_compute, gather)
            late += bound != NONE and worked_ns[user - 1] <= worked_ns[bound]
    return late / count if count else 0.0


def held_ratio(graph: Graph, rows: Collection[int]) -> float:
    """Return how many of the gathers in ``rows`` started as a kernel ended on which they cannot depend."""
    chosen = list(rows)
    count = sum(int(np.isin(rank.tasks.row, chosen).sum()) for rank in graph.ranks)
    held = sum(int(np.isin(rank.tasks.row[list(rank.held)], chosen).sum()) for rank in graph.ranks)
    return held / count if count else 0.0


def run_beside_ratio(graph: Graph, rows: Collection[int]) -> float:
    """Return the share of the gathers' time in which compute that was launched behind all of them ran."""
    beside = whole = 0.0
    for rank in graph.ranks:
        main = main_stream(rank)
        mine = np.isin(rank.tasks.row, list(rows)) & (rank.collective != NONE)
        places = step_places(rank)
        for step in range(graph.steps):
            gathers = np.flatnonzero(mine & (places == step))
            if not len(gathers):
                continue
            begin, end = rank.tasks.work[gathers, 0].min(), rank.tasks.work[gathers, 1].max()
            later = np.flatnonzero(rank.stream == main)
            later = later[later > gathers[-1]]
            work = np.clip(rank.tasks.work[later], begin, end)
            beside += float((work[:, 1] - work[:, 0]).sum())
            whole += float(end - begin)
    return beside / whole if whole else 0.0


def _first_users(rank: RankGraph, gathers: Int64s) -> dict[int, int]:
    """Return the first kernel that waits for each gather; a gather that nothing waits for is left out."""
    wanted = set(gathers.tolist())
    users: dict[int, int] = {}
    for at, waits in enumerate(rank.waits_on):
        if rank.collective[at] == NONE:
            for gather in wanted.intersection(waits):
                users.setdefault(gather, at)
    return users


def _stream_predecessors(rank: RankGraph) -> dict[int, int]:
    """Return what runs right before each task on its stream."""
    last: dict[int, int] = {}
    before = {}
    for at in np.flatnonzero(rank.stream != NONE).tolist():
        stream = int(rank.stream[at])
        before[at] = last.get(stream, NONE)
        last[stream] = at
    return before


def _bound_by(rank: RankGraph, before: dict[int, int], on_compute: Bools, task: int) -> int:
    """Return the kernel of compute whose end let ``task`` start; NONE if a launch did."""
    while not on_compute[task]:
        launched_ns = float(rank.tasks.call[task, 0]) + rank.pick_up_ns
        held_by = [*(int(other) for other in rank.waits_on[task]), before[task]]
        ends = [(float(rank.tasks.work[other, 1]), other) for other in held_by if other != NONE]
        end_ns, other = max(ends, default=(launched_ns, NONE))
        if end_ns <= launched_ns or other == NONE:
            return NONE
        task = other
    return task
