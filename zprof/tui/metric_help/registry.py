"""Collect the help on all metrics, by kind of leaf."""

from collections.abc import Mapping

from zprof.tui.metric_help.communication import COMMUNICATION
from zprof.tui.metric_help.memory import MEMORY
from zprof.tui.metric_help.metric import MetricHelp, strip_indices
from zprof.tui.metric_help.overview import OVERVIEW
from zprof.tui.metric_help.ranks import RANKS
from zprof.tui.metric_help.time import STEP_LEAVES, TIME

METRIC_HELP: Mapping[str, MetricHelp] = {
    metric.leaf: metric
    for metric in (
        *STEP_LEAVES,
        *RANKS,
        *COMMUNICATION,
        *MEMORY,
        *TIME,
        *OVERVIEW,
    )
}


def find_help(leaf: str) -> MetricHelp | None:
    """Return the help on a leaf, or None."""
    return METRIC_HELP.get(strip_indices(leaf))
