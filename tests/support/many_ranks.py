"""A report of very many ranks and steps, made of one of few: the leaves are copied, not measured."""

from msgspec.structs import replace

from zprof.model.memory import MemoryTimeline
from zprof.model.report import Report
from zprof.model.time import StepLateness, StepTime


def spread_out(report: Report, ranks: int, steps: int, late: int, points: int = 0) -> Report:
    """``report`` with so many ranks and steps; ``late`` comes a second late in the last step.

    With ``points``, the timeline of its first rank has so many; the highest is the one before the last.
    """
    time, memory = report.time, report.memory
    first = memory.timelines[:1] if points else ()
    formulas = tuple(replace(check, rank=rank) for rank in range(ranks) for check in memory.formulas[:3])
    return replace(
        report,
        run=replace(
            report.run, world_size=ranks, ranks_loaded=tuple(range(ranks)), steps=tuple(range(steps))
        ),
        time=replace(
            time,
            per_rank=tuple(replace(time.per_rank[0], rank=rank) for rank in range(ranks)),
            steps=tuple(_step(rank, step) for rank in range(ranks) for step in range(steps)),
            lateness=tuple(_late(rank, step, late, steps) for rank in range(ranks) for step in range(steps)),
        ),
        memory=replace(
            memory,
            per_rank=tuple(replace(memory.per_rank[0], rank=rank) for rank in range(ranks)),
            formulas=formulas,
            laws=formulas,
            timelines=tuple(_timeline(timeline, points) for timeline in first),
        ),
    )


def _late(rank: int, step: int, late: int, steps: int) -> StepLateness:
    is_late = rank == late and step == steps - 1
    ns = 1_000_000_000 if is_late else 1_000_000 + rank + step
    return StepLateness(rank=rank, step=step, collectives=4, mean_ns=ns, largest_ns=2 * ns)


def _step(rank: int, step: int) -> StepTime:
    return StepTime(
        rank=rank,
        step=step,
        wall_ns=100_000_000 + rank,
        compute_ns=100_000_000 + rank,
        exposed_wait_ns=0,
        exposed_transfer_ns=0,
        exposed_memcpy_ns=0,
        idle_ns=0,
        unexplained_ns=0,
        overlapped_ns=0,
        collective_ns=0,
    )


def _timeline(timeline: MemoryTimeline, points: int) -> MemoryTimeline:
    """Heights go up and down, and one point stands out."""
    heights = [1_000_000 + 1_000 * (at % 7) for at in range(points)]
    heights[points - 2] = 9_000_000
    return replace(
        timeline,
        time_ns=tuple(range(0, 1_000 * points, 1_000)),
        tenants={name: tuple(heights) for name in timeline.tenants},
    )
