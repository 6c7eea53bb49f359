"""What one device moves in a step, along each axis."""

from collections.abc import Mapping

from zprof.model.planning.assumption import Assumption
from zprof.model.planning.job import Job
from zprof.model.planning.plan import LinkTraffic, Scheme

ASSUMPTIONS: Mapping[str, Assumption] = {}


def links_of(job: Job, scheme: Scheme) -> tuple[LinkTraffic, ...]:
    """Traffic of one device; times are None without hardware.  What is not known is left out."""
    raise NotImplementedError
