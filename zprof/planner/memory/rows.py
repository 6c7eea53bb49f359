"""Memory of one device under each scheme."""

from collections.abc import Mapping
from dataclasses import dataclass

from zprof.model.gaps import Gap
from zprof.model.planning.assumption import Assumption
from zprof.model.planning.job import Job
from zprof.model.planning.plan import Scheme, Term

ASSUMPTIONS: Mapping[str, Assumption] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The terms of one device at its peak, the moment of that, and what could not be said."""

    terms: tuple[Term, ...]
    peak_at: str
    gaps: tuple[Gap, ...] = ()


def memory_of(job: Job, scheme: Scheme) -> MemoryPlan:
    """What one device holds at its peak; terms that are not known have None for their bytes."""
    raise NotImplementedError
