"""Which ranks are slow by themselves, step by step: what their host and device do, not what they wait for."""

from collections.abc import Mapping

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.replay.graph import Graph, RankGraph, step_places
from zprof.replay.tasks import NONE, Bools, Floats

#: A step of a rank stands out by so many deviations of the usual one.
_DEVIATIONS = 5.0
#: And by so much of the step: hosts hiccup, devices hardly do.
_HOST_RATIO, _DEVICE_RATIO = 0.03, 0.01
#: Of what stands out most: single hiccups of a host are of all lengths.
_ALIKE_RATIO = 2 / 3


def find_excess(graph: Graph, loading_ns: Mapping[int, Floats], *, in_turn: bool = False) -> Floats:
    """Return by how much steps of ranks stand out by their own host or device time: [rank, step], 0 if not.

    The measure is the median rank of the same step (of two the faster one), and the noise how much that
    differs from step to step, and the ranks from it.  Beside a rank that is far slower, one that is a little
    slower does not matter.  The host's first step does not count where the profiler started in it.

    Args:
        graph: The measured steps.
        loading_ns: By rank, how much of the host's time before each call it waited for its loader, which
            says nothing of its pace.
        in_turn: Only what a rank is slower by than in its own best step: what all of its steps have is
            no turn.
    """
    excess = np.zeros((len(graph.ranks), graph.steps))
    step = float(np.median(np.diff(graph.measured_ns, axis=1))) if graph.steps > 1 else 0.0
    hosts = [rank.gap_ns + rank.call_ns - loading_ns[rank.tasks.rank] for rank in graph.ranks]
    devices = [own_work_ns(rank) for rank in graph.ranks]
    for times, first, least_ratio in (
        (hosts, int(graph.has_start), _HOST_RATIO),
        (devices, 0, _DEVICE_RATIO),
    ):
        if graph.steps - first < 2:
            continue  # one step shows no noise
        own = np.array([sum_per_step(graph, *each) for each in zip(graph.ranks, times, strict=True)])[
            :, first:
        ]
        usual = lower_median(own)
        beyond = own - usual
        if in_turn:
            beyond = beyond - np.clip(beyond.min(axis=1, keepdims=True), 0.0, None)
        noise = np.maximum(np.median(np.abs(usual - np.median(usual))), lower_median(np.abs(beyond)))
        least = np.maximum(np.maximum(_DEVIATIONS * noise, least_ratio * step), beyond.max(axis=0) / 2)
        excess[:, first:] = np.maximum(excess[:, first:], np.where(beyond > least, beyond, 0.0))
    return excess


def mark_recurring(excess: Floats) -> Bools:
    """Return which steps of a rank can have one reason, which takes about as long each time."""
    again: Bools = (excess > 0) & (excess >= _ALIKE_RATIO * excess.max(axis=1, keepdims=True))
    return again


def mark_in_turn(excess: Floats) -> Bools:
    """Return which steps of any rank can have one reason, which takes about as long on each."""
    in_turn: Bools = (excess > 0) & (excess >= _ALIKE_RATIO * excess.max())
    return in_turn


def find_slowest(excess: Floats) -> Int64s:
    """Return which rank stands out most in each step, ``NONE`` if none does.

    The first step counts only if a rank stands out in it, by its device: of hosts it shows nothing.
    """
    slowest = np.where((excess > 0).any(axis=0), np.argmax(excess, axis=0), NONE)
    return slowest if slowest[0] != NONE else slowest[1:]


def lower_median(rows: Floats) -> Floats:
    """Return the median of each column, of two rows the smaller one."""
    middle: Floats = np.sort(rows, axis=0)[(len(rows) - 1) // 2]
    return middle


def own_work_ns(rank: RankGraph) -> Floats:
    """Return how long each piece of work that is no collective runs."""
    return np.where(rank.collective == NONE, rank.work_ns, 0.0)


def sum_per_step(graph: Graph, rank: RankGraph, times: Floats) -> Floats:
    """Return the sums over each step of a rank's times."""
    sums: Floats = np.bincount(step_places(rank), weights=times, minlength=graph.steps).astype(np.float64)
    return sums
