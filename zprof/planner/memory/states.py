"""Model states of one device: parameters, gradients and optimizer state under each scheme.

The laws of the ZeRO stages stand in ``zprof.analysis.laws`` (arXiv 1910.02054, section 5 and figure 1), which
measured runs are held against too.  Here they get the elements of one model-parallel rank:

    model parallel  (p + g + k) psi / mp
    GPipe           (p + g + k) psi / (mp pp)
    PipeDream       (p v + g + k) psi / (mp pp), with v versions of the weights: pp on the first stage

Frozen parameters have no gradient, no optimizer state and one version; each rank and stage has its share.
"""

from collections.abc import Mapping

from zprof.analysis.laws import tenant_laws
from zprof.model.planning.assumption import Assumption
from zprof.model.planning.job import Job
from zprof.model.planning.plan import PIPELINES, Scheme, Term, stage_of
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts
from zprof.planner.memory.elements import rank_elements, stage_elements
from zprof.planner.rounding import ceil_div

_NAMES = {
    Tenant.PARAMETERS: "weight",
    Tenant.GRADIENTS: "grad",
    Tenant.OPTIMIZER_STATE: "state",
}
_PAPER = "arXiv 1910.02054, section 5 and figure 1"
_MP = "psi: parameters of one model-parallel rank"
ASSUMPTIONS: Mapping[str, Assumption] = {
    "states.data_parallel": Assumption(formula=f"(p + g + k) psi; {_MP}", source=_PAPER),
    "states.zero_1": Assumption(formula=f"(p + g) psi + k psi / N; {_MP}, N ranks share", source=_PAPER),
    "states.zero_2": Assumption(formula=f"p psi + (g + k) psi / N; {_MP}, N ranks share", source=_PAPER),
    "states.zero_3": Assumption(formula=f"(p + g + k) psi / N; {_MP}, N ranks share", source=_PAPER),
    "states.model_parallel": Assumption(
        formula="(p + g + k) psi / mp, or of one rank's units where they are known",
        source="arXiv 1909.08053, section 3",
        deviation="by parameters alone, norms and biases that every rank keeps whole count as split; units "
        "count them whole",
    ),
    "states.gpipe": Assumption(
        formula="(p + g + k) of the largest stage: ceil(layers / pp) layers and one end's embedding",
        source="arXiv 1811.06965, section 2.3",
    ),
    "states.pipedream": Assumption(
        formula="(p + g + k) of the stage, as for GPipe", source="arXiv 1806.03377, section 3.3"
    ),
    "states.stashed_weights": Assumption(
        formula="p (v - 1) trained elements of the stage: v = pp versions on the first stage, 1 on the last",
        source="arXiv 1806.03377, section 3.3 (weight stashing)",
    ),
}


def state_terms(job: Job, scheme: Scheme) -> tuple[Term, ...]:
    """Three terms whose bytes are known; the versions of the weights that PipeDream stashes are not in it."""
    return tuple(
        Term(tenant=tenant, sub=_NAMES[tenant], bytes=size, assumption=f"states.{scheme.value}")
        for tenant, size in state_bytes(job, scheme).items()
    )


def stashed_term(job: Job, scheme: Scheme) -> Term:
    """The versions of the weights that the first stage of PipeDream keeps beside the newest.

    Weights that are not trained are the same in all of them.
    """
    versions = job.degrees.pp - 1
    return Term(
        tenant=Tenant.PARAMETERS,
        sub="stashed_versions",
        bytes=versions * job.element_bytes.parameter * _trained(job, _elements(job, scheme)),
        assumption="states.stashed_weights",
    )


def state_bytes(job: Job, scheme: Scheme) -> Mapping[Tenant, int]:
    """Of one device, without stashed versions; a share that is no whole byte is rounded up."""
    elements = _elements(job, scheme)
    both = (elements, _trained(job, elements))
    all_of_them, of_trained = (tenant_laws(_facts(job, scheme, each)) for each in both)
    return {
        tenant: (all_of_them if tenant is Tenant.PARAMETERS else of_trained)[tenant].law_bytes
        for tenant in _NAMES
    }


def law_bytes(job: Job, scheme: Scheme) -> int:
    """All model states of one device at rest, with the versions of the weights that PipeDream stashes."""
    stashed = stashed_term(job, scheme).bytes or 0 if scheme is Scheme.PIPEDREAM else 0
    return sum(state_bytes(job, scheme).values()) + stashed


def _elements(job: Job, scheme: Scheme) -> int:
    return stage_elements(job) if scheme in PIPELINES else rank_elements(job)


def _trained(job: Job, elements: int) -> int:
    return ceil_div(elements * (job.parameters - job.frozen_parameters), job.parameters)


def _facts(job: Job, scheme: Scheme, elements: int) -> TrainingFacts:
    return TrainingFacts(
        stage=stage_of(scheme),
        parameters=elements,
        shard_ranks=job.degrees.dp,
        parameter_bytes=job.element_bytes.parameter,
        gradient_bytes=job.element_bytes.gradient,
        optimizer_state_bytes=job.element_bytes.optimizer_state,
    )
