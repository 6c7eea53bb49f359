"""Tell if gathers are launched late."""

from zprof.analysis.analysis import RunAnalysis
from zprof.rules.message_sizes import ResizedMessages
from zprof.step.closing_gathers import select_opening_gathers
from zprof.step.messages import held_gathers_ratio, late_gathers_ratio
from zprof.step.tasks import Graph

#: Minimum share of late gathers. Without prefetch in one of two passes half of the gathers are late, or a
#: quarter if later micro-batches keep units.
_MIN_LATE_RATIO = 0.20
#: Minimum share of delayed gathers: a few start by chance when a kernel ends.
_MIN_DELAYED_RATIO = 0.1


def are_gathers_late(analysis: RunAnalysis, graph: Graph) -> bool | None:
    """Return True if the program launches the gathers of its units only when their compute is due.

    The result is None if the graph has no gather after the first one of a step. It is False if kernels delay
    gathers that were launched before them, because then the kernels make gathers late. A model that is one
    unit has nothing to launch ahead.
    """
    rows = select_opening_gathers(analysis)
    late_ratio = late_gathers_ratio(graph, rows)
    if late_ratio is None:
        return None
    if held_gathers_ratio(graph, rows) >= _MIN_DELAYED_RATIO or late_ratio < _MIN_LATE_RATIO:
        return False
    return not ResizedMessages(analysis, graph).is_one_unit
