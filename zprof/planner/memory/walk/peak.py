"""The peak of a step of the reference engine, by tenant."""

from collections.abc import Mapping

from zprof.model.planning.assumption import Assumption
from zprof.model.planning.job import Job
from zprof.model.planning.plan import Term

ASSUMPTIONS: Mapping[str, Assumption] = {}


def peak_of(job: Job, stage: int) -> tuple[tuple[Term, ...], str]:
    """Terms of a device at the highest moment of a step under a ZeRO stage, and that moment.

    ``job.units`` must be there, with all their bytes.
    """
    raise NotImplementedError
