"""Select host calls by what they do, and find the slow ranks in each step.

A call waits for the device, allocates, launches, or fetches data. Slow ranks are judged by their own host and
device time, without waits.
"""

import re
from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.intervals import Int64s, Intervals, intervals
from zprof.analysis.time.host_calls import MAX_QUIET_NS, read_host_calls, read_loader_spans
from zprof.analysis.time.host_idle import find_waits_after_reads
from zprof.step import edits
from zprof.step.tasks import NONE, Bools, Floats, Graph, RankGraph, lower_median, own_work_ns, step_places

WAITS = re.compile(r"(cuda|hip|cu)\w*(Synchronize|Memcpy)\w*", re.ASCII)
WAITS_FOR_EVENT = re.compile(r"(cuda|hip|cu)EventSynchronize\w*", re.ASCII)
ALLOCATES = re.compile(
    r"(cuda|hip)(Malloc|Free)\w*|(cu|hip)Mem(Create|Map|Unmap|Release|Alloc|Free)\w*", re.ASCII
)
#: Remaining share of launch time with compiled or captured work: pessimistic and
#: optimistic.
LAUNCH_LEFT_RATIOS = (0.5, 0.0)
#: Minimum share of the steps after the first in which a call recurs.
_MIN_STEPS_RATIO = 0.5
#: Time to fetch a batch that is ready: from a queue, with its pinned copy.
_FETCH_NS = 200_000
#: A copy of some scalars takes microseconds.
_LONG_COPY_NS = 100_000
#: Minimum excess of a step over the typical step, in standard deviations.
_DEVIATIONS = 5.0
#: Minimum excess as a share of the step: host times are noisier than device times.
_HOST_RATIO, _DEVICE_RATIO = 0.03, 0.01
#: Minimum share of the largest excess: single host stalls have varying lengths.
_ALIKE_RATIO = 2 / 3
#: Minimum share of the steps after the first in which the same rank stands out.
_SAME_RANK_RATIO = 0.8


def are_calls(rank: RankGraph, pattern: re.Pattern[str]) -> Bools:
    """Return a mask of the calls whose name matches the pattern."""
    return rank.tasks.name.match(pattern.fullmatch)


def await_device(rank: RankGraph) -> Bools:
    """Return a mask of the calls that wait for device work."""
    return are_calls(rank, WAITS) & (rank.blocks_on != NONE)


def is_launch(rank: RankGraph) -> Bools:
    """Return a mask of the calls that launch: short, unblocked, and soon after the previous call.

    A longer call is something else: the host loads data, allocates, computes or sleeps.
    """
    return (
        (rank.blocks_on == NONE) & (rank.gap_ns + rank.call_ns < MAX_QUIET_NS) & ~are_calls(rank, ALLOCATES)
    )


def keep_recurring(rank: RankGraph, steps: int, selected: Bools) -> Bools:
    """Keep selected calls if they occur in most steps after the first, which includes start-up."""
    places = step_places(rank)
    later = {place for place in places[selected].tolist() if place}
    is_frequent = len(later) >= max(1.0, _MIN_STEPS_RATIO * (steps - 1))
    return selected if is_frequent else np.zeros(len(selected), dtype=np.bool_)


def await_long_copies(rank: RankGraph) -> Bools:
    """Return a mask of the calls that wait for a long copy because the host needs its data."""
    on = np.maximum(rank.blocks_on, 0)
    copies = rank.tasks.kernel.match(lambda name: name.startswith("Memcpy"))
    return (rank.blocks_on != NONE) & copies[on] & (rank.work_ns[on] >= _LONG_COPY_NS)


def mark_waits_after_reads(analysis: RunAnalysis, graph: Graph) -> dict[int, Bools]:
    """Return, by CPU rank, a mask of the waits for a collective right after a scalar read.

    Empty if the run has been moved away.
    """
    if analysis.source is None:
        return {}
    marked = {}
    for tracks, rank in zip(analysis.tracks, graph.ranks, strict=True):
        read = tracks.clock.common(read_host_calls(analysis.source, tracks.rank).read) - graph.origin_ns
        waits = np.flatnonzero(rank.tasks.blocks)
        marked[tracks.rank] = np.zeros(len(rank.tasks), dtype=np.bool_)
        spans = np.rint(rank.tasks.call[waits]).astype(np.int64)
        marked[tracks.rank][waits] = find_waits_after_reads(spans, read)
    return marked


def count_per_step(graph: Graph, selected: Callable[[RankGraph], Bools]) -> float:
    """Return the mean number of selected calls per rank and step."""
    return float(np.mean([selected(rank).sum() for rank in graph.ranks])) / graph.steps


def measure_loading_ns(analysis: RunAnalysis, graph: Graph) -> Mapping[int, Floats]:
    """Measure the host time before each call that waits for the data loader, beyond a normal fetch."""
    spans_by_rank = analysis.compute_once(_read_excess_loading)
    return {
        rank.tasks.rank: edits.gap_time_within(rank, spans_by_rank[rank.tasks.rank], graph.origin_ns)
        for rank in graph.ranks
    }


def _read_excess_loading(analysis: RunAnalysis) -> dict[int, Intervals]:
    """Return when each rank fetched batches, minus the time of a normal fetch, on the common clock."""
    assert analysis.source is not None
    found = {}
    for tracks in analysis.tracks:
        spans = tracks.clock.common(read_loader_spans(analysis.source, tracks.rank))
        found[tracks.rank] = intervals(np.minimum(spans[:, 0] + _FETCH_NS, spans[:, 1]), spans[:, 1])
    return found


class SteadyRank(Struct, frozen=True, kw_only=True):
    """A rank that is slow in nearly all steps: its index in the graph, and the number of slow steps.

    ``excess_ns``: its excess over the typical rank in the median step.
    """

    place: int
    rank: int
    steps: int
    excess_ns: float


def find_steady_rank(analysis: RunAnalysis, graph: Graph) -> SteadyRank | None:
    """Find the rank with a similar excess in nearly all steps; None if there is none or if unknown."""
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
    """Measure the excess of steps in which ranks are slow in turn, by rank and step; 0 if unknown.

    Ranks that are slow in nearly all steps do not count.
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
    """Return the excess of own host or device time as [rank, step], 0 if not significant.

    The reference is the lower median over the ranks of the same stage in the same step. The noise is the
    larger of its variation between steps and the deviation of the ranks from it. An excess below half of the
    largest in its step is ignored. The host's first step is ignored if the profiler started in it.

    Args:
        graph: The measured steps.
        loading_ns: Host time before each call spent waiting for the data loader, by rank. It is not
            part of the speed of the rank.
        in_turn: Count only the excess over the rank's own best step: a rank that is slow in every step is not
            taking turns.
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
        typical = np.empty_like(own)
        for peers in graph.list_peers():
            typical[peers] = lower_median(own[peers])
        deviation = own - typical
        if in_turn:
            deviation = deviation - np.clip(deviation.min(axis=1, keepdims=True), 0.0, None)
        varied = np.abs(typical - np.median(typical, axis=1, keepdims=True))
        noise = np.maximum(np.median(varied, axis=1).max(), lower_median(np.abs(deviation)))
        min_excess = np.maximum(np.maximum(_DEVIATIONS * noise, min_ratio * step), deviation.max(axis=0) / 2)
        excess[:, first:] = np.maximum(excess[:, first:], np.where(deviation > min_excess, deviation, 0.0))
    return excess


def mark_recurring(excess: Floats) -> Bools:
    """Return a mask of each rank's steps with similar excess, which may share a cause."""
    return (excess > 0) & (excess >= _ALIKE_RATIO * excess.max(axis=1, keepdims=True))


def mark_in_turn(excess: Floats) -> Bools:
    """Return a mask of all ranks' steps with similar excess, which may share a cause."""
    return (excess > 0) & (excess >= _ALIKE_RATIO * excess.max())


def find_slowest(excess: Floats) -> Int64s:
    """Return the rank with the largest excess in each step, ``NONE`` if there is none.

    The first step is dropped if no rank has an excess in it, because its host times may be ignored.
    """
    slowest = np.where((excess > 0).any(axis=0), np.argmax(excess, axis=0), NONE)
    return slowest if slowest[0] != NONE else slowest[1:]


def sum_per_step(graph: Graph, rank: RankGraph, times: Floats) -> Floats:
    """Return the sums of a rank's times over each step."""
    return np.bincount(step_places(rank), weights=times, minlength=graph.steps).astype(np.float64)
