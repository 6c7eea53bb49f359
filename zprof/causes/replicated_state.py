"""ZP205: model states are replicated on every rank.

Two cases. A run without sharding (stage 0) on N > 1 ranks: parameters, gradients and optimizer state are the
same on all ranks, and sharding frees 1 - 1/N of them. Or a run is configured to shard a state, but a rank
holds at least 0.9 N times its share: the state is not sharded.

How serious replication is depends on how tight memory is. In stage 0 the confidence is medium if the states
are at least four fifths of the peak (the share of a device left for states in the ZeRO paper's table 2 is
82 %). It is low below that, and if less than half of the GPU's memory is used.

Stage 3 needs buffers for gathered units, so lo subtracts up to eight units (six that it may have in flight,
and two copied by the backend).
"""

from collections.abc import Mapping

from zprof.analysis.analysis import Fact, RunAnalysis, Untested, make_fact, make_untested
from zprof.analysis.memory.largest_rank import (
    MISSING_FACTS,
    SHARDED_FROM,
    LargestRank,
    compute_state_shares,
    find_largest_rank,
    is_worth,
    limit_confidence,
    read_sharding,
)
from zprof.causes.cause import Cause, Need, Signal, make_memory_signal
from zprof.causes.fix import Fix, choose_fix
from zprof.model.findings import Confidence
from zprof.model.quantities import Unit
from zprof.model.tenants import Tenant
from zprof.model.training import Engine, Framework

_UNSHARDED_RATIO = 0.9
#: Maximum relative difference between replicas.
_MAX_REPLICA_DIFFERENCE_RATIO = 0.02
_MAX_STATES_RATIO = 0.80
_MIN_FREED_RATIO = 0.05
_FREE_DEVICE_RATIO = 0.50
_UNITS_AND_COPIES = 8

_STAGE_1_OR_3 = (
    "stage 1: ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)\n"
    "or stage 3: fully_shard(block) for each block, then fully_shard(model)"
)
_FIX = Fix(
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

CAUSE = Cause(
    id="ZP205",
    name="replicated_state",
    meaning="Every rank keeps parameters, gradients or optimizer state that the other ranks keep too.",
    needs=(Need.MEMORY,),
    sentence="each of {ranks} ranks keeps all {size:bytes} of parameters, gradients and optimizer state "
    "({share:percent} of the peak); sharding the optimizer state alone (stage 1) frees {first:bytes}",
    evidence={
        "{tenant}_on_every_rank": ("{name}, on every rank", Unit.BYTES),
        "{tenant}_held": ("{name} held", Unit.BYTES),
        "{tenant}_by_formula": ("{name} by the ZeRO formula", Unit.BYTES),
    },
    fix=_FIX,
    disprove="record with stage 1: if the peak does not drop, it is not caused by the states",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if a rank holds states that the other ranks also hold."""
    largest = find_largest_rank(analysis)
    facts = analysis.training
    if facts.shard_ranks and facts.stage:
        ranks = facts.shard_ranks
    else:  # as many as could share the states
        ranks = max(1, analysis.run.world_size // max(1, facts.model_parallel_ranks))
    if largest is None or ranks < 2:
        return None
    states = largest.memory.state_bytes
    if states is None:
        return make_untested("no_complete_step")
    if facts.stage is None:
        return MISSING_FACTS
    if facts.stage == 0:
        return _find_without_sharding(analysis, largest, states, ranks)
    return _find_unsharded_states(analysis, largest, states, ranks)


def _find_without_sharding(
    analysis: RunAnalysis, largest: LargestRank, states: Mapping[Tenant, int], ranks: int
) -> Signal | None:
    known = [held.state_bytes for held in analysis.memory.per_rank if held.state_bytes is not None]
    totals = [sum(each.values()) for each in known]
    if max(totals) - min(totals) > _MAX_REPLICA_DIFFERENCE_RATIO * max(totals):
        return None
    freed_ratio = 1 - 1 / ranks

    def removable(_: str, held: Mapping[Tenant, int]) -> float:
        return freed_ratio * sum(min(held.get(each, 0), states.get(each, 0)) for each in SHARDED_FROM)

    high = largest.estimate_peak_reduction(removable)
    if high < _MIN_FREED_RATIO * largest.peak_bytes or not is_worth(high, largest):
        return None
    sharding = read_sharding(analysis)
    needed = _UNITS_AND_COPIES * sharding.unit_bytes if sharding else high
    size, total = sum(states.values()), largest.total_bytes
    has_headroom = total is not None and largest.peak_bytes < _FREE_DEVICE_RATIO * total
    confidence = Confidence.LOW
    if not has_headroom and size >= _MAX_STATES_RATIO * largest.peak_bytes:
        confidence = limit_confidence(Confidence.MEDIUM, largest, largest.uncertain_ratio(*SHARDED_FROM))
    return make_memory_signal(
        largest,
        confidence=confidence,
        facts=[_make_state_fact("{tenant}_on_every_rank", tenant, held) for tenant, held in states.items()],
        saving_bytes=(max(0.0, high - needed), high),
        words={
            "ranks": ranks,
            "size": size,
            "share": min(1.0, size / largest.peak_bytes),
            "first": freed_ratio * states.get(Tenant.OPTIMIZER_STATE, 0),
        },
        fix=f"{choose_fix(analysis, _FIX)}\n{_COSTS}",
    )


def _make_state_fact(key: str, tenant: Tenant, size: int, rank: int | None = None) -> Fact:
    return make_fact(key, size, rank=rank, tenant=tenant.value, name=tenant.value.replace("_", " "))


def _find_unsharded_states(
    analysis: RunAnalysis, largest: LargestRank, states: Mapping[Tenant, int], ranks: int
) -> Signal | Untested | None:
    shares = compute_state_shares(analysis.training)
    if shares is None:
        return MISSING_FACTS
    unsharded = {
        tenant: states.get(tenant, 0)
        for tenant, share in shares.items()
        if states.get(tenant, 0) >= _UNSHARDED_RATIO * ranks * share
    }
    freed = sum(size - shares[tenant] for tenant, size in unsharded.items())
    if not unsharded or not is_worth(freed, largest):
        return None
    return make_memory_signal(
        largest,
        confidence=limit_confidence(Confidence.HIGH, largest, largest.uncertain_ratio(*unsharded)),
        facts=[
            fact
            for tenant, size in unsharded.items()
            for fact in (
                _make_state_fact("{tenant}_held", tenant, size, largest.rank),
                _make_state_fact("{tenant}_by_formula", tenant, shares[tenant]),
            )
        ],
        saving_bytes=(freed / 2, freed),
        words={
            "names": " and ".join(tenant.value.replace("_", " ") for tenant in unsharded),
            "ranks": ranks,
            "stage": analysis.training.stage,
            "size": sum(unsharded.values()),
            "shares": sum(shares[tenant] for tenant in unsharded),
        },
        sentence="{names} should be sharded over {ranks} ranks in stage {stage}, but rank {rank} holds "
        "{size:bytes}, but its share is {shares:bytes}",
        fix=f"{choose_fix(analysis, _FIX)}\n"
        "create the optimizer after sharding the model, from the sharded parameters",
        disprove="compare the sizes of the optimizer's state tensors on two ranks with a parameter's: shares "
        "are 1/N of the parameter",
    )
