"""ZP405 single_unit: the model is gathered, or its gradients are reduced, in one message that nothing
overlaps.

With one unit the first all_gather of a step has no compute before it, and the last reduction none after it.
Signal: at most two all_gathers per step (forward and backward), the largest of which carries more than 50 %
of the bytes of a pass, and more than 80 % of the first gather's transfer is exposed. If nothing is gathered
(stages 0 to 2), the same applies to the last reduction, if it carries more than 90 % of the gradients: of two
buckets the first is hidden, and the last may contain the last gradients of the backward. Thresholds are from
docs/thresholds.md (SpecForge #566). It must cost 3 % of the step.

Saving: the step with the same model in 4 to 48 units, as many as a model has blocks, from the model of its
passes: T / n instead of T of the first gather and the last reduction is exposed, more if the link is slow.
A single unit stays gathered (FSDP2 never reshards the root). Blocks are gathered again for their backward,
and the saving accounts for that.
"""

import numpy as np
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Groups
from zprof.analysis.per_step import count_steps, has_no_collectives, mean_wall_ns
from zprof.causes.fix import BUCKET_SIZE, WRAP_BLOCKS, Fix, choose_fix, keeps_parameters, measure_sizes
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Engine
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap
from zprof.step.one_rank import StepModel, gather_again, is_guess, model_step
from zprof.step.traffic import Messages, StepTraffic, read_step_traffic

_MAX_MESSAGES = 2
_MIN_BYTES_RATIO = 0.50
#: Minimum share of the gradients: in addition to one bucket there may be a loss, a norm or buffers.
_ONE_BUCKET_RATIO = 0.90
_EXPOSED_RATIO = 0.80
_MIN_STEP_RATIO = 0.03
_BLOCKS = (4, 6, 8, 12, 24, 48)
_MIN_STEPS_FOR_HIGH_CONFIDENCE = 3
#: On a CPU rank launching a large message takes long (82 ms for 49 MiB) because it copies, in proportion to
#: the bytes. A small one takes up to this long if cores are oversubscribed.
_LAUNCH_NS = 1_000_000
#: DDP's default: no smaller bucket was requested, and whether it helps is a guess.
_DEFAULT_BUCKET_BYTES = 25 * 1024 * 1024

UNIT_FIXES = Fix(
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
_BUCKET_FIXES = Fix(
    forms={
        Engine.DDP: "DistributedDataParallel(model, bucket_cap_mb=$bucket_mib)",
        Engine.ZERO1: "DistributedDataParallel(model, bucket_cap_mb=$bucket_mib)",
        Engine.DEEPSPEED: '"zero_optimization": {"overlap_comm": true, "reduce_bucket_size": '
        "$reduce_elements}",
        Engine.REFERENCE: "zero(model, ZeroConfig(overlap_reduce=True), units=[Block])",
    },
    settings=BUCKET_SIZE,
)


def single_unit(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if one message carries the entire model and no compute can hide it."""
    if has_no_collectives(analysis):
        return untested_gap(Cause.SINGLE_UNIT, "no collective was recorded", "record the time window")
    traffic = read_step_traffic(analysis) if analysis.run.world_size > 1 else None
    if traffic is None:
        return None
    messages = traffic.gathers if traffic.before else traffic.reduces
    if (
        messages is None
        or not _is_one_message(messages, _MIN_BYTES_RATIO if traffic.before else _ONE_BUCKET_RATIO)
        or _shown_ratio(messages, first=traffic.before) <= _EXPOSED_RATIO
    ):
        return None
    basis = analysis.time.basis
    step, wall = model_step(analysis, traffic), mean_wall_ns(analysis)
    wrapped = replace(step, traffic=gather_again(_limit_launch_cost(traffic)))
    saving = wrapped.saving_ns([1 / blocks for blocks in _BLOCKS])
    if saving[1] < _MIN_STEP_RATIO * wall:
        return None
    what = "model is one unit" if traffic.before else "gradients are one bucket"
    return make_finding(
        analysis,
        Cause.SINGLE_UNIT,
        sentence=f"the {what}: {_article(messages)} {messages.kind.value} of "
        f"{format_bytes(int(messages.bytes))} takes {format_ns(messages.each_ns)} "
        f"without overlapping compute (exposed {format_ns(step.exposed_ns)} {basis})",
        evidence=_evidence(step, messages, first=traffic.before),
        saving_ns=saving,
        severity=rate_severity(saving[1], wall),
        confidence=_confidence(analysis, saving, messages, is_bucket=not traffic.before),
        fix=choose_fix(
            analysis,
            UNIT_FIXES if traffic.before and not keeps_parameters(analysis) else _BUCKET_FIXES,
            measure_sizes(analysis, 1 / _BLOCKS[0]),
        ),
        disprove="wrap each block and record again: if the first gather and the last reduction are exposed "
        "as long as before, the link is slow",
    )


def _is_one_message(messages: Messages, least_ratio: float) -> bool:
    """Return True if one message carries more than this share of the bytes of a pass."""
    rows = messages.rows
    steps = rows.group_by("rank", "step")
    if float(np.median(steps.sizes)) > _MAX_MESSAGES:
        return False
    unit, sizes = rows.texts("unit"), rows.ints("bytes")
    # a message without a unit is one with the others of its size
    once = Groups(steps.codes, unit.codes, np.where(unit.known, 0, sizes)).first
    passes = Groups(steps.codes[once])
    return float(np.median(passes.max(sizes[once]) / passes.sum(sizes[once]))) > least_ratio


def _shown_ratio(messages: Messages, *, first: bool) -> float:
    """Return the exposed share of the first, or the last, large message of a step."""
    rows, sizes = messages.rows, messages.rows.ints("bytes")
    rows = rows.at(sizes >= sizes.max() * _MIN_BYTES_RATIO)
    steps = rows.group_by("rank", "step")
    order = np.lexsort((rows.ints("start_ns"), steps.codes))
    chosen = rows.at(order[steps.starts if first else steps.starts + steps.sizes - 1])
    return float(np.median(chosen.ints("exposed_transfer_ns") / np.maximum(1, chosen.ints("transfer_ns"))))


def _article(messages: Messages) -> str:
    return "an" if messages.kind.value.startswith("a") else "a"


def _evidence(step: StepModel, messages: Messages, *, first: bool) -> list[Fact]:
    kind, end = messages.kind.value, "first" if first else "last"
    shown = _shown_ratio(messages, first=first)
    return [
        make_fact("{kind}_count_per_step", messages.count, kind=kind),
        make_fact("{kind}_bytes", messages.bytes, kind=kind),
        make_fact("{kind}_time_median", messages.each_ns, kind=kind),
        make_fact("{end}_{kind}_exposed_ratio", shown, end=end, kind=kind),
        make_fact("exposed_transfer_per_step/one_unit", step.exposed_ns),
    ]


def _limit_launch_cost(traffic: StepTraffic) -> StepTraffic:
    """Return the traffic with launch costs that do not depend on the size of a message."""
    gathers, reduces = (
        messages and replace(messages, launch_ns=min(messages.launch_ns, messages.count * _LAUNCH_NS))
        for messages in (traffic.gathers, traffic.reduces)
    )
    return replace(traffic, gathers=gathers, reduces=reduces)


def _confidence(
    analysis: RunAnalysis, saving: tuple[float, float], messages: Messages, *, is_bucket: bool
) -> Confidence:
    usual = is_bucket and messages.rows.ints("bytes").max() <= _DEFAULT_BUCKET_BYTES
    if usual or is_guess(saving, mean_wall_ns(analysis)):
        return Confidence.LOW
    return Confidence.HIGH if count_steps(analysis) >= _MIN_STEPS_FOR_HIGH_CONFIDENCE else Confidence.MEDIUM
