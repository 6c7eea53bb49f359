"""Memory of one device under each scheme.

ZeRO stages, data and model parallelism (stage 0 on a rank's part of the model) are walked through as the
reference engine does a step where the job's units know their bytes (``walk``); else they follow the paper's
closed forms (``paper``).  Pipelines: ``alternatives``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zprof.model.gaps import Gap
from zprof.model.planning.assumption import Assumption
from zprof.model.planning.job import Job
from zprof.model.planning.plan import PIPELINES, Scheme, Term, stage_of
from zprof.planner.memory import residual_assumptions, states
from zprof.planner.memory.alternatives import pipeline_terms
from zprof.planner.memory.paper import paper_terms
from zprof.planner.memory.stage_bytes import knows_bytes
from zprof.planner.memory.unknown import gaps_of
from zprof.planner.memory.walk import peak

ASSUMPTIONS: Mapping[str, Assumption] = {**states.ASSUMPTIONS, **residual_assumptions.ASSUMPTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The terms of one device at its peak, the moment of that, and what could not be said."""

    terms: tuple[Term, ...]
    peak_at: str
    gaps: tuple[Gap, ...] = ()


def memory_of(job: Job, scheme: Scheme) -> MemoryPlan:
    """What one device holds at its peak; terms that are not known have None for their bytes.

    With an unknown term the moment is that of the most known bytes, and the sum a lower bound.
    """
    terms, peak_at = _terms(job, scheme)
    return MemoryPlan(terms=terms, peak_at=peak_at, gaps=gaps_of(job, terms))


def _terms(job: Job, scheme: Scheme) -> tuple[tuple[Term, ...], str]:
    if scheme in PIPELINES:
        return pipeline_terms(job, scheme)
    if knows_bytes(job.units):
        return peak.peak_of(job, stage_of(scheme))
    return paper_terms(job, scheme)
