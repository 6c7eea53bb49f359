"""Find the catalogue's entry on a number of the report."""

from collections.abc import Mapping

from zprof.model.metrics.communication import COMMUNICATION
from zprof.model.metrics.gates import GATE_METRICS
from zprof.model.metrics.memory import MEMORY
from zprof.model.metrics.metric import Metric
from zprof.model.metrics.overview import OVERVIEW
from zprof.model.metrics.ranks import RANKS
from zprof.model.metrics.time import STEPS, TIME
from zprof.model.paths import Path

#: The catalogue by path: one entry for each number that a person reads.
METRICS: Mapping[str, Metric] = {
    metric.path: metric
    for metric in (*STEPS, *RANKS, *COMMUNICATION, *MEMORY, *TIME, *OVERVIEW, *GATE_METRICS)
}


def find_metric(path: Path) -> Metric | None:
    """Return the entry on a leaf such as ``time.per_rank[3].wall_ns``, or None."""
    return METRICS.get(path.pattern)
