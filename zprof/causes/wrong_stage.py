"""ZP206: this stage frees less memory than it costs, or another stage would free more.

With a baseline in a lower stage, with the same model, number of ranks and similar activation sizes:
the peak of the higher stage is not below the peak of the lower one (within 2 %). This is measured, so the
confidence is high.

Without a baseline, from the ZeRO formula alone:
- stage 3 frees (1 - 1/N) of the parameters that stage 2 keeps. Gathered units of that size cancel the gain,
  and below 5 % of the peak it is not worth the traffic of stage 3 (3 psi instead of 2 psi). Low confidence;
  medium if stage 2 fits within 80 % of the device's memory.
- in stages 1 and 2, unsharded parameters that are at least half of the peak: only stage 3 shards them (frozen
  models). Medium confidence.
"""

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact
from zprof.analysis.memory.largest_rank import (
    MISSING_FACTS,
    LargestRank,
    Sharding,
    did_same_work,
    find_largest_rank,
    is_worth,
    limit_confidence,
    read_sharding,
)
from zprof.causes.cause import Cause, Need, Signal, make_memory_signal
from zprof.causes.fix import KEEP_AFTER_FORWARD, Fix, choose_fix
from zprof.model.findings import Confidence
from zprof.model.quantities import Unit
from zprof.model.tenants import Tenant
from zprof.model.training import Engine

_SAME_RATIO = 0.02
_MIN_FREED_RATIO = 0.05
_FITS_RATIO = 0.80
_MOST_RATIO = 0.50
#: Peaks below this are not judged: the smallest saving that is worth a finding.
_MIN_PEAK_BYTES = 1 << 20
#: Maximum units that stage 3 holds: parameters, gradients, and their copies.
_UNITS_IN_FLIGHT = 8
_GATHERED = "gathered_param"

_LOWER_STAGE = Fix(
    forms={
        Engine.FSDP2: "fully_shard(block, reshard_after_forward=False)  # keeps parameters, like stage 2",
        Engine.FSDP1: "FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
        Engine.DEEPSPEED: '"zero_optimization": {"stage": 2}',
        Engine.REFERENCE: "ZeroConfig(stage=2)",
    },
    settings=KEEP_AFTER_FORWARD,
)
_HIGHER_STAGE = Fix(
    forms={
        Engine.FSDP2: "fully_shard(block)  # each block, reshard_after_forward=True; then the model",
        Engine.FSDP1: "FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy.FULL_SHARD)",
        Engine.DEEPSPEED: '"zero_optimization": {"stage": 3}',
        Engine.REFERENCE: "ZeroConfig(stage=3)",
    },
)

CAUSE = Cause(
    id="ZP206",
    name="wrong_stage",
    meaning="This sharding stage frees less than it costs, or another one would free more.",
    needs=(Need.MEMORY,),
    sentence="stage {stage} peaks at {peak:bytes}, not below stage {lower}'s {lower_peak:bytes}: the buffers "
    "that it needs exceed the states that it shards",
    evidence={
        "peak_of_lower_stage": ("peak of stage {stage}", Unit.BYTES),
        "communication_buffers": ("communication buffers", Unit.BYTES),
        "communication_buffers_of_lower_stage": ("communication buffers in stage {stage}", Unit.BYTES),
        "parameters_to_shard": (
            "parameters that stage 3 shards and stage 2 keeps, less one share",
            Unit.BYTES,
        ),
        "gathered_at_peak": ("gathered parameters at the peak", Unit.BYTES),
        "parameters_at_peak": ("parameters at the peak", Unit.BYTES),
    },
    fix=_LOWER_STAGE,
    disprove="record both stages again with the same batch: the difference must be reproducible",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if a different stage needs less memory, or the same memory with less traffic."""
    largest = find_largest_rank(analysis)
    if largest is None or analysis.run.world_size == 1:
        return None
    sharding = read_sharding(analysis)
    if sharding is None:
        return MISSING_FACTS
    if sharding.ranks < 2 or sharding.stage == 0:
        return None
    before = find_largest_rank(baseline) if baseline else None
    if (
        baseline is not None
        and before is not None
        and baseline.training.stage in range(sharding.stage)
        and did_same_work(analysis, largest, baseline, before)
    ):
        measured = _compare_with_baseline(analysis, largest, baseline, before)
        if measured or baseline.training.stage == sharding.stage - 1:
            return measured  # no guess after a measurement
    if sharding.stage == 3:
        return _judge_stage_3(analysis, largest, sharding)
    return _judge_whole_parameters(analysis, largest, sharding)


def _compare_with_baseline(
    analysis: RunAnalysis, largest: LargestRank, baseline: RunAnalysis, before: LargestRank
) -> Signal | None:
    higher = largest.memory.peak_bytes - before.memory.peak_bytes
    if higher < -_SAME_RATIO * before.peak_bytes:
        return None
    lower = baseline.training.stage
    buffers = Tenant.COMMUNICATION_BUFFERS
    confidence = Confidence.MEDIUM if before.memory.upper_bound else Confidence.HIGH
    return make_memory_signal(
        largest,
        confidence=limit_confidence(confidence, largest, 0.0),
        facts=[
            make_fact("peak_of_lower_stage", before.memory.peak_bytes, rank=before.rank, stage=lower),
            make_fact("communication_buffers", largest.of(buffers), rank=largest.rank),
            make_fact(
                "communication_buffers_of_lower_stage", before.of(buffers), rank=before.rank, stage=lower
            ),
        ],
        saving_bytes=(max(0, higher), max(0, higher)),
        words={"stage": analysis.training.stage, "lower": lower, "lower_peak": before.peak_bytes},
        fix=choose_fix(analysis, _LOWER_STAGE) + "\nor choose buffer and unit sizes that fit the model",
    )


def _judge_stage_3(analysis: RunAnalysis, largest: LargestRank, sharding: Sharding) -> Signal | None:
    freed = sharding.freed_ratio * sharding.parameters_bytes
    gathered = sum(part.bytes for part in largest.memory.parts if part.sub == _GATHERED)
    is_small = freed < _MIN_FREED_RATIO * largest.peak_bytes
    if _moves_as_much_in_stage_2(analysis):
        return None
    if not (is_small or gathered >= freed) or largest.peak_bytes < _MIN_PEAK_BYTES:
        return None
    reason = (
        "no more than {share:percent} of the peak"
        if is_small
        else "but holds {gathered:bytes} of gathered units instead"
    )
    fits = largest.total_bytes is not None and largest.peak_bytes + freed <= _FITS_RATIO * largest.total_bytes
    saved = max(0.0, gathered - freed)
    return make_memory_signal(
        largest,
        confidence=limit_confidence(Confidence.MEDIUM if fits else Confidence.LOW, largest, 0.0),
        facts=[
            make_fact("parameters_to_shard", freed),
            make_fact("gathered_at_peak", gathered, rank=largest.rank),
        ],
        saving_bytes=(0, saved if is_worth(saved, largest) else 0),
        words={"freed": freed, "share": freed / largest.peak_bytes, "gathered": gathered},
        sentence=f"stage 3 frees {{freed:bytes}} of parameters relative to stage 2, {reason}, "
        "and moves 1.5 times as many bytes",
        disprove="record stage 2 with the same batch and compare: zprof report THIS --baseline STAGE2",
    )


def _moves_as_much_in_stage_2(analysis: RunAnalysis) -> bool:
    """Return True for DeepSpeed, whose stage 2 all-reduces the gradients: 3 psi, as in stage 3."""
    return analysis.engine is Engine.DEEPSPEED


def _judge_whole_parameters(analysis: RunAnalysis, largest: LargestRank, sharding: Sharding) -> Signal | None:
    parameters = largest.of(Tenant.PARAMETERS)
    freed = sharding.freed_ratio * parameters
    if parameters < _MOST_RATIO * largest.peak_bytes or not is_worth(freed, largest):
        return None
    uncertain_ratio = largest.uncertain_ratio(Tenant.PARAMETERS)
    return make_memory_signal(
        largest,
        confidence=limit_confidence(Confidence.MEDIUM, largest, uncertain_ratio),
        facts=[make_fact("parameters_at_peak", parameters, rank=largest.rank)],
        saving_bytes=(max(0.0, freed - _UNITS_IN_FLIGHT * sharding.unit_bytes), freed),
        words={
            "share": parameters / largest.peak_bytes,
            "stage": sharding.stage,
            "ranks": sharding.ranks,
        },
        sentence="unsharded parameters are {share:percent} of the peak in stage {stage}, which does not "
        "shard parameters: stage 3 leaves a share of 1/{ranks}",
        fix=choose_fix(analysis, _HIGHER_STAGE)
        + ("" if _moves_as_much_in_stage_2(analysis) else "\nstage 3 moves 1.5 times as many bytes"),
        disprove="record stage 3 with the same batch and compare the peaks",
    )
