"""ZP411 accumulation_syncs: gradients are reduced in every micro-batch instead of once per step.

With k micro-batches per step, gradients can be summed on each rank and reduced once, with the last one.
Signal, from counts and bytes of one rank: reductions of gradients in more than one micro-batch before one
update of the parameters, each of at least half of the last one's bytes. The fix removes the reductions of all
but the last micro-batch. Backwards with an update between them accumulate nothing: a discriminator may be
updated several times before its generator.

Threshold: their exposed time is more than 3 % of the step (docs/thresholds.md; cosmos-framework #162 saw 22 s
become 89 s). If less is exposed, and the step moves more than the ZeRO formula predicts or no formula is
known, it is a note: a slower link, or less compute, would expose them. Sharded gradients (stages 2 and 3) can
wait for the last micro-batch only if they stay unsharded until then. That costs the memory of all gradients,
which the finding mentions.
"""

import numpy as np
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups
from zprof.analysis.per_step import can_play_kernels, mean_wall_ns
from zprof.analysis.time.program_lines import locate_backward
from zprof.causes.fix import ANY, Fix, choose_fix
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Finding, Severity
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Engine, Framework
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity
from zprof.rules.volume.needless_collectives import (
    CollectiveCost,
    price_collectives,
    rate_confidence,
    unknown_micro_batches_gap,
)
from zprof.rules.volume.regathers import PROPOSED_RATIO

#: Minimum exposed share of the step.
_MIN_STEP_RATIO = 0.03
#: Minimum size relative to the last micro-batch's reduction: less is something else (a norm per micro-batch).
_SAME_RATIO = 0.5
_UPDATE = ("rank", "step", "updates")

_NO_SYNC = (
    "for i, batch in enumerate(micro_batches):\n"
    "    with nullcontext() if i == len(micro_batches) - 1 else model.no_sync():\n"
    "        loss(model(batch)).backward()"
)
_FIXES = Fix(
    forms={
        Engine.FSDP2: "for i, batch in enumerate(micro_batches):\n"
        "    model.set_requires_gradient_sync(i == len(micro_batches) - 1)\n"
        "    loss(model(batch)).backward()\n"
        "with replicas (HSDP) also set_requires_all_reduce",
        Engine.FSDP1: _NO_SYNC,
        Engine.DDP: _NO_SYNC,
        Engine.ZERO1: _NO_SYNC,
        Engine.DEEPSPEED: 'stages 0 and 1 reduce once, at "gradient_accumulation_steps"; stages 2 and '
        "3 reduce in\n"
        "each micro-batch: use larger micro-batches, or stage 1",
        Engine.REFERENCE: "ZeroConfig(micro_batches=$micro_batches, reduce_each_micro_batch=False)",
    },
    settings={
        (
            Framework.TRANSFORMERS,
            ANY,
        ): 'TrainingArguments(accelerator_config={"gradient_accumulation_kwargs":\n'
        '    {"sync_each_batch": False}})',
        (Framework.ACCELERATE, ANY): "Accelerator(gradient_accumulation_steps=$micro_batches)\n"
        "with accelerator.accumulate(model):  # around each micro-batch; sync_each_batch=False",
        (
            Framework.LIGHTNING,
            ANY,
        ): "Trainer(accumulate_grad_batches=$micro_batches)  # instead of a loop of one's own",
    },
)


def accumulation_syncs(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if gradients are reduced once per micro-batch, and it costs time."""
    missing = unknown_micro_batches_gap(analysis, Cause.ACCUMULATION_SYNCS)
    if missing:
        return missing
    early, micro_batches = select_early_reductions(analysis.passes)
    if not len(early):
        return None
    price = price_collectives(analysis, early)
    worth = PROPOSED_RATIO if can_play_kernels(analysis) else _MIN_STEP_RATIO
    if price.exposed_ns > worth * mean_wall_ns(analysis):
        return _finding(analysis, price, micro_batches)
    if analysis.volume is not None and not analysis.volume.exceeds_scheme:
        return None
    hidden = _finding(analysis, price, micro_batches)
    return replace(
        hidden,
        saving_ns=(0, int(price.exposed_ns)),
        severity=Severity.LOW,
        confidence=Confidence.LOW,
        sentence=f"{hidden.sentence}; most of it is hidden by compute",
    )


def select_early_reductions(passes: Columns) -> tuple[Columns, int]:
    """Return the reductions before an update's last micro-batch, and how many of its micro-batches reduce."""
    reduces = ~passes.texts("kind").equals(CollectiveKind.ALL_GATHER.value)
    rows = passes.at(reduces & passes.known("micro_batch"))
    update = Groups(*(rows.ints(name) for name in _UPDATE)).codes
    each = Groups(update, rows.ints("micro_batch"))  # the micro-batches of each update, in order
    updates, micro_batch = Groups(update[each.first]), rows.ints("micro_batch")[each.first]
    reduced_bytes = each.sum(rows.ints("bytes"))
    last = updates.starts + updates.sizes - 1
    counts = reduced_bytes >= _SAME_RATIO * reduced_bytes[last][updates.codes]
    is_early = counts & (micro_batch < updates.max(np.where(counts, micro_batch, -1))[updates.codes])
    return rows.at(is_early[each.codes]), int(updates.sum(counts.astype(np.int64)).max(initial=0))


def _finding(analysis: RunAnalysis, price: CollectiveCost, micro_batches: int) -> Finding:
    basis = analysis.time.basis
    wall = mean_wall_ns(analysis)
    return make_finding(
        analysis,
        Cause.ACCUMULATION_SYNCS,
        sentence=f"gradients are reduced in each of {micro_batches} micro-batches instead of once {basis}: "
        f"{price.count:.0f} needless reductions of {price.size} "
        f"(exposed {format_ns(price.exposed_ns)} of {format_ns(price.transfer_ns)} {basis})",
        evidence=[
            make_fact("reducing_micro_batches_per_step", micro_batches),
            make_fact("early_reductions_per_step", price.count),
            *price.size_evidence,
            make_fact("transfer_per_step", price.transfer_ns),
            make_fact("exposed_time_per_step", price.exposed_ns),
            *_volume_evidence(analysis),
        ],
        saving_ns=(0.0, price.lost_ns),
        severity=rate_severity(price.exposed_ns, wall),
        confidence=rate_confidence(analysis, price),
        fix=choose_fix(analysis, _FIXES, {"micro_batches": micro_batches})
        + "\n(if gradients are sharded, this keeps them unsharded between micro-batches)",
        disprove="reduce in the last micro-batch only and record again: if the step takes as long, the "
        "reductions were not the cause",
        location=locate_backward(analysis.source),
    )


def _volume_evidence(analysis: RunAnalysis) -> list[Fact]:
    volume = analysis.volume
    if volume is None:
        return []
    return [
        make_fact("moved_bytes_per_step", volume.seen_bytes),
        make_fact("formula_bytes_per_step", volume.expected_bytes),
    ]
