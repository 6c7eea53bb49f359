"""Compute the ZeRO formulas for checking a run: state bytes per rank, and bytes moved per step.

State, bytes per rank (arXiv 1910.02054, section 5 and figure 1), for psi parameters over N ranks and p, g and
k bytes per element of parameter, gradient and optimizer state:

    stage 0  (p + g + k) psi            stage 2  p psi + (g + k) psi / N
    stage 1  (p + g) psi + k psi / N    stage 3  (p + g + k) psi / N

Volume, elements that a rank transfers per step (section 7): 2 psi, 2 psi, 2 psi, 3 psi for stages 0 to 3. A
ring transfers (N-1)/N of this; both formula and measurement ignore the factor. Shard replicas (hybrid
sharding) additionally all-reduce each rank's share of the gradients: 2 psi / N.
"""

from collections.abc import Mapping

from msgspec import Struct

from zprof.model.memory import StateFormula
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts

#: First stage that shards a tenant over the ranks.
_FIRST_SHARDED_STAGE = {Tenant.OPTIMIZER_STATE: 1, Tenant.GRADIENTS: 2, Tenant.PARAMETERS: 3}
_STAGES = range(4)
_COUNTER_BYTES = 4
#: States that include step counters.
_STATES_WITH_STEP_COUNTERS = frozenset({Tenant.OPTIMIZER_STATE})


class TenantFormula(Struct, frozen=True, kw_only=True):
    """Per-rank bytes of one model state, according to the ZeRO stage's formula.

    ``formula_bytes``: the formula's bytes, without padding and step counters. ``ranks``: size of the sharding
    group. ``sharded``: True if the state is sharded over the group.
    """

    formula_bytes: int
    padding_bytes: int
    scalar_bytes: int
    element_bytes: int
    ranks: int
    sharded: bool


def compute_state_formula(facts: TrainingFacts) -> StateFormula | None:
    """Return each state's bytes per rank by the stage's formula; None if a fact is missing.

    Fractional shards are rounded up. Bytes that the engine adds are listed separately:
    ``padding_bytes`` over all three states, and the optimizer's 4-byte step counters.
    """
    formulas = compute_tenant_formulas(facts)
    if len(formulas) < len(_FIRST_SHARDED_STAGE):
        return None
    return StateFormula(
        parameters=formulas[Tenant.PARAMETERS].formula_bytes,
        gradients=formulas[Tenant.GRADIENTS].formula_bytes,
        optimizer_state=formulas[Tenant.OPTIMIZER_STATE].formula_bytes,
        padding_bytes=sum(formula.padding_bytes for formula in formulas.values()),
        scalar_bytes=sum(formula.scalar_bytes for formula in formulas.values()),
    )


def compute_tenant_formulas(facts: TrainingFacts) -> Mapping[Tenant, TenantFormula]:
    """Return the formula of each state whose facts are known; empty if stage or parameter count is
    unknown.
    """
    psi, ranks, stage = facts.parameters, facts.shard_ranks, facts.stage
    if psi is None or ranks is None or ranks < 1 or stage is None or stage not in _STAGES:
        return {}
    formulas = {}
    for tenant, size in {
        Tenant.PARAMETERS: facts.parameter_bytes,
        Tenant.GRADIENTS: facts.gradient_bytes,
        Tenant.OPTIMIZER_STATE: facts.optimizer_state_bytes,
    }.items():
        if size is not None:
            sharded = stage >= _FIRST_SHARDED_STAGE[tenant]
            formula_bytes = _shard_bytes(psi, size, ranks if sharded else 1)
            formulas[tenant] = TenantFormula(
                formula_bytes=formula_bytes,
                padding_bytes=_shard_bytes(psi + facts.padding_elements, size, ranks if sharded else 1)
                - formula_bytes,
                scalar_bytes=facts.step_counters * _COUNTER_BYTES
                if tenant in _STATES_WITH_STEP_COUNTERS
                else 0,
                element_bytes=size,
                ranks=ranks,
                sharded=sharded,
            )
    return formulas


def compute_expected_volume(facts: TrainingFacts) -> int | None:
    """Return the bytes one rank transfers per step, counting an all-reduce twice; None if a fact is missing.

    Padding is transferred, so it counts. Stages 2 and 3 communicate in every micro-batch, because each must
    reduce the sharded gradients. A single rank communicates nothing.
    """
    psi, size, stage, ranks = facts.parameters, facts.communication_bytes, facts.stage, facts.shard_ranks
    replicas = facts.replica_ranks or 1
    if ranks == 1 and replicas == 1:
        return 0
    if psi is None or size is None or ranks is None or stage is None or stage not in _STAGES:
        return None
    reduced = size if facts.reduction_bytes is None else facts.reduction_bytes
    # Full-parameter gathers and full-gradient reductions per step; an all-reduce counts as two.
    gathers, reductions = {
        0: (0, 2),
        1: (1, 1),
        2: (1, facts.micro_batches),
        3: (2 * facts.micro_batches, facts.micro_batches),
    }[stage]
    elements = psi + facts.padding_elements
    within_shards = (gathers * size + reductions * reduced) * elements if ranks > 1 else 0
    if not stage or not ranks or replicas == 1:
        return within_shards
    # Shard all-reduces between replicas; a stage without shards has none.
    return within_shards + _shard_bytes(elements, 2 * reductions * reduced, ranks)


def compute_engine_volume(facts: TrainingFacts) -> int | None:
    """Return the bytes one rank transfers per step by the engine's own scheme; None if the formula applies.

    DeepSpeed's stages 1 and 2 and ZeroRedundancyOptimizer all-reduce gradients of which each rank keeps a
    shard: 3 psi instead of 2 psi.
    """
    gathered, reduced, size = facts.gathered_elements, facts.reduced_elements, facts.communication_bytes
    if gathered is None or reduced is None or size is None or facts.shard_ranks == 1:
        return None
    return gathered * size + reduced * (facts.reduction_bytes or size)


def compute_wire_parameter_bytes(facts: TrainingFacts) -> int | None:
    """Return the bytes of one transfer of all parameters, including padding; None if a fact is missing."""
    if facts.parameters is None or facts.communication_bytes is None:
        return None
    return facts.communication_bytes * (facts.parameters + facts.padding_elements)


def _shard_bytes(elements: int, size: int, divisor: int) -> int:
    return -(-elements * size // divisor)
