"""Select the calls of each host by what they do: wait for the device, allocate, launch, or fetch data."""

import re
from collections.abc import Callable, Mapping

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.intervals import Intervals, intervals
from zprof.analysis.time.host_calls import MAX_QUIET_NS, read_host_calls, read_loader_spans
from zprof.analysis.time.host_idle import find_waits_after_reads
from zprof.step import edits
from zprof.step.tasks import NONE, Bools, Floats, Graph, RankGraph, step_places

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


def are_calls(rank: RankGraph, pattern: re.Pattern[str]) -> Bools:
    """Return a mask of the calls whose name matches the pattern."""
    return rank.tasks.name.match(pattern.fullmatch)


def is_launch(rank: RankGraph) -> Bools:
    """Return a mask of the calls that launch: short, unblocked, and soon after the previous call.

    A longer call is something else: the host loads data, allocates, computes or sleeps.
    """
    return (
        (rank.blocks_on == NONE) & (rank.gap_ns + rank.call_ns < MAX_QUIET_NS) & ~are_calls(rank, ALLOCATES)
    )


def keep_recurring(rank: RankGraph, steps: int, selected: Bools) -> Bools:
    """Keep selected calls if they occur in most steps after the first, which contains the start-up."""
    places = step_places(rank)
    later = {place for place in places[selected].tolist() if place}
    is_frequent = len(later) >= max(1.0, _MIN_STEPS_RATIO * (steps - 1))
    return selected if is_frequent else np.zeros(len(selected), dtype=np.bool_)


def await_long_copies(rank: RankGraph) -> Bools:
    """Return a mask of the calls that wait for a long copy, whose data the host needs."""
    on = np.maximum(rank.blocks_on, 0)
    copies = rank.tasks.kernel.match(lambda name: name.startswith("Memcpy"))
    return (rank.blocks_on != NONE) & copies[on] & (rank.work_ns[on] >= _LONG_COPY_NS)


def mark_waits_after_reads(analysis: RunAnalysis, graph: Graph) -> dict[int, Bools]:
    """Return by CPU rank a mask of the waits for a collective right after reading a scalar.

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
    """Measure the host time before each call that waits for the data loader, in excess of a fetch."""
    spans_by_rank = analysis.compute_once(_read_excess_loading)
    return {
        rank.tasks.rank: edits.gap_time_within(rank, spans_by_rank[rank.tasks.rank], graph.origin_ns)
        for rank in graph.ranks
    }


def _read_excess_loading(analysis: RunAnalysis) -> dict[int, Intervals]:
    """Return when each rank fetched batches, without the time that a fetch takes, on the common clock."""
    assert analysis.source is not None
    found = {}
    for tracks in analysis.tracks:
        spans = tracks.clock.common(read_loader_spans(analysis.source, tracks.rank))
        found[tracks.rank] = intervals(np.minimum(spans[:, 0] + _FETCH_NS, spans[:, 1]), spans[:, 1])
    return found
