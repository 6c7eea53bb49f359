"""ZP205 replicated_state: every rank keeps states that the other ranks keep too.

Two cases. A run without sharding (stage 0) on N > 1 ranks: parameters, gradients and optimizer state are the
same on all ranks, and sharding frees 1 - 1/N of them. Or a run that claims to shard a state, while a rank
holds at least 0.9 N times its share: the whole state is still there.

Whether a replica is a fault depends on who needs the memory. In stage 0 the confidence is medium if the
states are at least four fifths of the peak (the share of a device left for states in the ZeRO paper's table 2
is 82 %). It is low below that, and on a GPU of which less than half is used.

Stage 3 needs gathered units instead, so lo subtracts up to eight of them (six of
:mod:`~zprof.rules.memory.buffers_dominate`, and two that a backend copies).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_percent
from zprof.model.gaps import Gap
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts
from zprof.rules.memory.largest_rank import (
    LargestRank,
    bytes_evidence,
    find_largest_rank,
    is_worth,
    limit_confidence,
    make_memory_finding,
    missing_facts_gap,
)
from zprof.rules.memory.model_structure import SHARDED_FROM, read_sharding
from zprof.rules.rule import choose_fix, untested_gap

_WHOLE_RATIO = 0.9
#: Ranks whose states differ by more are not replicas of each other.
_EQUAL_RATIO = 0.02
_MAX_STATES_RATIO = 0.80
_MIN_STEP_RATIO = 0.05
_FREE_DEVICE_RATIO = 0.50
_UNITS_AND_COPIES = 8

_FIXES = {
    "FSDP2": "fully_shard each block, then the model, before the optimizer is made from model.parameters()",
    "DeepSpeed": '"zero_optimization": {"stage": 1}',
    "DDP": "stage 1: ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)\n"
    "or stage 3: fully_shard(block) for each block, then fully_shard(model)",
    "reference": "ZeroConfig(stage=1), then 2, then 3",
}
_COSTS = "stages 1 and 2 move as many bytes as data parallelism, stage 3 half as many again"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replica:
    """Whole states on one rank that could be a share of them."""

    ranks: int
    states: Mapping[Tenant, int]
    freed_bytes: float


def replicated_state(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if a rank holds states that the other ranks hold too."""
    big = find_largest_rank(analysis)
    facts = analysis.training
    if big is None or _count_shard_ranks(analysis) < 2:
        return None
    if big.memory.state_bytes is None:
        return untested_gap(
            Cause.REPLICATED_STATE, "no whole step was watched", "record two steps: zprof.steps(memory=2)"
        )
    if facts.stage is None:
        return missing_facts_gap(Cause.REPLICATED_STATE)
    if facts.stage == 0:
        return _find_without_sharding(analysis, big, big.memory.state_bytes)
    return _find_unsharded_states(analysis, big, big.memory.state_bytes)


def _count_shard_ranks(analysis: RunAnalysis) -> int:
    """Return the number of ranks that could share the states."""
    facts = analysis.training
    if facts.shard_ranks and facts.stage:
        return facts.shard_ranks
    return max(1, analysis.run.world_size // max(1, facts.model_parallel_ranks))


def _find_without_sharding(
    analysis: RunAnalysis, big: LargestRank, states: Mapping[Tenant, int]
) -> Finding | None:
    if not _are_equal(analysis):
        return None
    ranks = _count_shard_ranks(analysis)
    replica = _Replica(ranks=ranks, states=states, freed_bytes=(1 - 1 / ranks) * sum(states.values()))
    saving = _saving(analysis, big, replica)
    if saving[1] < _MIN_STEP_RATIO * big.peak_bytes or not is_worth(saving[1], big):
        return None
    total = sum(states.values())
    optimizer = replica.states.get(Tenant.OPTIMIZER_STATE, 0)
    return make_memory_finding(
        Cause.REPLICATED_STATE,
        big,
        sentence=f"each of {ranks} ranks keeps all {format_bytes(total)} of parameters, gradients and "
        f"optimizer state ({format_percent(min(1.0, total / big.peak_bytes))} of the peak); sharding the "
        f"optimizer state alone (stage 1) takes {format_bytes((1 - 1 / ranks) * optimizer)} of it away",
        evidence=[
            bytes_evidence(
                f"{tenant.value}_on_every_rank", f"{tenant.value.replace('_', ' ')}, on every rank", size
            )
            for tenant, size in states.items()
        ],
        saving_bytes=saving,
        confidence=_confidence(big, total),
        fix=f"{choose_fix(analysis.training.engine, _FIXES)}\n{_COSTS}",
        disprove="record with stage 1: if the peak stays, it lies where the states are not",
    )


def _are_equal(analysis: RunAnalysis) -> bool:
    """Return True if all ranks with known states hold equally much; the largest is one of them."""
    known = [entry.state_bytes for entry in analysis.memory.per_rank if entry.state_bytes is not None]
    totals = [sum(states.values()) for states in known]
    return max(totals) - min(totals) <= _EQUAL_RATIO * max(totals)


def _saving(analysis: RunAnalysis, big: LargestRank, replica: _Replica) -> tuple[float, float]:
    def removable(_: str, held: Mapping[Tenant, int]) -> float:
        states = sum(min(held.get(tenant, 0), replica.states.get(tenant, 0)) for tenant in SHARDED_FROM)
        return (1 - 1 / replica.ranks) * states

    high = big.would_fall(removable)
    sharding = read_sharding(analysis)
    needed = _UNITS_AND_COPIES * sharding.unit_bytes if sharding else high
    return (max(0.0, high - needed), high)


def _confidence(big: LargestRank, states_bytes: int) -> Confidence:
    has_headroom = big.total_bytes is not None and big.peak_bytes < _FREE_DEVICE_RATIO * big.total_bytes
    if has_headroom or states_bytes < _MAX_STATES_RATIO * big.peak_bytes:
        return Confidence.LOW
    return limit_confidence(Confidence.MEDIUM, big, big.weak_ratio(*SHARDED_FROM))


def _find_unsharded_states(
    analysis: RunAnalysis, big: LargestRank, states: Mapping[Tenant, int]
) -> Finding | Gap | None:
    shares = _shares(analysis.training)
    if shares is None:
        return missing_facts_gap(Cause.REPLICATED_STATE)
    ranks = _count_shard_ranks(analysis)
    whole = {
        tenant: states.get(tenant, 0)
        for tenant, share in shares.items()
        if states.get(tenant, 0) >= _WHOLE_RATIO * ranks * share
    }
    freed = sum(size - shares[tenant] for tenant, size in whole.items())
    if not whole or not is_worth(freed, big):
        return None
    names = " and ".join(tenant.value.replace("_", " ") for tenant in whole)
    stage = analysis.training.stage
    return make_memory_finding(
        Cause.REPLICATED_STATE,
        big,
        sentence=f"{names} should be sharded over {ranks} ranks in stage {stage}, but rank {big.rank} holds "
        f"{format_bytes(sum(whole.values()))} where its share is "
        f"{format_bytes(sum(shares[tenant] for tenant in whole))}",
        evidence=[
            fact
            for tenant, size in whole.items()
            for fact in (
                bytes_evidence(
                    f"{tenant.value}_held", f"{tenant.value.replace('_', ' ')} held", size, big.rank
                ),
                bytes_evidence(
                    f"{tenant.value}_by_formula",
                    f"{tenant.value.replace('_', ' ')} by the ZeRO formula",
                    shares[tenant],
                ),
            )
        ],
        saving_bytes=(freed / 2, freed),
        confidence=limit_confidence(Confidence.HIGH, big, big.weak_ratio(*whole)),
        fix=f"{choose_fix(analysis.training.engine, _FIXES)}\n"
        "make the optimizer after the model is sharded, from the sharded parameters",
        disprove="compare the sizes of the optimizer's state tensors on two ranks with a parameter's: shares "
        "are 1/N of it",
    )


def _shares(facts: TrainingFacts) -> dict[Tenant, int] | None:
    """Return one rank's share of each state that the stage shards, as far as its size is known."""
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
