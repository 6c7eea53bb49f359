"""Measure the calls in which allocators take and give back device memory; read the allocators' counters."""

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.memory.largest_rank import find_largest_rank
from zprof.analysis.per_step import mean_wall_ns
from zprof.analysis.time.host_time import find_worst_rank_mean, mean_of_recurring
from zprof.model.memory import AllocatorCounters


class AllocatorCalls(Struct, frozen=True, kw_only=True):
    """Allocator calls of the rank that loses the most time, as means per step.

    ``steps_with_free_ratio``: the share of its ``steps`` with a free. ``lost_ns``: the device was idle in
    these calls; ``lost_ratio``: that as a share of the step. ``exposed_ns``: transfer with an empty queue
    meanwhile.
    """

    rank: int
    allocations: float
    frees: float
    steps_with_free_ratio: float
    steps: int
    lost_ns: float
    lost_ratio: float
    exposed_ns: float


def read_allocator_calls(analysis: RunAnalysis) -> AllocatorCalls | None:
    """Read the allocator calls of the worst rank, None if the trace contains no device or no launches."""
    rows = analysis.host
    if not len(rows) or not (rows.bools("on_device") & rows.bools("launches_seen")).all():
        return None
    slowest, _ = find_worst_rank_mean(analysis, "allocator_ns")
    most_freeing, _ = find_worst_rank_mean(analysis, "gives")
    rank = slowest if rows.ints("allocator_ns").any() else most_freeing
    rows, wall_ns = rows.at(rows.ints("rank") == rank), mean_wall_ns(analysis)
    lost_ns = mean_of_recurring(rows.floats("allocator_ns"))
    return AllocatorCalls(
        rank=rank,
        allocations=float(rows.ints("takes").mean()),
        frees=float(rows.ints("gives").mean()),
        steps_with_free_ratio=float((rows.ints("gives") > 0).mean()),
        steps=len(rows),
        lost_ns=lost_ns,
        lost_ratio=lost_ns / wall_ns if wall_ns else 0.0,
        exposed_ns=mean_of_recurring(rows.floats("allocator_exposed_ns")),
    )


def find_worst_counters(analysis: RunAnalysis) -> AllocatorCounters | None:
    """Return the counters of the device with the most retries, None if no device has counters."""
    largest = find_largest_rank(analysis)
    counters = [entry for entry in analysis.memory.counters if entry.device != "cpu"]
    if largest is None or not largest.on_gpu or not any(entry.retries is not None for entry in counters):
        return None
    return max(counters, key=lambda entry: (entry.retries or 0, entry.ooms or 0))
