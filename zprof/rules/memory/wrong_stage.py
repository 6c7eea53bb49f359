"""ZP206 wrong_stage: this stage frees less memory than it costs, or a different stage would free more.

With a baseline in a lower stage, with the same model, number of ranks and similar activation sizes:
the peak of the higher stage is not below the peak of the lower one (within 2 %). This is measured, so the
confidence is high.

Without one, from the ZeRO formula alone:
- stage 3 frees (1 - 1/N) of the parameters that stage 2 keeps. Gathered units as large as that cancel it, and
  below 5 % of the peak it is not worth the traffic of stage 3 (3 psi instead of 2 psi). Low confidence;
  medium if stage 2 fits within 80 % of the device's memory.
- in stages 1 and 2, unsharded parameters that are at least half of the peak: only stage 3 shards them (frozen
  models). Medium confidence.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.fix import KEEP_AFTER_FORWARD, Fix, choose_fix
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_percent
from zprof.model.gaps import Gap
from zprof.model.tenants import Tenant
from zprof.model.training import Engine
from zprof.rules.evidence import make_fact
from zprof.rules.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
    make_memory_finding,
    missing_facts_gap,
)
from zprof.rules.memory.model_structure import Sharding, read_sharding

_SAME_RATIO = 0.02
_MAX_SIZE_FACTOR = 1.25
_MIN_STEP_RATIO = 0.05
_FITS_RATIO = 0.80
_MOST_RATIO = 0.50
_GATHERED = "gathered_param"

_LOWER_STAGE_FIXES = Fix(
    forms={
        Engine.FSDP2: "fully_shard(block, reshard_after_forward=False)  # keeps parameters, like stage 2",
        Engine.FSDP1: "FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
        Engine.DEEPSPEED: '"zero_optimization": {"stage": 2}',
        Engine.REFERENCE: "ZeroConfig(stage=2)",
    },
    settings=KEEP_AFTER_FORWARD,
)
_HIGHER_STAGE_FIXES = Fix(
    forms={
        Engine.FSDP2: "fully_shard(block)  # each block, reshard_after_forward=True; then the model",
        Engine.FSDP1: "FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy.FULL_SHARD)",
        Engine.DEEPSPEED: '"zero_optimization": {"stage": 3}',
        Engine.REFERENCE: "ZeroConfig(stage=3)",
    },
)


def wrong_stage(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if a different stage needs less memory, or the same memory with less traffic."""
    big = find_largest_rank(analysis)
    if big is None or analysis.run.world_size == 1:
        return None
    sharding = read_sharding(analysis)
    if sharding is None:
        return missing_facts_gap(Cause.WRONG_STAGE)
    if sharding.ranks < 2 or sharding.stage == 0:
        return None
    baseline_rank = _comparable_baseline(analysis, big, sharding, baseline)
    if baseline and baseline_rank:
        measured = _compare_with_baseline(analysis, big, baseline, baseline_rank)
        if measured or baseline.training.stage == sharding.stage - 1:
            return measured  # a measurement is not followed by a guess
    return (
        _judge_stage_3(analysis, big, sharding) if sharding.stage == 3 else _whole_parameters(analysis, big)
    )


def _comparable_baseline(
    analysis: RunAnalysis, big: LargestRank, sharding: Sharding, baseline: RunAnalysis | None
) -> LargestRank | None:
    """Return the baseline's largest rank if it did the same work in a lower stage, else None."""
    baseline_rank = find_largest_rank(baseline) if baseline else None
    if baseline is None or baseline_rank is None or baseline.training.stage not in range(sharding.stage):
        return None
    return baseline_rank if _is_same_work(analysis, big, baseline, baseline_rank) else None


def _compare_with_baseline(
    analysis: RunAnalysis, big: LargestRank, baseline: RunAnalysis, baseline_rank: LargestRank
) -> Finding | None:
    higher = big.memory.peak_bytes - baseline_rank.memory.peak_bytes
    if higher < -_SAME_RATIO * baseline_rank.peak_bytes:
        return None
    stage, lower = analysis.training.stage, baseline.training.stage
    sure = Confidence.MEDIUM if baseline_rank.memory.upper_bound else Confidence.HIGH
    return make_memory_finding(
        analysis,
        Cause.WRONG_STAGE,
        big,
        sentence=f"stage {stage} peaks at {format_bytes(big.peak_bytes)}, not below stage {lower}'s "
        f"{format_bytes(baseline_rank.peak_bytes)}: the buffers that it needs exceed the states that it "
        "shards",
        evidence=[
            make_fact(
                "peak_of_lower_stage", baseline_rank.memory.peak_bytes, rank=baseline_rank.rank, stage=lower
            ),
            make_fact("communication_buffers", big.of(Tenant.COMMUNICATION_BUFFERS), rank=big.rank),
            make_fact(
                "communication_buffers_of_lower_stage",
                baseline_rank.of(Tenant.COMMUNICATION_BUFFERS),
                rank=baseline_rank.rank,
                stage=lower,
            ),
        ],
        saving_bytes=(max(0, higher), max(0, higher)),
        confidence=limit_confidence(sure, big, 0.0),
        fix=choose_fix(analysis, _LOWER_STAGE_FIXES) + "\nor choose buffer and unit sizes that fit the model",
        disprove="record both stages again with the same batch: the difference must be reproducible",
    )


def _is_same_work(
    analysis: RunAnalysis, big: LargestRank, baseline: RunAnalysis, baseline_rank: LargestRank
) -> bool:
    mine, theirs = analysis.training, baseline.training
    same = mine.parameters == theirs.parameters and mine.micro_batches == theirs.micro_batches
    same = same and analysis.run.world_size == baseline.run.world_size
    ours, others = _most_activations(analysis, big), _most_activations(baseline, baseline_rank)
    return same and max(ours, others) <= _MAX_SIZE_FACTOR * max(1, min(ours, others))


def _most_activations(analysis: RunAnalysis, big: LargestRank) -> int:
    """Return the maximum activations at any time, because a stage can move the peak."""
    held = [phase.tenants.get(Tenant.ACTIVATIONS, 0) for phase in big.phases]
    for timeline in analysis.memory.timelines:
        if timeline.rank == big.rank:
            held += timeline.tenants.get(Tenant.ACTIVATIONS.value, ())
    return max([big.of(Tenant.ACTIVATIONS), *held])


def _judge_stage_3(analysis: RunAnalysis, big: LargestRank, sharding: Sharding) -> Finding | None:
    frees = sharding.freed_ratio * sharding.parameters_bytes
    gathered = sum(part.bytes for part in big.memory.parts if part.sub == _GATHERED)
    is_small = frees < _MIN_STEP_RATIO * big.peak_bytes
    if _moves_as_much_in_stage_2(analysis):
        return None
    if not (is_small or gathered >= frees) or big.peak_bytes < 1 << 20:
        return None
    reason = (
        f"no more than {format_percent(frees / big.peak_bytes)} of the peak"
        if is_small
        else f"but holds {format_bytes(gathered)} of gathered units instead"
    )
    fits = big.total_bytes is not None and big.peak_bytes + frees <= _FITS_RATIO * big.total_bytes
    saved = max(0.0, gathered - frees)
    return make_memory_finding(
        analysis,
        Cause.WRONG_STAGE,
        big,
        sentence=f"stage 3 frees {format_bytes(frees)} of parameters relative to stage 2, {reason}"
        ", and moves 1.5 times as many bytes",
        evidence=[
            make_fact("parameters_to_shard", frees),
            make_fact("gathered_at_peak", gathered, rank=big.rank),
        ],
        saving_bytes=(0, saved if is_worth(saved, big) else 0),
        confidence=limit_confidence(Confidence.MEDIUM if fits else Confidence.LOW, big, 0.0),
        fix=choose_fix(analysis, _LOWER_STAGE_FIXES),
        disprove="record stage 2 with the same batch and compare: zprof report THIS --baseline STAGE2",
    )


def _moves_as_much_in_stage_2(analysis: RunAnalysis) -> bool:
    """Return True for DeepSpeed, whose stage 2 all-reduces the gradients: 3 psi, as many as stage 3."""
    return analysis.engine is Engine.DEEPSPEED


def _whole_parameters(analysis: RunAnalysis, big: LargestRank) -> Finding | None:
    parameters = big.of(Tenant.PARAMETERS)
    ranks = analysis.training.shard_ranks or 1
    frees = (1 - 1 / ranks) * parameters
    if parameters < _MOST_RATIO * big.peak_bytes or not is_worth(frees, big):
        return None
    sharding = read_sharding(analysis)
    units = 2 * sharding.unit_bytes if sharding else 0
    return make_memory_finding(
        analysis,
        Cause.WRONG_STAGE,
        big,
        sentence=f"unsharded parameters are {format_percent(parameters / big.peak_bytes)} of the peak in "
        f"stage {analysis.training.stage}, which does not shard parameters: stage 3 leaves a share of "
        f"1/{ranks}",
        evidence=[make_fact("parameters_at_peak", parameters, rank=big.rank)],
        saving_bytes=(max(0.0, frees - 4 * units), frees),
        confidence=limit_confidence(Confidence.MEDIUM, big, big.uncertain_ratio(Tenant.PARAMETERS)),
        fix=choose_fix(analysis, _HIGHER_STAGE_FIXES)
        + ("" if _moves_as_much_in_stage_2(analysis) else "\nstage 3 moves 1.5 times as many bytes"),
        disprove="record stage 3 with the same batch and compare the peaks",
    )
