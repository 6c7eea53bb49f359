"""The fix of each cause as an edit of the measured step (:data:`EDITS`).

Each edit returns one changed step, or several if the effect of a fix is uncertain. For ranks whose units are
known but not their kernels, some fixes are changes of the schedule (:data:`SCHEDULE_CHANGES`).
"""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import list_copy_names
from zprof.analysis.time.host_calls import MAX_QUIET_NS, read_host_calls
from zprof.analysis.time.host_idle import find_waits_after_reads
from zprof.model.findings import Cause, Finding
from zprof.model.whatif import Change
from zprof.rules.evidence import (
    COPIES_BESIDE,
    EXPOSED_COPIES,
    KERNEL_TIME_RATIOS,
    SLOWDOWN,
)
from zprof.rules.message_sizes import (
    fix_spanning_shards,
    merge_small_units,
    remove_excess_latency,
    split_single_unit,
)
from zprof.rules.transfer.slow_groups import select_slow_rows
from zprof.rules.transfer.small_messages import find_small_messages
from zprof.step import edits
from zprof.step.calls import (
    ALLOCATES,
    LAUNCH_LEFT_RATIOS,
    WAITS,
    WAITS_FOR_EVENT,
    are_calls,
    is_launch,
    measure_loading_ns,
)
from zprof.step.closing_gathers import select_gathers, select_opening_gathers
from zprof.step.slow_ranks import find_excess, mark_in_turn
from zprof.step.slowdown import measure_slowdown
from zprof.step.tasks import NONE, Bools, Floats, Graph, RankGraph

#: Copies that move state between host and device: a copy of some scalars takes microseconds.
_TO_HOST, _TO_DEVICE = re.compile(r"DtoH|DeviceToHost"), re.compile(r"HtoD|HostToDevice")
_LONG_COPY_NS = 100_000
#: Shares of an update on the host that an update on the device saves.
_HOST_UPDATE_RATIOS = (0.8, 1.0)

Edit = Callable[[RunAnalysis, Graph, Finding], Sequence[Graph]]


def _drop_copies(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Drop the work of copies with half of their launch cost, and with all of it: parameters become views.

    Copies into the buffer of a gather have names of other work; they are known by their place before it. On
    CPU ranks they are part of what the thread does between its calls.
    """
    if not graph.has_kernels:
        known = {entry.key: entry.value for entry in finding.evidence}
        return [edits.shorten_own_work(graph, known[EXPOSED_COPIES])]
    names = list_copy_names(analysis)

    def are_copies(rank: RankGraph) -> Bools:
        are_copies = rank.tasks.kernel.match(names.__contains__)
        are_copies[rank.copy_in[rank.copy_in != NONE]] = True
        return are_copies

    idle = edits.scale_work(graph, lambda rank: np.where(are_copies(rank), 0.0, 1.0))
    return [edits.scale_host(idle, left, are_copies) for left in LAUNCH_LEFT_RATIOS]


def _prefetch(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    return [edits.launch_earlier(graph, select_gathers(analysis))]


def _even_out_late_ranks(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    late = sorted({entry.rank for entry in finding.evidence if entry.rank is not None})
    return [edits.even_out_ranks(graph, late), edits.even_out_ranks(graph)] if late else []


def _even_out_late_steps(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    excess = find_excess(graph, measure_loading_ns(analysis, graph), in_turn=True)
    return [edits.even_out_steps(graph, mark_in_turn(excess))]


def _unblock_waits(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Unblock waits for the device; on CPU ranks delay those at reads of scalars, or drop them.

    A collective in flight may be needed at the next call that uses one.
    """
    if graph.has_kernels:
        return _unblock(WAITS)(analysis, graph, finding)
    if analysis.source is None:
        return []
    held = {}
    for tracks, rank in zip(analysis.tracks, graph.ranks, strict=True):
        read = tracks.clock.common(read_host_calls(analysis.source, tracks.rank).read) - graph.origin_ns
        waits = np.flatnonzero(rank.tasks.blocks)
        held[tracks.rank] = np.zeros(len(rank.tasks), dtype=np.bool_)
        spans = np.rint(rank.tasks.call[waits]).astype(np.int64)
        held[tracks.rank][waits] = find_waits_after_reads(spans, read)
    return [
        edits.delay_waits(graph, lambda rank: held[rank.tasks.rank]),
        edits.unblock_calls(graph, lambda rank: held[rank.tasks.rank]),
    ]


def _unblock(pattern: re.Pattern[str]) -> Edit:
    def edit(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
        return [edits.unblock_calls(graph, lambda rank: are_calls(rank, pattern) & (rank.blocks_on != NONE))]

    return edit


def _keep_allocations(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    freed = edits.unblock_calls(graph, lambda rank: are_calls(rank, ALLOCATES))
    return [freed]


def launch_faster(analysis: RunAnalysis, graph: Graph, finding: Finding | None = None) -> Sequence[Graph]:
    """Return the step with hosts that launch in half of the time, and instantly."""
    loading = measure_loading_ns(analysis, graph)

    return [
        edits.scale_host(graph, left, lambda rank: is_launch(rank) & (loading[rank.tasks.rank] == 0))
        for left in LAUNCH_LEFT_RATIOS
    ]


def _keep_states_on_device(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Drop long copies from and to the host, and what the host computes between them, or most of it.

    A device's own update takes time as well, and none of it was recorded. On CPU ranks copies are part of
    what the thread does between its calls, or idle time if a collective runs meanwhile.
    """
    if not graph.has_kernels:
        known = {entry.key: entry.value for entry in finding.evidence}
        return [edits.shorten_own_work(graph, known[EXPOSED_COPIES] + known[COPIES_BESIDE])]

    def is_copy(rank: RankGraph, pattern: re.Pattern[str]) -> Bools:
        moved: Bools = rank.tasks.kernel.match(pattern.search) & (rank.work_ns >= _LONG_COPY_NS)
        return moved

    def host_update_ns(rank: RankGraph) -> Floats:
        """Return the long gaps after a copy to the host and before the next one to the device."""
        places = np.arange(len(rank.tasks))
        last_out = np.maximum.accumulate(np.where(is_copy(rank, _TO_HOST), places, NONE))
        last_in = np.maximum.accumulate(np.where(is_copy(rank, _TO_DEVICE), places, NONE))
        follows = np.flatnonzero(is_copy(rank, _TO_DEVICE))
        comes_back = places <= (follows[-1] if len(follows) else NONE)
        is_update = comes_back & (np.append(NONE, last_out[:-1]) > np.append(NONE, last_in[:-1]))
        return np.where(is_update & (rank.gap_ns >= MAX_QUIET_NS), rank.gap_ns, 0.0)

    resident = edits.scale_work(
        graph, lambda rank: np.where(is_copy(rank, _TO_HOST) | is_copy(rank, _TO_DEVICE), 0.0, 1.0)
    )
    return [
        edits.shorten_gaps(resident, {rank.tasks.rank: ratio * host_update_ns(rank) for rank in graph.ranks})
        for ratio in _HOST_UPDATE_RATIOS
    ]


def undo_slowdown(analysis: RunAnalysis, graph: Graph, finding: Finding | None = None) -> Sequence[Graph]:
    """Undo the slowdown of the typical kernel, that of the mean ns, and the one that the finding states."""
    fitted = {measure_slowdown(analysis, graph, by_time=by_time).factor for by_time in (False, True)}
    stated = {entry.value for entry in finding.evidence if entry.key == SLOWDOWN} if finding else set()
    return [edits.undo_slowdown(graph, factor) for factor in sorted(fitted | stated) if factor > 1]


def _restore_baseline_compute(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Restore the kernel times of the baseline, by the median of the ranks and by the worst one."""
    slower = [entry.value for entry in finding.evidence if entry.key in KERNEL_TIME_RATIOS]
    return [edits.scale_work(graph, 1 / ratio) for ratio in slower if ratio > 1]


def start_held_collectives(
    analysis: RunAnalysis, graph: Graph, finding: Finding | None = None
) -> Sequence[Graph]:
    """Return the step in which no kernel delays a collective that does not depend on it."""
    return [edits.release_held(graph, select_opening_gathers(analysis))]


def _speed_up_link(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    ratios = select_slow_rows(analysis, finding)
    return [edits.scale_transfers(graph, ratios)] if ratios else []


EDITS: Mapping[Cause, Edit] = {
    Cause.OFFLOAD_ON_CRITICAL_PATH: _keep_states_on_device,
    Cause.COPY_OVERHEAD: _drop_copies,
    Cause.NO_PREFETCH: _prefetch,
    Cause.STRAGGLER_RANK: _even_out_late_ranks,
    Cause.ROTATING_STRAGGLER: _even_out_late_steps,
    Cause.BLOCKING_SYNC: _unblock_waits,
    Cause.RATE_LIMITED_PREFETCH: _unblock(WAITS_FOR_EVENT),
    Cause.ALLOCATOR_RETRIES: _keep_allocations,
    Cause.CPU_BOUND_LAUNCH: launch_faster,
    Cause.COMM_SLOWS_COMPUTE: undo_slowdown,
    Cause.LOST_COMPUTE_EFFICIENCY: _restore_baseline_compute,
    Cause.COMPUTE_BLOCKS_COMM: start_held_collectives,
    Cause.LOW_BUS_BANDWIDTH: _speed_up_link,
    Cause.UNITS_TOO_SMALL: merge_small_units,
    Cause.LATENCY_BOUND_COLLECTIVES: remove_excess_latency,
    Cause.SINGLE_UNIT: split_single_unit,
    Cause.SHARDING_SPANS_NODES: fix_spanning_shards,
}


def _merge_units(analysis: RunAnalysis, finding: Finding) -> Sequence[Change]:
    small = find_small_messages(analysis)
    sizes = small.sizes if small is not None else ()
    return [Change(units_merged=size) for size in sorted({max(2, round(each)) for each in sizes})]


#: What the engine would do otherwise, by cause.
SCHEDULE_CHANGES: Mapping[Cause, Callable[[RunAnalysis, Finding], Sequence[Change]]] = {
    Cause.NO_PREFETCH: lambda analysis, finding: [Change(prefetch=1)],
    Cause.UNITS_TOO_SMALL: _merge_units,
}
