"""The fix of each cause as an edit of the measured step (:data:`EDITS`).

Each edit returns one changed step, or several if the effect of a fix is uncertain. For ranks whose units are
known but not their kernels, some fixes are changes of the schedule (:data:`SCHEDULE_CHANGES`).
"""

from collections.abc import Callable, Mapping, Sequence

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Finding
from zprof.model.whatif import Change
from zprof.rules.transfer.slow_groups import select_slow_rows
from zprof.rules.transfer.small_messages import find_small_messages
from zprof.step import edits
from zprof.step.calls import (
    measure_loading_ns,
)
from zprof.step.message_sizes import (
    fix_spanning_shards,
    merge_small_units,
    remove_excess_latency,
    split_single_unit,
)
from zprof.step.slow_ranks import find_excess, mark_in_turn
from zprof.step.tasks import Graph

Edit = Callable[[RunAnalysis, Graph, Finding], Sequence[Graph]]


def _even_out_late_ranks(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    late = sorted({entry.rank for entry in finding.evidence if entry.rank is not None})
    return [edits.even_out_ranks(graph, late), edits.even_out_ranks(graph)] if late else []


def _even_out_late_steps(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    excess = find_excess(graph, measure_loading_ns(analysis, graph), in_turn=True)
    return [edits.even_out_steps(graph, mark_in_turn(excess))]


def _speed_up_link(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    ratios = select_slow_rows(analysis, finding)
    return [edits.scale_transfers(graph, ratios)] if ratios else []


EDITS: Mapping[Cause, Edit] = {
    Cause.STRAGGLER_RANK: _even_out_late_ranks,
    Cause.ROTATING_STRAGGLER: _even_out_late_steps,
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
    Cause.UNITS_TOO_SMALL: _merge_units,
}
