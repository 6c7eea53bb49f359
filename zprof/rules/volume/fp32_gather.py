"""ZP410 fp32_gather: parameters are gathered in float32, although they are used in half precision.

A trace does not contain the type in which parameters are used. Signal, from one rank and without clocks: at
least half of the bytes of all_gathers are float32, and one of

    at least half of the time in matrix products is in kernels of half precision (their names)   high
    at least half of the bytes of reductions are in half precision: gradients are never computed
    more precisely than they are stored                                                          high
    the program reports that it keeps parameters in two bytes                                    medium

(docs/thresholds.md). If products are in float32, there is nothing to save. If neither is known (a program on
the CPU, whose operators have no type), the result is a gap. The fix halves the bytes
(:mod:`zprof.rules.volume.half_precision_saving`). Reported from 1 % of the step (chosen, as in ZP409).
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import can_play_kernels, has_no_collectives, mean_wall_ns
from zprof.causes.fix import ANY, Fix, choose_fix
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Engine, Framework
from zprof.rules.evidence import make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap
from zprof.rules.volume.half_precision_saving import (
    ComputeType,
    HalvedBytes,
    measure_half_bytes,
    read_compute_type,
    states_full_precision,
)
from zprof.step.traffic import ModelTraffic, read_model_traffic

_MIN_STEP_RATIO = 0.01
_HALF_BYTES = 2

_FIXES = Fix(
    forms={
        Engine.FSDP2: "fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))\n"
        "(instead of torch.autocast, which casts after the gather)",
        Engine.FSDP1: "FullyShardedDataParallel(model, "
        "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))\n"
        "(instead of torch.autocast, which casts after the gather)",
        Engine.DEEPSPEED: '"bf16": {"enabled": true}   (torch.autocast alone casts after the gather)',
        Engine.REFERENCE: "ZeroConfig(dtype=torch.bfloat16)",
    },
    settings={
        (Framework.TRANSFORMERS, ANY): "TrainingArguments(bf16=True)",
        (Framework.ACCELERATE, ANY): 'Accelerator(mixed_precision="bf16")',
        (Framework.LIGHTNING, Engine.FSDP1): 'Trainer(precision="bf16-mixed")',
    },
)


def fp32_gather(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if parameters are gathered in a larger type than they are used in."""
    if has_no_collectives(analysis):
        return untested_gap(Cause.FP32_GATHER, "no collective was recorded", "record the time window")
    traffic = read_model_traffic(analysis)
    if not traffic.gathers.is_full:
        return None
    halved = measure_half_bytes(analysis, traffic.gathers.full_rows)
    if not can_play_kernels(analysis) and halved.lost_ns < max(1.0, _MIN_STEP_RATIO * mean_wall_ns(analysis)):
        return None
    computed = read_compute_type(analysis)
    proof = _proof(analysis, traffic, computed)
    if proof is not None:
        return _finding(analysis, traffic, halved, *proof)
    if computed.is_known or states_full_precision(analysis):
        return None
    return untested_gap(
        Cause.FP32_GATHER,
        "parameters are gathered in float32, and the type in which the model computes is unknown",
        "record on a device, whose kernel names contain types; without autocast there is nothing to save",
    )


def _proof(
    analysis: RunAnalysis, traffic: ModelTraffic, computed: ComputeType
) -> tuple[str, Confidence] | None:
    """Return the evidence that two bytes suffice, with the confidence, None if there is none."""
    if computed.is_half:
        return f"the model computes in half precision ({computed.example})", Confidence.HIGH
    if computed.is_known:
        return None
    if traffic.reductions.is_half:
        return f"gradients are reduced in {traffic.reductions.types}", Confidence.HIGH
    if analysis.training.parameter_bytes == _HALF_BYTES:
        return "parameters are stored in 2 bytes per element", Confidence.MEDIUM
    return None


def _finding(
    analysis: RunAnalysis, traffic: ModelTraffic, halved: HalvedBytes, proof: str, confidence: Confidence
) -> Finding:
    basis = analysis.time.basis
    unsure = "; ranks are missing, so part of this may be waiting" if halved.bound else ""
    moved = make_fact("float32_gathered_bytes_per_step", halved.bytes)
    return make_finding(
        analysis,
        Cause.FP32_GATHER,
        sentence=f"parameters are gathered in float32{halved.format_size(basis)} although {proof}: "
        f"half of the bytes would suffice (exposed {format_ns(halved.exposed_ns)} of "
        f"{format_ns(halved.transfer_ns)} {basis}{unsure})",
        evidence=[
            *((moved,) if halved.bytes else ()),
            make_fact("gathers_per_step", len(traffic.gathers.full_rows)),
            make_fact("transfer_per_step", halved.transfer_ns),
            make_fact("exposed_part", halved.exposed_ns),
        ],
        saving_ns=(0.0, halved.lost_ns),
        severity=rate_severity(halved.lost_ns, mean_wall_ns(analysis)),
        confidence=confidence,
        fix=choose_fix(analysis, _FIXES),
        disprove="gather in bfloat16 for some steps and record again: if the step takes as long, the bytes "
        "of parameters are not the cause",
    )
