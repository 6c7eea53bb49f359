"""Find the ranks that are slow by themselves, step by step: by their own host and device time, not waits."""

from collections.abc import Mapping

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.replay.graph import Graph, RankGraph, step_places
from zprof.replay.tasks import NONE, Bools, Floats

#: Minimum excess of a step over the usual one, in deviations.
_DEVIATIONS = 5.0
#: Minimum excess as a share of the step: hosts have hiccups, devices hardly do.
_HOST_RATIO, _DEVICE_RATIO = 0.03, 0.01
#: Minimum share of the largest excess: single hiccups of a host have all lengths.
_ALIKE_RATIO = 2 / 3


def find_excess(graph: Graph, loading_ns: Mapping[int, Floats], *, in_turn: bool = False) -> Floats:
    """Return by how much steps of ranks stand out by their own host or device time: [rank, step], 0 if not.

    The reference is the lower median over the ranks in the same step. The noise is the larger of how much
    that varies from step to step and how much the ranks deviate from it. An excess below half of the largest
    in its step is ignored. The host's first step is ignored if the profiler started in it.

    Args:
        graph: The measured steps.
        loading_ns: Host time before each call spent waiting for the data loader, by rank. It says nothing
            about the rank's pace.
        in_turn: Count only the excess over the rank's own best step: an excess of all its steps does not
            rotate.
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
    """Return a mask of each rank's steps that may share one reason: an excess of similar size each time."""
    again: Bools = (excess > 0) & (excess >= _ALIKE_RATIO * excess.max(axis=1, keepdims=True))
    return again


def mark_in_turn(excess: Floats) -> Bools:
    """Return a mask of the steps of any rank that may share one reason: an excess of similar size on each."""
    in_turn: Bools = (excess > 0) & (excess >= _ALIKE_RATIO * excess.max())
    return in_turn


def find_slowest(excess: Floats) -> Int64s:
    """Return the rank that stands out most in each step, ``NONE`` if none does.

    The first step is dropped if no rank stands out in it, because its host times may not count.
    """
    slowest = np.where((excess > 0).any(axis=0), np.argmax(excess, axis=0), NONE)
    return slowest if slowest[0] != NONE else slowest[1:]


def lower_median(rows: Floats) -> Floats:
    """Return the median of each column, the lower one if the number of rows is even."""
    middle: Floats = np.sort(rows, axis=0)[(len(rows) - 1) // 2]
    return middle


def own_work_ns(rank: RankGraph) -> Floats:
    """Return the run time of each piece of work that is not a collective, else 0."""
    return np.where(rank.collective == NONE, rank.work_ns, 0.0)


def sum_per_step(graph: Graph, rank: RankGraph, times: Floats) -> Floats:
    """Return the sums of a rank's times over each step."""
    sums: Floats = np.bincount(step_places(rank), weights=times, minlength=graph.steps).astype(np.float64)
    return sums
