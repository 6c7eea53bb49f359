"""What a trace shows of the allocator: calls that take memory from the device and give it back, in steps."""

from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.rules.host.lost import of_worst, recurring
from zprof.rules.rows import wall_ns

#: What of the time is saved at least; at most, where the others then wait for the late rank.
_LEAST_RATIO = 0.7
_MOST_RATIO = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorCalls:
    """Of the rank that loses most time, means of a step; ``busy_ratio``: of its steps with a free."""

    rank: int
    takes: float
    gives: float
    busy_ratio: float
    steps: int
    lost_ns: float
    exposed_ns: float
    wall_ns: float

    @property
    def saving_ns(self) -> tuple[float, float]:
        """The range."""
        return _LEAST_RATIO * self.lost_ns, _MOST_RATIO * (self.lost_ns + self.exposed_ns)

    @property
    def lost_ratio(self) -> float:
        """Of the step."""
        return self.lost_ns / self.wall_ns if self.wall_ns else 0.0


def allocator_calls(analysis: RunAnalysis) -> AllocatorCalls | None:
    """None where the trace shows no device, or not what its host called."""
    rows = analysis.host
    if rows.empty or not (rows["on_device"] & rows["launches_seen"]).all():
        return None
    timed, _ = of_worst(analysis, "allocator_ns")
    freeing, _ = of_worst(analysis, "gives")
    rank = timed if rows["allocator_ns"].any() else freeing
    mine = rows[rows["rank"] == rank]
    return AllocatorCalls(
        rank=rank,
        takes=float(mine["takes"].mean()),
        gives=float(mine["gives"].mean()),
        busy_ratio=float((mine["gives"] > 0).mean()),
        steps=len(mine),
        lost_ns=recurring(mine["allocator_ns"]),
        exposed_ns=recurring(mine["allocator_exposed_ns"]),
        wall_ns=wall_ns(analysis),
    )
