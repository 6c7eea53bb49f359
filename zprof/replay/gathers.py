"""What the gathers of a step wait for, and what is left to hide them."""

from collections.abc import Collection

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.replay.blocks import main_stream
from zprof.replay.graph import Graph, RankGraph, step_places
from zprof.replay.tasks import NONE, Bools, Floats


def late_gathers_ratio(graph: Graph, rows: Collection[int]) -> float:
    """Return how many of the gathers in ``rows`` can start only when the compute before theirs is done.

    What a gather depends on is followed back, through its stream and its waits, to kernels of compute.  It
    is late if one of them is the last before the kernel that needs it: nothing is left that could hide it.
    Prefetched ones depend on earlier kernels.  What opens a step has nothing before it, and does not count.
    """
    late = count = 0
    for rank in graph.ranks:
        gathers = np.flatnonzero(np.isin(rank.tasks.row, list(rows)) & (rank.collective != NONE))
        users = _first_users(rank, gathers)
        on_compute = rank.stream == main_stream(rank)
        worked_ns = np.cumsum(np.where(on_compute, rank.work_ns, 0.0))
        needed_ns = _needed_ns(rank, on_compute, worked_ns)
        steps = step_places(rank)
        opening = {int(steps[user]): user for user in sorted(users.values(), reverse=True)}
        for gather, user in users.items():
            if user != opening[int(steps[user])]:
                count += 1
                late += worked_ns[user - 1] <= needed_ns[gather]
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


def _needed_ns(rank: RankGraph, on_compute: Bools, worked_ns: Floats) -> Floats:
    """Return how much compute must be done before each task, with what it waits for and its stream."""
    needed_ns = np.full(len(rank.tasks), -1.0)
    last: dict[int, int] = {}
    for at in np.flatnonzero(rank.stream != NONE).tolist():
        stream = int(rank.stream[at])
        if on_compute[at]:
            needed_ns[at] = worked_ns[at]
        else:
            others = (*rank.waits_on[at], last.get(stream, NONE))
            needed_ns[at] = max((needed_ns[other] for other in others if other != NONE), default=-1.0)
        last[stream] = at
    return needed_ns
