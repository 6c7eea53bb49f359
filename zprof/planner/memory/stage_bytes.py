"""What one micro-batch keeps on a stage of a pipeline: as its units know it, else by the paper.

By the paper: 12 h t e a block and h t e for its input (arXiv 1910.02054, section 3.2), no work buffers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zprof.model.planning.job import Job, Unit
from zprof.planner.memory.elements import stages_of
from zprof.planner.memory.residual import checkpoint_bytes, working_set_bytes
from zprof.planner.rounding import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """Of one micro-batch.

    ``saved``: nothing computed again.  ``checkpoints``: inputs of all its blocks; ``input``: of its first.
    ``largest_saved``: of the block that keeps the most.  ``work``: buffers beside that.
    """

    saved: int
    checkpoints: int
    input: int
    largest_saved: int
    work: int


def knows_bytes(units: Sequence[Unit]) -> bool:
    """Whether there are units, and each knows what it keeps and needs."""
    return bool(units) and all(
        None
        not in (unit.saved_bytes, unit.checkpoint_bytes, unit.forward_work_bytes, unit.backward_work_bytes)
        for unit in units
    )


def stage_bytes(job: Job, *, with_head: bool) -> StageBytes | None:
    """Of the largest stage that has, or has not, the loss behind it; None where that is not known."""
    if knows_bytes(job.units):
        stages = stages_of(job.units, job.degrees.pp)
        around = [unit for unit in job.units if unit.encloses] if with_head else []
        return max((_of_units(job, stage, around) for stage in stages), key=lambda each: each.saved)
    return _of_paper(job)


def _of_units(job: Job, inner: Sequence[Unit], around: Sequence[Unit]) -> StageBytes:
    head = sum(unit.saved_bytes or 0 for unit in around)
    saved = [unit.saved_bytes or 0 for unit in inner]
    checkpoints = [_on_device(job, unit.checkpoint_bytes or 0) for unit in inner]
    return StageBytes(
        saved=sum(saved) + head,
        checkpoints=sum(checkpoints),
        input=checkpoints[0] if checkpoints else 0,
        largest_saved=max(saved, default=0) + head,
        work=max((_work(unit) for unit in (*inner, *around)), default=0),
    )


def _on_device(job: Job, checkpoint: int) -> int:
    """A rank's part of a checkpoint under Pa, none under Pa+cpu."""
    if job.residual.offload:
        return 0
    return ceil_div(checkpoint, job.degrees.mp) if job.residual.partition else checkpoint


def _work(unit: Unit) -> int:
    return max(unit.forward_work_bytes or 0, unit.backward_work_bytes or 0)


def _of_paper(job: Job) -> StageBytes | None:
    shape, tokens = job.shape, job.batch.tokens
    if shape is None or tokens is None:
        return None
    size, mp = job.element_bytes.parameter, job.degrees.mp
    blocks = ceil_div(shape.layers, job.degrees.pp)
    block = working_set_bytes(shape, tokens, size, mp=mp)
    all_inputs = checkpoint_bytes(shape, tokens, size, job.residual, mp=mp)
    one_input = ceil_div(all_inputs, shape.layers)
    return StageBytes(
        saved=blocks * block, checkpoints=blocks * one_input, input=one_input, largest_saved=block, work=0
    )
