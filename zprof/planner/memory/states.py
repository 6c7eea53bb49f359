"""Compute the model states of one device under each scheme: parameters, gradients and optimizer state.

The formulas of the ZeRO stages are in ``zprof.analysis.zero_formulas`` (arXiv 1910.02054, section 5 and
figure 1), which measured runs are checked against too. Here they are applied to the elements of one
model-parallel rank:

    model parallel  (p + g + k) psi / mp
    GPipe           (p + g + k) psi / (mp pp)
    PipeDream       (p v + g + k) psi / (mp pp), with v versions of the weights: pp on the first stage

Frozen parameters have no gradient, no optimizer state and one version. They are assumed to be spread evenly
over ranks and stages.

Elements of one device before ZeRO shards them:

    model parallel    the sum of one rank's units if they are known, else ceil(parameters / mp)
    pipeline          the largest stage: ceil(blocks / pp) blocks and the parts outside the blocks

The token embedding is on the first stage and the head on the last. If they are tied, each of the two stages
keeps a copy of the table; otherwise each has its own table.
"""

from collections.abc import Mapping, Sequence

from zprof.analysis.zero_formulas import compute_tenant_formulas
from zprof.model.job import Job, ModelUnit, Shape
from zprof.model.plan import PIPELINES, Assumption, Scheme, Term, get_zero_stage
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts
from zprof.planner.rounding import ceil_div

_STATE_SUBS = {
    Tenant.PARAMETERS: "weight",
    Tenant.GRADIENTS: "grad",
    Tenant.OPTIMIZER_STATE: "state",
}
_PAPER = "arXiv 1910.02054, section 5 and figure 1"
_MP = "psi: parameters of one model-parallel rank"
STATE_ASSUMPTIONS: Mapping[str, Assumption] = {
    "states.data_parallel": Assumption(formula=f"(p + g + k) psi; {_MP}", source=_PAPER),
    "states.zero_1": Assumption(formula=f"(p + g) psi + k psi / N; {_MP}, N ranks", source=_PAPER),
    "states.zero_2": Assumption(formula=f"p psi + (g + k) psi / N; {_MP}, N ranks", source=_PAPER),
    "states.zero_3": Assumption(formula=f"(p + g + k) psi / N; {_MP}, N ranks", source=_PAPER),
    "states.model_parallel": Assumption(
        formula="(p + g + k) psi / mp, or the sum of one rank's units if they are known",
        source="arXiv 1909.08053, section 3",
        deviation="with the parameter count alone, norms and biases replicated on every rank count as split; "
        "units count them in full",
    ),
    "states.gpipe": Assumption(
        formula="(p + g + k) of the largest stage: ceil(layers / pp) layers plus one embedding",
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


def make_state_terms(job: Job, scheme: Scheme) -> tuple[Term, ...]:
    """Return one term with known bytes per model state, without PipeDream's stashed weight versions."""
    return tuple(
        Term(tenant=tenant, sub=_STATE_SUBS[tenant], bytes=size, assumption=f"states.{scheme.value}")
        for tenant, size in state_bytes(job, scheme).items()
    )


def make_stashed_term(job: Job, scheme: Scheme) -> Term:
    """Return the weight versions that the first stage of PipeDream keeps in addition to the newest.

    Weights that are not trained are the same in all versions and are not copied.
    """
    versions = job.degrees.pp - 1
    return Term(
        tenant=Tenant.PARAMETERS,
        sub="stashed_versions",
        bytes=versions * job.element_bytes.parameter * _trained_part(job, _device_elements(job, scheme)),
        assumption="states.stashed_weights",
    )


def state_bytes(job: Job, scheme: Scheme) -> Mapping[Tenant, int]:
    """Return the state bytes of one device by tenant, without stashed versions; partial bytes round up."""
    elements = _device_elements(job, scheme)
    counts = (elements, _trained_part(job, elements))
    all_formulas, trained_formulas = (
        compute_tenant_formulas(
            TrainingFacts(
                stage=get_zero_stage(scheme),
                parameters=count,
                shard_ranks=job.degrees.dp,
                parameter_bytes=job.element_bytes.parameter,
                gradient_bytes=job.element_bytes.gradient,
                optimizer_state_bytes=job.element_bytes.optimizer_state,
            )
        )
        for count in counts
    )
    return {
        tenant: (all_formulas if tenant is Tenant.PARAMETERS else trained_formulas)[tenant].formula_bytes
        for tenant in _STATE_SUBS
    }


def total_state_bytes(job: Job, scheme: Scheme) -> int:
    """Return all model states of one device at rest, including the weight versions that PipeDream stashes."""
    stashed = make_stashed_term(job, scheme).bytes or 0 if scheme is Scheme.PIPEDREAM else 0
    return sum(state_bytes(job, scheme).values()) + stashed


def _device_elements(job: Job, scheme: Scheme) -> int:
    return count_stage_elements(job) if scheme in PIPELINES else count_rank_elements(job)


def _trained_part(job: Job, elements: int) -> int:
    return ceil_div(elements * (job.parameters - job.frozen_parameters), job.parameters)


def count_rank_elements(job: Job) -> int:
    """Return the elements of one model-parallel rank over all layers."""
    if job.units:
        return sum(unit.elements for unit in job.units)
    return ceil_div(job.parameters, job.degrees.mp)


def count_stage_elements(job: Job) -> int:
    """Return the elements of one model-parallel rank of the largest pipeline stage."""
    if job.degrees.pp == 1:
        return count_rank_elements(job)
    if job.units:
        root_elements = sum(unit.elements for unit in job.units if unit.encloses)
        table = 0 if job.shape is None else job.shape.vocabulary * job.shape.hidden // job.degrees.mp
        one_end = root_elements - table if _has_two_tables(job.shape) else root_elements
        sizes = [sum(unit.elements for unit in stage) for stage in split_stages(job.units, job.degrees.pp)]
        return max(*sizes, sizes[0] + one_end, sizes[-1] + one_end)
    root_elements = end_elements = 0
    if (shape := job.shape) is not None:
        second_table = shape.vocabulary * shape.hidden if _has_two_tables(shape) else 0
        tables = (shape.vocabulary + shape.position_rows) * shape.hidden + second_table
        root_elements = min(tables, job.parameters)
        end_elements = root_elements - second_table
    per_stage = ceil_div(job.parameters - root_elements, job.degrees.pp)
    return ceil_div(per_stage + end_elements, job.degrees.mp)


def split_stages(units: Sequence[ModelUnit], pp: int) -> list[Sequence[ModelUnit]]:
    """Split the inner units, in order, into at most ``pp`` stages of equal size; the last may be smaller."""
    inner = [unit for unit in units if not unit.encloses]
    stage_size = max(1, ceil_div(len(inner), pp))
    return [inner[start : start + stage_size] for start in range(0, len(inner), stage_size)] or [[]]


def _has_two_tables(shape: Shape | None) -> bool:
    return shape is not None and not shape.tied
