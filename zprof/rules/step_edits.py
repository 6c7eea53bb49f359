"""The fix of each cause as an edit of the measured step (:data:`EDITS`).

Each edit returns one changed step, or several if the effect of a fix is uncertain. For ranks whose units are
known but not their kernels, some fixes are changes of the schedule (:data:`SCHEDULE_CHANGES`).
"""

from collections.abc import Callable, Mapping, Sequence

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Finding
from zprof.step import edits
from zprof.step.calls import (
    measure_loading_ns,
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


EDITS: Mapping[Cause, Edit] = {
    Cause.STRAGGLER_RANK: _even_out_late_ranks,
    Cause.ROTATING_STRAGGLER: _even_out_late_steps,
}
