"""ZP409 fp32_reduce: gradients are reduced in float32, although parameters or kernels use half precision.

Signal, from one rank and without clocks: at least half of the bytes of reduce_scatters and all_reduces are
float32, and one of

    at least half of the bytes of all_gathers are bfloat16, float16 or float8                   high
    the program reports that it gathers two bytes per element and reduces four                   high
    at least half of the time in matrix products is in kernels of half precision                 medium

(docs/thresholds.md). If the type in which the model computes is unknown (all_reduces of a CPU program),
the result is a gap. The fix halves the bytes (:mod:`zprof.rules.volume.half_precision_saving`). Nothing is
reported below 1 % of the step (chosen: bytes are exact, but too few to matter there).
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import can_play_kernels, has_no_collectives, mean_wall_ns
from zprof.causes.fix import Fix, choose_fix
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Engine, Framework
from zprof.rules.evidence import make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap
from zprof.rules.volume.half_precision_saving import (
    HalvedBytes,
    measure_half_bytes,
    read_compute_type,
    states_full_precision,
)
from zprof.step.traffic import Direction, read_model_traffic

_MIN_STEP_RATIO = 0.01
_HALF_BYTES, _FULL_BYTES = 2, 4

_DDP_HOOK = "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
_FIXES = Fix(
    forms={
        Engine.FSDP2: "fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16,\n"
        "                                                 reduce_dtype=torch.bfloat16))",
        Engine.FSDP1: "FullyShardedDataParallel(model, mixed_precision=MixedPrecision(\n"
        "    param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))",
        Engine.DEEPSPEED: '"communication_data_type": "bf16"',
        Engine.REFERENCE: "ZeroConfig(dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)",
        Engine.DDP: _DDP_HOOK,
        Engine.ZERO1: _DDP_HOOK,
    },
    settings={
        (Framework.ACCELERATE, Engine.FSDP2): "FullyShardedDataParallelPlugin(fsdp_version=2,\n"
        "    mixed_precision_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16,\n"
        "                                                reduce_dtype=torch.bfloat16))",
        (
            Framework.ACCELERATE,
            Engine.DDP,
        ): "DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.BF16)",
        (Framework.LIGHTNING, Engine.DDP): "DDPStrategy(ddp_comm_hook=default_hooks.bf16_compress_hook)",
        (Framework.LIGHTNING, Engine.FSDP1): "FSDPStrategy(mixed_precision=MixedPrecision(\n"
        "    param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))",
    },
)
_NUMERICS = "\nsums of many ranks lose bits in half precision: compare the loss over some hundred steps first"


def fp32_reduce(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if gradients are reduced in a larger type than parameters are used in."""
    if has_no_collectives(analysis):
        return untested_gap(Cause.FP32_REDUCE, "no collective was recorded", "record the time window")
    traffic = read_model_traffic(analysis)
    if not traffic.reductions.is_full:
        return None
    halved = measure_half_bytes(analysis, traffic.reductions.full_rows)
    if not can_play_kernels(analysis) and halved.lost_ns < max(1.0, _MIN_STEP_RATIO * mean_wall_ns(analysis)):
        return None
    proof = _proof(analysis, traffic.gathers)
    if proof is not None:
        return _finding(analysis, traffic.reductions, halved, *proof)
    if (
        len(traffic.gathers.rows) > 0
        or read_compute_type(analysis).is_known
        or states_full_precision(analysis)
    ):
        return None
    return untested_gap(
        Cause.FP32_REDUCE,
        "gradients are reduced in float32, and the type in which the model computes is unknown",
        "record on a device, whose kernel names contain types, or pass the types: TrainingFacts(…)",
    )


def _proof(analysis: RunAnalysis, gathers: Direction) -> tuple[str, Confidence] | None:
    """Return the evidence that two bytes suffice, with the confidence, None if there is none."""
    facts = analysis.training
    if gathers.is_half:
        return f"parameters are gathered in {gathers.types}", Confidence.HIGH
    if facts.communication_bytes == _HALF_BYTES and facts.reduction_bytes == _FULL_BYTES:
        return "the program gathers 2 bytes per element", Confidence.HIGH
    computed = read_compute_type(analysis)
    if computed.is_half:
        return f"the model computes in half precision ({computed.example})", Confidence.MEDIUM
    return None


def _finding(
    analysis: RunAnalysis, reductions: Direction, halved: HalvedBytes, proof: str, confidence: Confidence
) -> Finding:
    basis = analysis.time.basis
    unsure = "; ranks are missing, so part of this may be waiting" if halved.bound else ""
    moved = make_fact("float32_reduced_bytes_per_step", halved.bytes)
    return make_finding(
        analysis,
        Cause.FP32_REDUCE,
        sentence=f"gradients are reduced in float32{halved.format_size(basis)} although {proof}: "
        f"half of the bytes would suffice (exposed {format_ns(halved.exposed_ns)} of "
        f"{format_ns(halved.transfer_ns)} {basis}{unsure})",
        evidence=[
            *((moved,) if halved.bytes else ()),
            make_fact("reductions_per_step", len(reductions.full_rows)),
            make_fact("transfer_per_step", halved.transfer_ns),
            make_fact("exposed_part", halved.exposed_ns),
        ],
        saving_ns=(0.0, halved.lost_ns),
        severity=rate_severity(halved.lost_ns, mean_wall_ns(analysis)),
        confidence=confidence,
        fix=choose_fix(analysis, _FIXES) + _NUMERICS,
        disprove="reduce in bfloat16 for some steps and record again: if the step takes as long, the bytes "
        "of gradients are not the cause",
    )
