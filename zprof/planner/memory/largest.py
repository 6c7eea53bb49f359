"""The largest model that fits."""

from zprof.model.planning.job import Job
from zprof.model.planning.plan import Scheme


def largest_parameters(job: Job, scheme: Scheme) -> int | None:
    """Parameters of the largest model of the job's proportions whose peak fits; None without hardware."""
    raise NotImplementedError
