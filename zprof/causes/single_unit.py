"""ZP405: the model is gathered, or its gradients are reduced, in one message that nothing overlaps.

With one unit, no compute runs before the first all_gather of a step or after the last reduction. Signal: at
most two all_gathers per step (forward and backward), the largest of which carries more than 50 % of the bytes
of a pass, and more than 80 % of the first gather's transfer is exposed. If nothing is gathered (stages 0 to
2), the same applies to the last reduction, if it carries more than 90 % of the gradients: of two buckets the
first is hidden, and the last may contain the last gradients of the backward pass. Thresholds are from
docs/thresholds.md (SpecForge #566). It must cost 3 % of the step.

Saving: the step with the same model in 4 to 48 units, as many as a model has blocks, from the model of its
passes: of the first gather and the last reduction T / n instead of T is exposed, more if the link is slow. A
single unit stays gathered (FSDP2 never reshards the root). Blocks are gathered again for their backward, and
the saving accounts for that.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from zprof.analysis.analysis import (
    RunAnalysis,
    Untested,
    count_steps,
    find_missing_collectives,
    make_fact,
    mean_wall_ns,
)
from zprof.causes.cause import Absent, Cause, Observation, Sign, Signal
from zprof.causes.fix import BUCKET_SIZE, WRAP_BLOCKS, Fix, keeps_parameters, measure_sizes
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine
from zprof.step.message_sizes import ResizedMessages
from zprof.step.one_rank import gather_again, is_guess, limit_launch_cost, model_step
from zprof.step.play import PlayedStep
from zprof.step.tasks import Graph
from zprof.step.traffic import is_one_message, measure_exposed_end_ratio, read_step_traffic

#: Minimum share of the bytes of a pass, and of the gradients: there may be a loss, a norm or buffers besides
#: the bucket.
_MIN_BYTES_RATIO, _ONE_BUCKET_RATIO = 0.50, 0.90
_EXPOSED_RATIO = 0.80
_MIN_STEP_RATIO = 0.03
_BLOCKS = (4, 6, 8, 12, 24, 48)
_MIN_STEPS_FOR_HIGH_CONFIDENCE = 3
#: DDP's default: no smaller bucket was requested, and it is a guess that one helps.
_DEFAULT_BUCKET_BYTES = 25 * 1024 * 1024
#: Maximum share of the gain that is lost because kernels that now overlap with messages slow down.
_MAX_SLOWDOWN_LOSS_RATIO = 0.25

_WRAP_BLOCKS = Fix(
    forms={
        Engine.FSDP2: "for block in model.layers:\n    fully_shard(block)\n"
        "fully_shard(model)  # the rest: embeddings, the head",
        Engine.FSDP1: "FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}))",
        Engine.DEEPSPEED: '"zero_optimization": {"stage": 3, "overlap_comm": true,\n'
        '                      "stage3_prefetch_bucket_size": $gather_elements,\n'
        '                      "stage3_max_live_parameters": $live_elements}',
        Engine.REFERENCE: "zero(model, config, units=[Block])",
    },
    settings=WRAP_BLOCKS,
)
_SMALLER_BUCKETS = Fix(
    forms={
        Engine.DDP: "DistributedDataParallel(model, bucket_cap_mb=$bucket_mib)",
        Engine.ZERO1: "DistributedDataParallel(model, bucket_cap_mb=$bucket_mib)",
        Engine.DEEPSPEED: '"zero_optimization": {"overlap_comm": true, "reduce_bucket_size": '
        "$reduce_elements}",
        Engine.REFERENCE: "zero(model, ZeroConfig(overlap_reduce=True), units=[Block])",
    },
    settings=BUCKET_SIZE,
)

CAUSE = Cause(
    id="ZP405",
    name="single_unit",
    meaning="The model is gathered, or its gradients are reduced, as a whole: no compute can run beside it.",
    # each message also waits for its last rank
    terms=("exposed_transfer_ns", "idle_ns", "exposed_wait_ns"),
    produces=(Sign.LATE_GATHERS, Sign.GATHERS_OF_BACKWARD, Sign.FIRST_GATHER),
    outranks_signs=True,
    sentence="the {what}: {article} {kind} of {size:bytes} takes {each:ns} without overlapping compute "
    "(exposed {exposed:ns} {per_step})",
    observed="the model is one unit, gathered before its {blocks} blocks compute: with one unit per "
    "block {step_is} shorter",
    evidence={
        "{kind}_bytes": ("bytes of one {kind}", Unit.BYTES),
        "{end}_{kind}_exposed_ratio": ("exposed share of the {end} {kind} of a step", Unit.RATIO),
        "exposed_transfer_per_step": ("exposed transfer of gathers and reductions {per_step}", Unit.NS),
        "model_blocks": ("blocks of the model", Unit.COUNT),
    },
    fix=_WRAP_BLOCKS,
    disprove="wrap each block and record again: if the first gather and the last reduction are exposed "
    "as long as before, the link is slow",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if one message carries the entire model and no compute can hide it."""
    missing = find_missing_collectives(analysis)
    if missing:
        return missing
    traffic = read_step_traffic(analysis) if analysis.run.world_size > 1 else None
    if traffic is None:
        return None
    gathers_first = traffic.before
    messages = traffic.gathers if gathers_first else traffic.reduces
    min_ratio = _MIN_BYTES_RATIO if gathers_first else _ONE_BUCKET_RATIO
    if messages is None or not is_one_message(messages, min_ratio):
        return None
    exposed_ratio = measure_exposed_end_ratio(messages, first=gathers_first)
    step, wall_ns = model_step(analysis, traffic), mean_wall_ns(analysis)
    wrapped = replace(step, traffic=gather_again(limit_launch_cost(traffic)))
    saving_ns = wrapped.saving_ns([1 / blocks for blocks in _BLOCKS])
    if exposed_ratio <= _EXPOSED_RATIO or saving_ns[1] < _MIN_STEP_RATIO * wall_ns:
        return None
    kind, end = messages.kind.value, "first" if gathers_first else "last"
    is_usual = not gathers_first and messages.rows.ints("bytes").max() <= _DEFAULT_BUCKET_BYTES
    has_steps = count_steps(analysis) >= _MIN_STEPS_FOR_HIGH_CONFIDENCE
    sure = Confidence.HIGH if has_steps else Confidence.MEDIUM
    has_units = gathers_first and not keeps_parameters(analysis)
    return Signal(
        confidence=Confidence.LOW if is_usual or is_guess(saving_ns, wall_ns) else sure,
        words={
            "what": "model is one unit" if gathers_first else "gradients are one bucket",
            "article": "an" if kind.startswith("a") else "a",
            "kind": kind,
            "size": messages.bytes,
            "each": messages.each_ns,
            "exposed": step.exposed_ns,
        },
        facts=[
            make_fact("{kind}_count_per_step", messages.count, kind=kind),
            make_fact("{kind}_bytes", messages.bytes, kind=kind),
            make_fact("{kind}_time_median", messages.each_ns, kind=kind),
            make_fact("{end}_{kind}_exposed_ratio", exposed_ratio, end=end, kind=kind),
            make_fact("exposed_transfer_per_step", step.exposed_ns),
        ],
        saving_ns=saving_ns,
        fix=_WRAP_BLOCKS if has_units else _SMALLER_BUCKETS,
        numbers=measure_sizes(analysis, 1 / _BLOCKS[0]),
    )


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | Absent | None:
    """Return the step with one unit per block; None without blocks or their gathers."""
    sizes = step.sizes
    if not sizes.has_blocks or not sizes.gathers_for_passes:
        return None
    if not sizes.is_one_unit:
        return Absent()
    blocks = len(np.unique(sizes.messages.blocks)) // (2 * sizes.graph.steps)
    return Observation(
        changed=sizes.split(),
        words={"blocks": blocks},
        facts=[make_fact("model_blocks", blocks)],
        lowered_ratio=_MAX_SLOWDOWN_LOSS_RATIO,
        numbers=measure_sizes(step.analysis, 1 / max(1, blocks)),
    )


@CAUSE.edit
def split_model(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step with one unit per block, if the entire model is one unit."""
    sizes = ResizedMessages(analysis, graph)
    return sizes.split() if graph.has_kernels and sizes.is_one_unit else []
