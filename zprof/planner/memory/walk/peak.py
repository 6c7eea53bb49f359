"""The peak of a step of the reference engine, by tenant.

A steady step is walked through from zero_grad() to the end of the optimizer: what is live after each
operator (``models.units_moments``), gather, reduction and copy; the highest moment is the peak.
"""

from operator import attrgetter

from zprof.model.planning.job import Job
from zprof.model.planning.plan import Term
from zprof.planner.memory.walk.assumptions import ASSUMPTIONS
from zprof.planner.memory.walk.step import walk_step

_BYTES = attrgetter("saved_bytes", "checkpoint_bytes", "forward_work_bytes", "backward_work_bytes")

__all__ = ["ASSUMPTIONS", "peak_of"]


def peak_of(job: Job, stage: int) -> tuple[tuple[Term, ...], str]:
    """Terms of a device at the highest moment of a step under a ZeRO stage, and that moment.

    ``job.units`` must be there, with all their bytes.

    Raises:
        ValueError: a unit does not know its bytes.
    """
    for unit in job.units:
        if None in _BYTES(unit):
            raise ValueError(f"unit {unit.name} does not know its bytes; a walk needs those of all units")
    ledger = walk_step(job, stage)
    return ledger.terms(), ledger.where
