"""Find the ranks that are slow in each step, by their own host and device time without waits."""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.intervals import Int64s
from zprof.step.calls import measure_loading_ns
from zprof.step.tasks import NONE, Bools, Floats, Graph, RankGraph, step_places

#: Minimum excess of a step over the typical step, in deviations.
_DEVIATIONS = 5.0
#: Minimum excess as a share of the step: host times are noisier than device times.
_HOST_RATIO, _DEVICE_RATIO = 0.03, 0.01
#: Minimum share of the largest excess: single host stalls have varying lengths.
_ALIKE_RATIO = 2 / 3
#: Minimum share of the steps after the first in which the same rank stands out.
_SAME_RANK_RATIO = 0.8


class SteadyRank(Struct, frozen=True, kw_only=True):
    """A rank that is slow in nearly all steps: its place in the graph, and the number of those steps.

    ``excess_ns``: its excess over the typical rank in the median step.
    """

    place: int
    rank: int
    steps: int
    excess_ns: float


def find_steady_rank(analysis: RunAnalysis, graph: Graph) -> SteadyRank | None:
    """Find the rank whose excess is similar in nearly all steps; None if there is none, or it is unknown."""
    if not _are_comparable(analysis, graph):
        return None
    excess = find_excess(graph, measure_loading_ns(analysis, graph))
    cells = mark_recurring(excess)
    per_rank = cells[:, 1:].sum(axis=1)
    place = int(np.argmax(per_rank))
    if cells[place].sum() <= 1 or per_rank[place] < _SAME_RANK_RATIO * (graph.steps - 1):
        return None
    return SteadyRank(
        place=place,
        rank=graph.ranks[place].tasks.rank,
        steps=int(per_rank[place]),
        excess_ns=float(np.median(excess[place])),
    )


def measure_turns(analysis: RunAnalysis, graph: Graph) -> Floats:
    """Measure the excess of steps in which ranks are slow in turn, by rank and step; 0 if it is unknown.

    A rank that is slow in nearly all steps takes no turns.
    """
    if not _are_comparable(analysis, graph):
        return np.zeros((len(graph.ranks), graph.steps))
    turns = find_excess(graph, measure_loading_ns(analysis, graph), in_turn=True)
    if (steady := find_steady_rank(analysis, graph)) is not None:
        turns[steady.place] = 0.0
    return turns


def _are_comparable(analysis: RunAnalysis, graph: Graph) -> bool:
    """Return True if all ranks, several steps, and which rank waits for which are known."""
    is_complete = len(analysis.run.ranks_loaded) >= analysis.run.world_size
    return len(graph.ranks) > 1 and is_complete and graph.steps > 1 and bool((graph.members > 1).any())


def find_excess(graph: Graph, loading_ns: Mapping[int, Floats], *, in_turn: bool = False) -> Floats:
    """Return the excess of own host or device time per rank and step: [rank, step], 0 if not significant.

    The reference is the lower median over the ranks in the same step. The noise is the larger of its
    variation between steps and the deviation of the ranks from it. An excess below half of the largest
    in its step is ignored. The host's first step is ignored if the profiler started in it.

    Args:
        graph: The measured steps.
        loading_ns: Host time before each call spent waiting for the data loader, by rank. It is not
            part of the speed of the rank.
        in_turn: Count only the excess over the rank's own best step: an excess of all its steps does not
            rotate.
    """
    excess = np.zeros((len(graph.ranks), graph.steps))
    step = float(np.median(np.diff(graph.measured_ns, axis=1))) if graph.steps > 1 else 0.0
    hosts = [rank.gap_ns + rank.call_ns - loading_ns[rank.tasks.rank] for rank in graph.ranks]
    devices = [own_work_ns(rank) for rank in graph.ranks]
    for times, first, min_ratio in (
        (hosts, int(graph.has_start), _HOST_RATIO),
        (devices, 0, _DEVICE_RATIO),
    ):
        if graph.steps - first < 2:
            continue  # a single step does not show the noise
        own = np.array([sum_per_step(graph, *each) for each in zip(graph.ranks, times, strict=True)])[
            :, first:
        ]
        typical = lower_median(own)
        deviation = own - typical
        if in_turn:
            deviation = deviation - np.clip(deviation.min(axis=1, keepdims=True), 0.0, None)
        noise = np.maximum(np.median(np.abs(typical - np.median(typical))), lower_median(np.abs(deviation)))
        min_excess = np.maximum(np.maximum(_DEVIATIONS * noise, min_ratio * step), deviation.max(axis=0) / 2)
        excess[:, first:] = np.maximum(excess[:, first:], np.where(deviation > min_excess, deviation, 0.0))
    return excess


def mark_recurring(excess: Floats) -> Bools:
    """Return a mask of the steps of each rank whose excess is similar, so that they may share a cause."""
    return (excess > 0) & (excess >= _ALIKE_RATIO * excess.max(axis=1, keepdims=True))


def mark_in_turn(excess: Floats) -> Bools:
    """Return a mask of the steps of all ranks whose excess is similar, so that they may share a cause."""
    return (excess > 0) & (excess >= _ALIKE_RATIO * excess.max())


def find_slowest(excess: Floats) -> Int64s:
    """Return the rank with the largest excess in each step, ``NONE`` if there is none.

    The first step is dropped if no rank has an excess in it, because its host times may be ignored.
    """
    slowest = np.where((excess > 0).any(axis=0), np.argmax(excess, axis=0), NONE)
    return slowest if slowest[0] != NONE else slowest[1:]


def lower_median(rows: Floats) -> Floats:
    """Return the median of each column, the lower one if the number of rows is even."""
    return np.sort(rows, axis=0)[(len(rows) - 1) // 2]


def own_work_ns(rank: RankGraph) -> Floats:
    """Return the run time of each piece of work that is not a collective, else 0."""
    return np.where(rank.collective == NONE, rank.work_ns, 0.0)


def sum_per_step(graph: Graph, rank: RankGraph, times: Floats) -> Floats:
    """Return the sums of a rank's times over each step."""
    return np.bincount(step_places(rank), weights=times, minlength=graph.steps).astype(np.float64)
