"""The series and the answers."""

from zprof.model.planning.job import Job
from zprof.model.planning.sensitivity import Sensitivity


def sensitivity_of(job: Job) -> Sensitivity:
    """How ZeRO-3 of this job answers to bandwidth, latency, tokens and world size.

    Without hardware all known kinds of machines answer for the break-even, and the series are empty.
    """
    raise NotImplementedError
