"""Bytes of a device that the series compare: activations of a micro-batch.

Formulas are those of ``zprof.planner.memory``; work buffers and the optimizer's copies are left out.
"""

from zprof.model.planning.job import Job
from zprof.planner.memory import residual


def activation_bytes(job: Job, samples: int) -> int | None:
    """What the forward keeps for the backward; None where the shape or the sequence is not known."""
    shape, sequence, mp = job.shape, job.batch.sequence, job.degrees.mp
    if shape is None or sequence is None:
        return None
    size = job.element_bytes.parameter
    if job.residual.checkpointing:
        return residual.checkpoint_bytes(shape, samples * sequence, size, job.residual, mp=mp)
    return residual.activation_bytes(shape, samples * sequence, size, mp=mp)
