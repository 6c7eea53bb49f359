"""Bytes of a device that the series compare: model states, checkpoints, gathered units.

With psi elements of a model-parallel rank over N data-parallel ranks, p, g and k bytes an element:

    stage 0  (p + g + k) psi            stage 2  p psi + (g + k) psi / N
    stage 1  (p + g) psi + k psi / N    stage 3  (p + g + k) psi / N

(arXiv 1910.02054, section 5).  Checkpoints are L h b s elements, split over the mp ranks with Pa and none
with Pa+cpu (section 6.1); without checkpointing 12 L h b s elements are kept (section 3.2), split over them.
"""

from zprof.model.planning.job import Job
from zprof.planner.step.runs import Stack
from zprof.planner.step.unit_times import device_stack, trained_elements

#: Elements of activations that a block keeps, for each of its inputs (section 3.2, footnote).
_KEPT_OF_A_BLOCK = 12


def state_bytes(job: Job, stack: Stack, stage: int) -> int:
    """Parameters, gradients and optimizer state of one device; a share that is not whole is rounded up."""
    sizes, psi = job.element_bytes, device_stack(job, stack).elements
    trained = trained_elements(job, psi)
    kept = (
        (trained * sizes.optimizer_state, 1),
        (trained * sizes.gradient, 2),
        (psi * sizes.parameter, 3),
    )
    return sum(-(-size // (job.degrees.dp if stage >= first else 1)) for size, first in kept)


def gathered_bytes(job: Job, stack: Stack) -> int:
    """Stage 3: the largest unit, and those gathered ahead of it."""
    largest = max(run.elements for run in stack.all)
    units = sum(run.count for run in stack.all)
    return min(units, 1 + job.overlap.prefetch) * largest * job.element_bytes.gathered


def activation_bytes(job: Job, samples: int) -> int | None:
    """What the forward keeps for the backward; None where the shape or the sequence is not known."""
    shape, sequence, residual, mp = job.shape, job.batch.sequence, job.residual, job.degrees.mp
    if shape is None or sequence is None:
        return None
    if residual.checkpointing and residual.offload:
        return 0
    inputs = shape.layers * shape.hidden * samples * sequence * job.element_bytes.parameter
    if residual.checkpointing:
        return -(-inputs // (mp if residual.partition else 1))
    return -(-_KEPT_OF_A_BLOCK * inputs // mp)
