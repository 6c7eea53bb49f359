"""ZP205 replicated_state: model states are replicated on every rank.

Two cases. A run without sharding (stage 0) on N > 1 ranks: parameters, gradients and optimizer state are the
same on all ranks, and sharding frees 1 - 1/N of them. Or a run is configured to shard a state, but a rank
holds at least 0.9 N times its share: the state is not actually sharded.

How serious replication is depends on how tight memory is. In stage 0 the confidence is medium if the states
are at least four fifths of the peak (the share of a device left for states in the ZeRO paper's table 2 is
82 %). It is low below that, and if less than half of the GPU's memory is used.

Stage 3 needs buffers for gathered units, so lo subtracts up to eight units (six of
:mod:`~zprof.rules.memory.buffers_dominate`, and two copied by the backend).
"""

from collections.abc import Mapping

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.fix import Fix, choose_fix
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_percent
from zprof.model.gaps import Gap
from zprof.model.tenants import Tenant
from zprof.model.training import Engine, Framework, TrainingFacts
from zprof.rules.evidence import make_fact
from zprof.rules.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
    make_memory_finding,
    missing_facts_gap,
)
from zprof.rules.memory.model_structure import SHARDED_FROM, read_sharding
from zprof.rules.rule import untested_gap

_UNSHARDED_RATIO = 0.9
#: Maximum relative difference between replicas.
_MAX_REPLICA_DIFFERENCE_RATIO = 0.02
_MAX_STATES_RATIO = 0.80
_MIN_STEP_RATIO = 0.05
_FREE_DEVICE_RATIO = 0.50
_UNITS_AND_COPIES = 8

_STAGE_1_OR_3 = (
    "stage 1: ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)\n"
    "or stage 3: fully_shard(block) for each block, then fully_shard(model)"
)
_FIXES = Fix(
    forms={
        Engine.FSDP2: "fully_shard each block, then the model, before creating the optimizer from "
        "model.parameters()",
        Engine.FSDP1: "create the optimizer after FullyShardedDataParallel(model), from its parameters",
        Engine.DEEPSPEED: '"zero_optimization": {"stage": 1}',
        Engine.DDP: _STAGE_1_OR_3,
        Engine.PYTORCH: _STAGE_1_OR_3,
        Engine.ZERO1: "fully_shard(block) for each block, then fully_shard(model)  # shards the other "
        "states too",
        Engine.REFERENCE: "ZeroConfig(stage=1), then 2, then 3",
    },
    settings={
        (Framework.TRANSFORMERS, Engine.DDP): 'TrainingArguments(fsdp="full_shard auto_wrap")',
        (
            Framework.ACCELERATE,
            Engine.DDP,
        ): "Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))",
        (Framework.LIGHTNING, Engine.DDP): 'Trainer(strategy="fsdp")',
    },
)
_COSTS = "stages 1 and 2 communicate as many bytes as data parallelism, stage 3 1.5 times as many"


class _ReplicatedStates(Struct, frozen=True, kw_only=True):
    """Unsharded states of one rank."""

    ranks: int
    states: Mapping[Tenant, int]
    freed_bytes: float


def replicated_state(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if a rank holds states that the other ranks also hold."""
    largest = find_largest_rank(analysis)
    facts = analysis.training
    if largest is None or _count_shard_ranks(analysis) < 2:
        return None
    if largest.memory.state_bytes is None:
        return untested_gap(
            Cause.REPLICATED_STATE, "no complete step was recorded", "record two steps: zprof.steps(memory=2)"
        )
    if facts.stage is None:
        return missing_facts_gap(Cause.REPLICATED_STATE)
    if facts.stage == 0:
        return _find_without_sharding(analysis, largest, largest.memory.state_bytes)
    return _find_unsharded_states(analysis, largest, largest.memory.state_bytes)


def _count_shard_ranks(analysis: RunAnalysis) -> int:
    """Return the number of ranks that could share the states."""
    facts = analysis.training
    if facts.shard_ranks and facts.stage:
        return facts.shard_ranks
    return max(1, analysis.run.world_size // max(1, facts.model_parallel_ranks))


def _find_without_sharding(
    analysis: RunAnalysis, largest: LargestRank, states: Mapping[Tenant, int]
) -> Finding | None:
    if not _have_equal_states(analysis):
        return None
    ranks = _count_shard_ranks(analysis)
    replica = _ReplicatedStates(
        ranks=ranks, states=states, freed_bytes=(1 - 1 / ranks) * sum(states.values())
    )
    saving = _estimate_saving(analysis, largest, replica)
    if saving[1] < _MIN_STEP_RATIO * largest.peak_bytes or not is_worth(saving[1], largest):
        return None
    total = sum(states.values())
    optimizer = replica.states.get(Tenant.OPTIMIZER_STATE, 0)
    return make_memory_finding(
        analysis,
        Cause.REPLICATED_STATE,
        largest,
        sentence=f"each of {ranks} ranks keeps all {format_bytes(total)} of parameters, gradients and "
        f"optimizer state ({format_percent(min(1.0, total / largest.peak_bytes))} of the peak); sharding the "
        f"optimizer state alone (stage 1) frees {format_bytes((1 - 1 / ranks) * optimizer)}",
        evidence=[
            make_fact(
                "{tenant}_on_every_rank", size, tenant=tenant.value, name=tenant.value.replace("_", " ")
            )
            for tenant, size in states.items()
        ],
        saving_bytes=saving,
        confidence=_confidence(largest, total),
        fix=f"{choose_fix(analysis, _FIXES)}\n{_COSTS}",
        disprove="record with stage 1: if the peak does not drop, it is not caused by the states",
    )


def _have_equal_states(analysis: RunAnalysis) -> bool:
    """Return True if all ranks with known states hold the same amount (the largest rank is included)."""
    known = [entry.state_bytes for entry in analysis.memory.per_rank if entry.state_bytes is not None]
    totals = [sum(states.values()) for states in known]
    return max(totals) - min(totals) <= _MAX_REPLICA_DIFFERENCE_RATIO * max(totals)


def _estimate_saving(
    analysis: RunAnalysis, largest: LargestRank, replica: _ReplicatedStates
) -> tuple[float, float]:
    def removable(_: str, held: Mapping[Tenant, int]) -> float:
        states = sum(min(held.get(tenant, 0), replica.states.get(tenant, 0)) for tenant in SHARDED_FROM)
        return (1 - 1 / replica.ranks) * states

    high = largest.estimate_peak_reduction(removable)
    sharding = read_sharding(analysis)
    needed = _UNITS_AND_COPIES * sharding.unit_bytes if sharding else high
    return (max(0.0, high - needed), high)


def _confidence(largest: LargestRank, states_bytes: int) -> Confidence:
    has_headroom = (
        largest.total_bytes is not None and largest.peak_bytes < _FREE_DEVICE_RATIO * largest.total_bytes
    )
    if has_headroom or states_bytes < _MAX_STATES_RATIO * largest.peak_bytes:
        return Confidence.LOW
    return limit_confidence(Confidence.MEDIUM, largest, largest.uncertain_ratio(*SHARDED_FROM))


def _find_unsharded_states(
    analysis: RunAnalysis, largest: LargestRank, states: Mapping[Tenant, int]
) -> Finding | Gap | None:
    shares = _compute_shares(analysis.training)
    if shares is None:
        return missing_facts_gap(Cause.REPLICATED_STATE)
    ranks = _count_shard_ranks(analysis)
    unsharded = {
        tenant: states.get(tenant, 0)
        for tenant, share in shares.items()
        if states.get(tenant, 0) >= _UNSHARDED_RATIO * ranks * share
    }
    freed = sum(size - shares[tenant] for tenant, size in unsharded.items())
    if not unsharded or not is_worth(freed, largest):
        return None
    names = " and ".join(tenant.value.replace("_", " ") for tenant in unsharded)
    stage = analysis.training.stage
    return make_memory_finding(
        analysis,
        Cause.REPLICATED_STATE,
        largest,
        sentence=f"{names} should be sharded over {ranks} ranks in stage {stage}, but rank {largest.rank} "
        f"holds {format_bytes(sum(unsharded.values()))}, but its share is "
        f"{format_bytes(sum(shares[tenant] for tenant in unsharded))}",
        evidence=[
            fact
            for tenant, size in unsharded.items()
            for fact in (
                make_fact(
                    "{tenant}_held",
                    size,
                    rank=largest.rank,
                    tenant=tenant.value,
                    name=tenant.value.replace("_", " "),
                ),
                make_fact(
                    "{tenant}_by_formula",
                    shares[tenant],
                    tenant=tenant.value,
                    name=tenant.value.replace("_", " "),
                ),
            )
        ],
        saving_bytes=(freed / 2, freed),
        confidence=limit_confidence(Confidence.HIGH, largest, largest.uncertain_ratio(*unsharded)),
        fix=f"{choose_fix(analysis, _FIXES)}\n"
        "create the optimizer after sharding the model, from the sharded parameters",
        disprove="compare the sizes of the optimizer's state tensors on two ranks with a parameter's: shares "
        "are 1/N of the parameter",
    )


def _compute_shares(facts: TrainingFacts) -> dict[Tenant, int] | None:
    """Return one rank's share of each state of known size that the stage shards."""
    if not facts.parameters or not facts.shard_ranks or facts.stage is None:
        return None
    sizes = {
        Tenant.OPTIMIZER_STATE: facts.optimizer_state_bytes,
        Tenant.GRADIENTS: facts.gradient_bytes,
        Tenant.PARAMETERS: facts.parameter_bytes,
    }
    elements = facts.parameters + facts.padding_elements
    return {
        tenant: -(-elements * size // facts.shard_ranks)
        for tenant, size in sizes.items()
        if size and SHARDED_FROM[tenant] <= facts.stage
    }
