"""Which ranks are slow by themselves, step by step: what their host and device do, not what they wait for."""

from collections.abc import Mapping

import numpy as np

from zprof.replay.graph import Graph, RankGraph, step_places
from zprof.replay.tasks import NONE, Bools, Floats

#: A step of a rank stands out by so many deviations of the usual one, and by so much of the step.
_DEVIATIONS, _STANDS_OUT_RATIO = 5.0, 0.01


def slow_steps(graph: Graph, loading_ns: Mapping[int, Floats]) -> Bools:
    """Return which steps of which ranks stand out by their own host or device time: [rank, step].

    The measure is the median rank of the same step (of two the faster one), and the noise how much that
    differs from step to step.  Beside a rank that is far slower, one that is a little slower does not matter.
    The host's first step has the start of the profiler in it.

    Args:
        graph: The measured steps.
        loading_ns: By rank, how much of the host's time before each call it waited for its loader, which
            says nothing of its pace.
    """
    out = np.zeros((len(graph.ranks), graph.steps), dtype=np.bool_)
    step = float(np.median([rank.tasks.call[-1, 1] - rank.begin_ns for rank in graph.ranks])) / graph.steps
    hosts = [rank.gap_ns + rank.call_ns - loading_ns[rank.tasks.rank] for rank in graph.ranks]
    for times, first in ((hosts, 1), ([own_work_ns(rank) for rank in graph.ranks], 0)):
        own = np.array([step_sums(graph, *each) for each in zip(graph.ranks, times, strict=True)])[:, first:]
        usual = lower_median(own)
        beyond = own - usual
        noise = float(np.median(np.abs(usual - np.median(usual))))
        least = np.maximum(max(_DEVIATIONS * noise, _STANDS_OUT_RATIO * step), beyond.max(axis=0) / 2)
        out[:, first:] |= beyond > least
    return out


def lower_median(rows: Floats) -> Floats:
    """Return the median of each column, of two rows the smaller one."""
    middle: Floats = np.sort(rows, axis=0)[(len(rows) - 1) // 2]
    return middle


def own_work_ns(rank: RankGraph) -> Floats:
    """Return how long each piece of work that is no collective runs."""
    return np.where(rank.collective == NONE, rank.work_ns, 0.0)


def step_sums(graph: Graph, rank: RankGraph, times: Floats) -> Floats:
    """Return the sums over each step of a rank's times."""
    sums: Floats = np.bincount(step_places(rank), weights=times, minlength=graph.steps).astype(np.float64)
    return sums
