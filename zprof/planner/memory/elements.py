"""How many of the model's elements stand on one device before ZeRO shards them.

    model parallel    the units of one rank, where they are known: their sum; else ceil(parameters / mp)
    pipeline          the largest stage: ceil(blocks / pp) blocks and what stands around the blocks

The token embedding is at home on the first stage, the head on the last.  Where both share one table (tied)
each of the two keeps a copy of it; else each has its own table.
"""

from collections.abc import Sequence

from zprof.model.planning.job import Job, Shape, Unit
from zprof.planner.rounding import ceil_div


def rank_elements(job: Job) -> int:
    """Of one model-parallel rank, all layers."""
    if job.units:
        return sum(unit.elements for unit in job.units)
    return ceil_div(job.parameters, job.degrees.mp)


def stage_elements(job: Job) -> int:
    """Of one model-parallel rank of the pipeline stage that has the most."""
    if job.degrees.pp == 1:
        return rank_elements(job)
    if job.units:
        return _largest_stage_of_units(job)
    around = 0 if job.shape is None else min(_tables(job.shape), job.parameters)
    ends = _elements_of_an_end(around, job.shape)
    return ceil_div(ceil_div(job.parameters - around, job.degrees.pp) + ends, job.degrees.mp)


def stages_of(units: Sequence[Unit], pp: int) -> list[Sequence[Unit]]:
    """The units within the model, in order, in so many pieces of as equal a number as can be."""
    inner = [unit for unit in units if not unit.encloses]
    most = max(1, ceil_div(len(inner), pp))
    return [inner[start : start + most] for start in range(0, len(inner), most)] or [[]]


def _largest_stage_of_units(job: Job) -> int:
    around = sum(unit.elements for unit in job.units if unit.encloses)
    table = 0 if job.shape is None else job.shape.vocabulary * job.shape.hidden // job.degrees.mp
    one_end = around - table if _two_tables(job.shape) else around
    sizes = [sum(unit.elements for unit in stage) for stage in stages_of(job.units, job.degrees.pp)]
    return max(*sizes, sizes[0] + one_end, sizes[-1] + one_end)


def _tables(shape: Shape) -> int:
    return (shape.vocabulary * (2 if _two_tables(shape) else 1) + shape.context) * shape.hidden


def _elements_of_an_end(around: int, shape: Shape | None) -> int:
    return around - shape.vocabulary * shape.hidden if shape is not None and _two_tables(shape) else around


def _two_tables(shape: Shape | None) -> bool:
    return shape is not None and not shape.tied
