"""ZP410: parameters are gathered in float32, although they are used in half precision.

A trace does not contain the type in which parameters are used. Signal, from one rank and without clocks: at
least half of the bytes of all_gathers are float32, and one of

    at least half of the time in matrix products is in kernels of half precision (their names)   high
    at least half of the bytes of reductions are in half precision: gradients are never computed
    more precisely than they are stored                                                          high
    the program reports that it keeps parameters in two bytes                                    medium

(docs/thresholds.md). If products are in float32, there is nothing to save. If neither is known (a program on
the CPU, whose operators have no type), the result is a gap. The fix halves the bytes
(:mod:`zprof.step.needless_bytes`). Reported from 1 % of the step (chosen, as in ZP409).
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
from zprof.causes.fix import ANY, Fix
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine, Framework
from zprof.step.needless_bytes import (
    ComputeType,
    halve_bytes,
    measure_half_bytes,
    read_compute_type,
    states_full_precision,
)
from zprof.step.tasks import Graph
from zprof.step.traffic import ModelTraffic, read_model_traffic

_MIN_STEP_RATIO = 0.01
_HALF_BYTES = 2

_FIX = Fix(
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

CAUSE = Cause(
    id="ZP410",
    name="fp32_gather",
    meaning="Parameters travel in float32 although they are used in half precision.",
    # half of the bytes also means half of the copies into and out of their buffers, which are compute
    terms=("exposed_transfer_ns", "compute_ns"),
    # gathers of twice the bytes arrive late, also in the backward pass
    produces=(Sign.GATHERS_OF_BACKWARD,),
    proof=Proof.COUNTS,
    is_priced_by_step=True,
    amounts=("float32_gathered_bytes_per_step",),
    sentence="parameters are gathered in float32{size} although {proof}: half of the bytes would suffice "
    "(exposed {exposed:ns} of {transfer:ns} {per_step}{bound})",
    evidence={
        "float32_gathered_bytes_per_step": ("parameters gathered in float32 {per_step}", Unit.BYTES),
        "gathers_per_step": ("collectives that gather parameters in float32", Unit.COUNT),
    },
    fix=_FIX,
    disprove="gather in bfloat16 for some steps and record again: if the step takes as long, the bytes "
    "of parameters are not the cause",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if parameters are gathered in a larger type than they are used in."""
    missing = find_missing_collectives(analysis)
    if missing:
        return missing
    traffic = read_model_traffic(analysis)
    if not traffic.gathers.is_full:
        return None
    halved = measure_half_bytes(analysis, traffic.gathers.full_rows)
    if not can_play_kernels(analysis) and halved.lost_ns < max(1.0, _MIN_STEP_RATIO * mean_wall_ns(analysis)):
        return None
    computed = read_compute_type(analysis)
    proof = _find_proof(analysis, traffic, computed)
    if proof is None:
        if computed.is_known or states_full_precision(analysis):
            return None
        return make_untested("gathered_type_unknown")
    moved = make_fact("float32_gathered_bytes_per_step", halved.bytes)
    return Signal(
        confidence=proof[1],
        words={"proof": proof[0], **halved.list_words(analysis.time.basis)},
        facts=[
            *((moved,) if halved.bytes else ()),
            make_fact("gathers_per_step", len(traffic.gathers.full_rows)),
            make_fact("transfer_per_step", halved.transfer_ns),
            make_fact("exposed_part", halved.exposed_ns),
        ],
        lost_ns=halved.lost_ns,
    )


def _find_proof(
    analysis: RunAnalysis, traffic: ModelTraffic, computed: ComputeType
) -> tuple[str, Confidence] | None:
    """Return the evidence that two bytes suffice, and its confidence; None without evidence."""
    if computed.is_half:
        return f"the model computes in half precision ({computed.example})", Confidence.HIGH
    if computed.is_known:
        return None
    if traffic.reductions.is_half:
        return f"gradients are reduced in {traffic.reductions.types}", Confidence.HIGH
    if analysis.training.parameter_bytes == _HALF_BYTES:
        return "parameters are stored in 2 bytes per element", Confidence.MEDIUM
    return None


@CAUSE.edit
def gather_in_half(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step with half of the bytes of parameters, and of their copies."""
    rows = read_model_traffic(analysis).gathers.full_rows.row.tolist()
    return halve_bytes(analysis, graph, rows, lambda name: GRADIENT_COPY_KERNEL not in name)
