"""Compute the memory of a ZeRO stage or of model parallelism by the closed forms of arXiv 1910.02054.

The closed forms apply to jobs with units without byte counts. A term that depends on missing facts stays
unknown. There are two moments: the backward pass (states, activations, buffers, gathered units) and the
optimizer (states and its copy of the gradients).

Residual state (sections 3.2 and 6), with L layers, hidden size h, t = b s tokens per micro-batch, e bytes per
element and psi parameters per rank:

    activations                12 h t L e (Llama blocks: what they save, see ``model_shapes``)
    checkpointed               h t L e, and one block's activations while it is recomputed
    Pa, Pa+cpu                 checkpoints / mp; none on the device
    fused buffers              4 psi bytes, or 4 CB with constant-size buffers
    optimizer's gradients      c bytes per element, or c CB with constant-size buffers

The paper does not count gathered units: the largest unit, the next largest with prefetch, and the units that
enclose others.

An unknown term may have any size. The moment with the most known bytes is chosen and gets the unknown terms
of all moments, so its sum is a lower bound and is never shown as the peak.

Model states of one device under each scheme: the formulas of the ZeRO stages are in
``zprof.analysis.zero_formulas`` (arXiv 1910.02054, section 5 and figure 1), which also serve to check
measured runs. Here they apply to the elements of one model-parallel rank:

    model parallel  (p + g + k) psi / mp
    GPipe           (p + g + k) psi / (mp pp)
    PipeDream       (p v + g + k) psi / (mp pp), with v versions of the weights: pp on the first stage

Frozen parameters have no gradient, no optimizer state and one version. They are assumed to be spread evenly
over ranks and stages.

Elements of one device before ZeRO shards them:

    model parallel    the sum of one rank's units if they are known, else ceil(parameters / mp)
    pipeline          the largest stage: ceil(blocks / pp) blocks and the parts outside the blocks

The token embedding is on the first stage and the head on the last. If they are tied, each of the two stages
keeps a copy of the table; otherwise each stage has its own table.
"""

from collections.abc import Mapping, Sequence

from zprof.analysis.zero_formulas import compute_tenant_formulas
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.job import Job, ModelUnit, Residual, Shape
from zprof.model.plan import PIPELINES, Assumption, Scheme, Term, get_zero_stage
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts
from zprof.planner.memory.walk.layout import trained_elements
from zprof.planner.model_shapes import count_saved_elements
from zprof.planner.rounding import ceil_div

#: Bytes per element of a fused buffer: fp32.
FUSED_BYTES = 4
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


def make_paper_terms(job: Job, scheme: Scheme) -> tuple[tuple[Term, ...], str]:
    """Return the terms at the peak and its location; a term may be unknown."""
    states = make_state_terms(job, scheme)
    buffers = (*_gathered_terms(job, scheme), *_reduced_terms(job, scheme))
    backward = (*states, *make_activation_terms(job), _buffer_term(job), *buffers)
    return pick_highest_moment({"backward": backward, "optimizer": (*states, *make_copy_terms(job, scheme))})


def make_activation_terms(job: Job) -> tuple[Term, ...]:
    """Return the activations of one micro-batch; a single unknown term without shape or batch."""
    shape, tokens = job.shape, job.batch.tokens
    if shape is None or tokens is None:
        key = "residual.checkpoints" if job.residual.checkpointing else "residual.activations"
        return (make_unknown_term(Tenant.ACTIVATIONS, "saved", key),)
    size, mp = job.element_bytes.parameter, job.degrees.mp
    if not job.residual.checkpointing:
        saved = activation_bytes(shape, tokens, size, mp=mp)
        return (_activation_term("saved", saved, "residual.activations"),)
    kept = checkpoint_bytes(shape, tokens, size, job.residual, mp=mp)
    recomputed = working_set_bytes(shape, tokens, size, mp=mp)
    key = "residual.partition" if job.residual.partition else "residual.checkpoints"
    return (
        _activation_term("checkpoints", kept, "residual.offload" if job.residual.offload else key),
        _activation_term("working_set", recomputed, "residual.working_set"),
    )


def make_copy_terms(job: Job, scheme: Scheme) -> tuple[Term, ...]:
    """Return the gradient copy of the optimizer; empty if there is no copy or unit sizes are unknown."""
    sharded_over = job.degrees.dp if get_zero_stage(scheme) >= 1 else 1
    if not job.element_bytes.gradient_copy or (not job.units and job.shape is None):
        return ()
    size = gradient_copy_bytes(job, sharded_over)
    return (_temporary_term("optimizer", size, "residual.gradient_copy"),)


def _buffer_term(job: Job) -> Term:
    """Return the temporary buffers; unknown for counted units, because their work buffers are unknown."""
    is_capped = job.residual.constant_buffer_elements is not None
    key = "residual.constant_buffer" if is_capped else "residual.fused_buffer"
    if job.units:
        return make_unknown_term(Tenant.TEMPORARY_BUFFERS, "op_output", "residual.work")
    if job.shape is None or job.batch.tokens is None:
        return make_unknown_term(Tenant.TEMPORARY_BUFFERS, "fused_buffer", key)
    return _temporary_term("fused_buffer", fused_buffer_bytes(count_rank_elements(job), job.residual), key)


def _gathered_terms(job: Job, scheme: Scheme) -> tuple[Term, ...]:
    if scheme is not Scheme.ZERO_3:
        return ()
    key = "residual.gathered_units"
    if not job.units:
        return (make_unknown_term(Tenant.COMMUNICATION_BUFFERS, "gathered_param", key),)
    size = gathered_bytes(job) if job.degrees.dp > 1 else 0
    term = Term(tenant=Tenant.COMMUNICATION_BUFFERS, sub="gathered_param", bytes=size, assumption=key)
    return (term,)


def _reduced_terms(job: Job, scheme: Scheme) -> tuple[Term, ...]:
    """Return the reduction buffers of stages that shard gradients: the fused buffers in the paper."""
    in_place = scheme not in (Scheme.ZERO_2, Scheme.ZERO_3) or job.degrees.dp == 1
    by_paper = not job.units and job.shape is not None and job.batch.tokens is not None
    if in_place or by_paper:
        return ()
    return (make_unknown_term(Tenant.COMMUNICATION_BUFFERS, "reduce_scatter_base", "residual.reductions"),)


def _activation_term(sub: str, size: int, assumption: str) -> Term:
    return Term(tenant=Tenant.ACTIVATIONS, sub=sub, bytes=size, assumption=assumption)


def _temporary_term(sub: str, size: int, assumption: str) -> Term:
    return Term(tenant=Tenant.TEMPORARY_BUFFERS, sub=sub, bytes=size, assumption=assumption)


def activation_bytes(shape: Shape, tokens: int, element_bytes: int, *, mp: int = 1) -> int:
    """Return the activation bytes of all blocks, without recomputation."""
    return shape.layers * working_set_bytes(shape, tokens, element_bytes, mp=mp)


def working_set_bytes(shape: Shape, tokens: int, element_bytes: int, *, mp: int = 1) -> int:
    """Return the bytes of one block: its input in full, the rest split over model-parallel ranks."""
    rest = (count_saved_elements(shape) - shape.hidden) * tokens * element_bytes
    return shape.hidden * tokens * element_bytes + ceil_div(rest, mp)


def checkpoint_bytes(
    shape: Shape, tokens: int, element_bytes: int, residual: Residual, *, mp: int = 1
) -> int:
    """Return the on-device bytes of the inputs of all blocks."""
    if residual.offload:
        return 0
    total = shape.layers * shape.hidden * tokens * element_bytes
    return ceil_div(total, mp) if residual.partition else total


def fused_buffer_bytes(elements: int, residual: Residual) -> int:
    """Return the bytes of the flat fp32 gradient copy that is used for reductions and norms."""
    return FUSED_BYTES * _cap_elements(elements, residual)


def gradient_copy_bytes(job: Job, sharded_over: int) -> int:
    """Return the bytes of the gradients in the optimizer's type while it runs, without frozen elements.

    If units are known, the copy covers the largest unit only. ``sharded_over``: ranks that share the
    optimizer update (1: each rank runs all of it).
    """
    kinds = {(unit.elements, unit.frozen_elements): unit for unit in job.units}
    all_units = ModelUnit(name="", elements=count_rank_elements(job))
    elements = max(trained_elements(unit, job) for unit in kinds.values() or (all_units,))
    return job.element_bytes.gradient_copy * _cap_elements(ceil_div(elements, sharded_over), job.residual)


def gathered_bytes(job: Job) -> int:
    """Return the bytes of units gathered at the same time in stage 3; ``job.units`` must be known.

    At most one prefetched unit counts. With deeper prefetch, the extra units are live only while gradients
    are still incomplete.
    """
    inner = sorted((unit.elements for unit in job.units if not unit.encloses), reverse=True)
    root_elements = sum(unit.elements for unit in job.units if unit.encloses)
    return job.element_bytes.gathered * (root_elements + sum(inner[: 1 + min(1, job.overlap.prefetch)]))


def _cap_elements(elements: int, residual: Residual) -> int:
    max_elements = residual.constant_buffer_elements
    return elements if max_elements is None else min(elements, max_elements)


TermsByMoment = Mapping[str, Sequence[Term]]


def pick_highest_moment(moments: TermsByMoment) -> tuple[tuple[Term, ...], str]:
    """Return the terms of the highest moment and its name; ties go to the first."""
    name = max(moments, key=lambda moment: sum_known_bytes(moments[moment]))
    unknown = [
        term for other, terms in moments.items() for term in terms if other != name and term.bytes is None
    ]
    return (*moments[name], *dict.fromkeys(unknown)), name


def sum_known_bytes(terms: Sequence[Term]) -> int:
    """Sum the terms with known bytes."""
    return sum(term.bytes for term in terms if term.bytes is not None)


def make_unknown_term(tenant: Tenant, sub: str, assumption: str) -> Term:
    """Return a term with unknown bytes."""
    return Term(tenant=tenant, sub=sub, bytes=None, assumption=assumption)


def find_memory_gaps(job: Job, terms: tuple[Term, ...]) -> tuple[Gap, ...]:
    """Return one gap per tenant with an unknown term."""
    if job.shape is None and not job.units:
        key = "plan_without_shape"
    elif job.batch.tokens is None:
        key = "plan_without_batch"
    else:
        key = "plan_without_unit_bytes" if job.degrees.mp == 1 else "plan_without_split"
    return tuple(
        make_gap(key, tenant=tenant.value.replace("_", " "))
        for tenant in dict.fromkeys(term.tenant for term in terms if term.bytes is None)
    )


def make_state_terms(job: Job, scheme: Scheme) -> tuple[Term, ...]:
    """Return one term with known bytes per model state, without PipeDream's stashed weight versions."""
    return tuple(
        Term(tenant=tenant, sub=_STATE_SUBS[tenant], bytes=size, assumption=f"states.{scheme.value}")
        for tenant, size in state_bytes(job, scheme).items()
    )


def make_stashed_term(job: Job, scheme: Scheme) -> Term:
    """Return the weight versions that the first PipeDream stage keeps in addition to the newest.

    Frozen weights are the same in all versions and are not copied.
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
