"""The catalogue of numbers: one entry for each leaf of the report that users read."""

from collections.abc import Mapping

from zprof.model.metrics.communication import COMMUNICATION
from zprof.model.metrics.memory import MEMORY
from zprof.model.metrics.mesh import MESH
from zprof.model.metrics.overview import GATE_METRICS, OVERVIEW
from zprof.model.metrics.slowdown import SLOWDOWN
from zprof.model.metrics.time import RANKS, STEPS, TIME
from zprof.model.quantities import Metric, Path

#: The catalogue by path: one entry for each number that users read.
METRICS: Mapping[str, Metric] = {
    metric.path: metric
    for metric in (*STEPS, *RANKS, *COMMUNICATION, *MEMORY, *TIME, *MESH, *SLOWDOWN, *OVERVIEW, *GATE_METRICS)
}


def find_metric(path: Path) -> Metric | None:
    """Return the entry of a leaf such as ``time.per_rank[3].wall_ns``, or None."""
    return METRICS.get(path.pattern)
