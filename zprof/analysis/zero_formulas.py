"""Compute the ZeRO formulas that a run is checked against: state bytes per rank, and bytes moved per step.

State, bytes per rank (arXiv 1910.02054, section 5 and figure 1), psi parameters over N ranks, p, g and k
bytes per element of parameter, gradient and optimizer state:

    stage 0  (p + g + k) psi            stage 2  p psi + (g + k) psi / N
    stage 1  (p + g) psi + k psi / N    stage 3  (p + g + k) psi / N

Volume, elements that a rank moves per step (section 7): 2 psi, 2 psi, 2 psi, 3 psi. A ring moves (N-1)/N of
that; formula and measurement both leave the factor out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zprof.model.memory import StateFormula
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts

#: First stage that shards a tenant over the ranks.
_SHARDED_FROM = {Tenant.OPTIMIZER_STATE: 1, Tenant.GRADIENTS: 2, Tenant.PARAMETERS: 3}
_STAGES = range(4)
_COUNTER_BYTES = 4
#: States that hold step counters.
_COUNTED = frozenset({Tenant.OPTIMIZER_STATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFormula:
    """Bytes of one model state per rank by the formula of the stage; ``element_bytes`` is per element.

    ``ranks`` is the number that share the model's states; ``sharded``: each holds only its part of this one.
    """

    law_bytes: int
    padding_bytes: int
    scalar_bytes: int
    element_bytes: int
    ranks: int
    sharded: bool


def compute_state_formula(facts: TrainingFacts) -> StateFormula | None:
    """Return the bytes of each state per rank by the formula of the stage; None if a fact is missing.

    A share that is not a whole number is rounded up. What the engine adds is listed separately:
    ``padding_bytes`` over all three states, and the optimizer's 4-byte step counters.
    """
    laws = compute_tenant_formulas(facts)
    if len(laws) < len(_SHARDED_FROM):
        return None
    return StateFormula(
        parameters=laws[Tenant.PARAMETERS].law_bytes,
        gradients=laws[Tenant.GRADIENTS].law_bytes,
        optimizer_state=laws[Tenant.OPTIMIZER_STATE].law_bytes,
        padding_bytes=sum(law.padding_bytes for law in laws.values()),
        scalar_bytes=sum(law.scalar_bytes for law in laws.values()),
    )


def compute_tenant_formulas(facts: TrainingFacts) -> Mapping[Tenant, TenantFormula]:
    """Return the formula of each state with known facts; empty without stage and number of elements."""
    psi, ranks, stage = facts.parameters, facts.shard_ranks, facts.stage
    if psi is None or ranks is None or ranks < 1 or stage is None or stage not in _STAGES:
        return {}
    laws = {}
    for tenant, size in _element_sizes(facts).items():
        if size is not None:
            sharded = stage >= _SHARDED_FROM[tenant]
            law = _share_bytes(psi, size, ranks if sharded else 1)
            laws[tenant] = TenantFormula(
                law_bytes=law,
                padding_bytes=_share_bytes(psi + facts.padding_elements, size, ranks if sharded else 1) - law,
                scalar_bytes=facts.step_counters * _COUNTER_BYTES if tenant in _COUNTED else 0,
                element_bytes=size,
                ranks=ranks,
                sharded=sharded,
            )
    return laws


def compute_expected_volume(facts: TrainingFacts) -> int | None:
    """Return the bytes that one rank moves per step, an all-reduce counted twice; None if a fact is missing.

    Padding is transferred and counted. Stages 2 and 3 communicate in every micro-batch: a sharded gradient
    cannot wait for the last one. A single rank moves nothing.
    """
    psi, size, stage, ranks = facts.parameters, facts.communication_bytes, facts.stage, facts.shard_ranks
    if ranks == 1:
        return 0
    if psi is None or size is None or ranks is None or stage is None or stage not in _STAGES:
        return None
    reduced = size if facts.reduction_bytes is None else facts.reduction_bytes
    gathers, reductions = _count_passes(stage, facts.micro_batches)
    return (gathers * size + reductions * reduced) * (psi + facts.padding_elements)


def compute_wire_parameter_bytes(facts: TrainingFacts) -> int | None:
    """Return the bytes of all parameters once, at wire size and with padding; None if a fact is missing."""
    if facts.parameters is None or facts.communication_bytes is None:
        return None
    return facts.communication_bytes * (facts.parameters + facts.padding_elements)


def _count_passes(stage: int, micro_batches: int) -> tuple[int, int]:
    """Return gathers of all parameters and reductions of all gradients per step; an all-reduce is two."""
    return {0: (0, 2), 1: (1, 1), 2: (1, micro_batches), 3: (2 * micro_batches, micro_batches)}[stage]


def _element_sizes(facts: TrainingFacts) -> Mapping[Tenant, int | None]:
    return {
        Tenant.PARAMETERS: facts.parameter_bytes,
        Tenant.GRADIENTS: facts.gradient_bytes,
        Tenant.OPTIMIZER_STATE: facts.optimizer_state_bytes,
    }


def _share_bytes(elements: int, size: int, divisor: int) -> int:
    return -(-elements * size // divisor)
