"""ZP409: gradients are reduced in float32, although parameters or kernels use half precision.

Signal, from one rank and without clocks: at least half of the bytes of reduce_scatters and all_reduces are
float32, and one of

    at least half of the bytes of all_gathers are bfloat16, float16 or float8                   high
    the program reports that it gathers two bytes per element and reduces four                   high
    at least half of the time in matrix products is in kernels of half precision                 medium

(docs/thresholds.md). If the type in which the model computes is unknown (all_reduces of a CPU program), the
result is a gap. The fix halves the bytes (:mod:`zprof.step.needless_bytes`). Nothing is reported below 1 % of
the step, neither from the bytes nor from the played step (chosen: bytes are exact, but too few to matter
there).
"""

from collections.abc import Sequence

from zprof.analysis.analysis import (
    GRADIENT_COPY_KERNEL,
    RunAnalysis,
    Untested,
    can_play_kernels,
    find_missing_collectives,
    make_fact,
    make_untested,
    mean_wall_ns,
)
from zprof.causes.cause import Cause, Proof, Sign, Signal
from zprof.causes.fix import Fix, choose_fix
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine, Framework
from zprof.step.needless_bytes import (
    halve_bytes,
    measure_half_bytes,
    read_compute_type,
    states_full_precision,
)
from zprof.step.tasks import Graph
from zprof.step.traffic import Direction, read_model_traffic

_MIN_STEP_RATIO = 0.01
_HALF_BYTES, _FULL_BYTES = 2, 4

_DDP_HOOK = "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
_FIX = Fix(
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

CAUSE = Cause(
    id="ZP409",
    name="fp32_reduce",
    meaning="Gradients travel in float32 although parameters travel, or kernels compute, in half precision.",
    # half of the bytes also means half of the copies into and out of their buffers, which are compute
    terms=("exposed_transfer_ns", "compute_ns"),
    # reductions that take twice as long delay the backward gathers queued behind them
    produces=(Sign.GATHERS_OF_BACKWARD,),
    proof=Proof.COUNTS,
    is_priced_by_step=True,
    amounts=("float32_reduced_bytes_per_step",),
    sentence="gradients are reduced in float32{size} although {proof}: half of the bytes would suffice "
    "(exposed {exposed:ns} of {transfer:ns} {per_step}{bound})",
    evidence={
        "float32_reduced_bytes_per_step": ("gradients reduced in float32 {per_step}", Unit.BYTES),
        "reductions_per_step": ("collectives that reduce gradients in float32", Unit.COUNT),
    },
    fix=_FIX,
    disprove="reduce in bfloat16 for some steps and record again: if the step takes as long, the bytes "
    "of gradients are not the cause",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if gradients are reduced in a larger type than parameters are used in."""
    missing = find_missing_collectives(analysis)
    if missing:
        return missing
    traffic = read_model_traffic(analysis)
    if not traffic.reductions.is_full:
        return None
    halved = measure_half_bytes(analysis, traffic.reductions.full_rows)
    if not can_play_kernels(analysis) and halved.lost_ns < max(1.0, _MIN_STEP_RATIO * mean_wall_ns(analysis)):
        return None
    proof = _find_proof(analysis, traffic.gathers)
    if proof is None:
        is_known = len(traffic.gathers.rows) > 0 or read_compute_type(analysis).is_known
        if is_known or states_full_precision(analysis):
            return None
        return make_untested("reduced_type_unknown")
    moved = make_fact("float32_reduced_bytes_per_step", halved.bytes)
    return Signal(
        confidence=proof[1],
        words={"proof": proof[0], **halved.list_words(analysis.time.basis)},
        facts=[
            *((moved,) if halved.bytes else ()),
            make_fact("reductions_per_step", len(traffic.reductions.full_rows)),
            make_fact("transfer_per_step", halved.transfer_ns),
            make_fact("exposed_part", halved.exposed_ns),
        ],
        lost_ns=halved.lost_ns,
        fix=choose_fix(analysis, _FIX) + _NUMERICS,
    )


def _find_proof(analysis: RunAnalysis, gathers: Direction) -> tuple[str, Confidence] | None:
    """Return the evidence that two bytes suffice, and its confidence; None without evidence."""
    facts = analysis.training
    if gathers.is_half:
        return f"parameters are gathered in {gathers.types}", Confidence.HIGH
    if facts.communication_bytes == _HALF_BYTES and facts.reduction_bytes == _FULL_BYTES:
        return "the program gathers 2 bytes per element", Confidence.HIGH
    computed = read_compute_type(analysis)
    if computed.is_half:
        return f"the model computes in half precision ({computed.example})", Confidence.MEDIUM
    return None


@CAUSE.edit
def reduce_in_half(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step with half of the bytes of gradients, and of their copies."""
    rows = read_model_traffic(analysis).reductions.full_rows.row.tolist()
    return halve_bytes(analysis, graph, rows, lambda name: GRADIENT_COPY_KERNEL in name)
