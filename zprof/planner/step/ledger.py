"""The ledger of a planned step."""

from collections.abc import Mapping

from zprof.model.planning.assumption import Assumption
from zprof.model.planning.job import Job
from zprof.model.planning.plan import PlannedStep, Scheme

ASSUMPTIONS: Mapping[str, Assumption] = {}


def step_of(job: Job, scheme: Scheme) -> PlannedStep | None:
    """The step of one device; None where hardware, batch or the model's units are not known."""
    raise NotImplementedError
