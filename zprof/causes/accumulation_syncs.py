"""ZP411: gradients are reduced in every micro-batch instead of once per step.

With k micro-batches per step, gradients can be summed on each rank and reduced once, with the last one.
Signal, from counts and bytes of one rank: reductions of gradients in more than one micro-batch before one
update of the parameters, each of at least half of the last one's bytes. The fix removes the reductions of all
but the last micro-batch. Backward passes with an update between them accumulate nothing: a discriminator may
be updated several times before its generator.

Threshold: their exposed time is more than 3 % of the step (docs/thresholds.md; cosmos-framework #162 saw 22 s
become 89 s). If less is exposed, and the step moves more than the ZeRO formula predicts or no formula is
known, it is a note: a slower link, or less compute, would expose them. Sharded gradients (stages 2 and 3) can
wait for the last micro-batch only if they stay unsharded until then. That costs the memory of all gradients,
which the finding mentions.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, Untested, can_play_kernels, make_fact, mean_wall_ns
from zprof.analysis.time.needless_collectives import (
    MIN_PLAYED_RATIO,
    find_unknown_micro_batches,
    price_collectives,
    rate_cost,
    select_early_reductions,
)
from zprof.analysis.time.program_lines import locate_backward
from zprof.causes.cause import Cause, Proof, Signal, rate_severity
from zprof.causes.fix import ANY, Fix, choose_fix
from zprof.model.findings import Confidence, Finding, Severity
from zprof.model.quantities import Unit
from zprof.model.training import Engine, Framework
from zprof.step import edits
from zprof.step.needless_bytes import drop_collectives
from zprof.step.tasks import Graph

#: Minimum exposed share of the step.
_MIN_STEP_RATIO = 0.03

_NO_SYNC = (
    "for i, batch in enumerate(micro_batches):\n"
    "    with nullcontext() if i == len(micro_batches) - 1 else model.no_sync():\n"
    "        loss(model(batch)).backward()"
)
_FIX = Fix(
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
_COSTS_MEMORY = "\n(if gradients are sharded, this keeps them unsharded between micro-batches)"

CAUSE = Cause(
    id="ZP411",
    name="accumulation_syncs",
    meaning="Gradients are reduced in every micro-batch, although the step needs their sum only once.",
    terms=("exposed_transfer_ns", "idle_ns", "exposed_wait_ns", "compute_ns"),
    proof=Proof.COUNTS,
    is_priced_by_step=True,
    amounts=("early_reductions_per_step",),
    sentence="gradients are reduced in each of {micro_batches} micro-batches instead of once {per_step}: "
    "{count:.0f} needless reductions of {size} (exposed {exposed:ns} of {transfer:ns} {per_step}){hidden}",
    evidence={
        "reducing_micro_batches_per_step": ("micro-batches that reduce {per_step}", Unit.COUNT),
        "early_reductions_per_step": ("reductions before the last micro-batch {per_step}", Unit.COUNT),
        "moved_bytes_per_step": ("moved {per_step}", Unit.BYTES),
        "formula_bytes_per_step": ("predicted by the ZeRO formula", Unit.BYTES),
    },
    fix=_FIX,
    disprove="reduce in the last micro-batch only and record again: if the step takes as long, the "
    "reductions were not the cause",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if gradients are reduced once per micro-batch, and it costs time."""
    missing = find_unknown_micro_batches(analysis)
    if missing:
        return missing
    early, micro_batches = select_early_reductions(analysis.passes)
    if not len(early):
        return None
    cost, volume, wall_ns = price_collectives(analysis, early), analysis.volume, mean_wall_ns(analysis)
    min_ratio = MIN_PLAYED_RATIO if can_play_kernels(analysis) else _MIN_STEP_RATIO
    is_hidden = cost.exposed_ns <= min_ratio * wall_ns
    if is_hidden and volume is not None and not volume.exceeds_scheme:
        return None
    moved = (
        []
        if volume is None
        else [
            make_fact("moved_bytes_per_step", volume.seen_bytes),
            make_fact("formula_bytes_per_step", volume.expected_bytes),
        ]
    )
    return Signal(
        confidence=Confidence.LOW if is_hidden else rate_cost(analysis, cost),
        words={
            "micro_batches": micro_batches,
            "count": cost.count,
            "size": cost.size,
            "exposed": cost.exposed_ns,
            "transfer": cost.transfer_ns,
            "hidden": "; most of it is hidden by compute" if is_hidden else "",
        },
        facts=[
            make_fact("reducing_micro_batches_per_step", micro_batches),
            make_fact("early_reductions_per_step", cost.count),
            *cost.size_facts,
            make_fact("transfer_per_step", cost.transfer_ns),
            make_fact("exposed_time_per_step", cost.exposed_ns),
            *moved,
        ],
        lost_ns=cost.exposed_ns if is_hidden else cost.lost_ns,
        severity=Severity.LOW if is_hidden else rate_severity(cost.exposed_ns, wall_ns),
        fix=choose_fix(analysis, _FIX, {"micro_batches": micro_batches}) + _COSTS_MEMORY,
        locate=lambda: locate_backward(analysis.source),
    )


@CAUSE.edit
def reduce_once(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Drop early reductions. Unreduced gradients are accumulated instead, which takes compute time.

    Accumulating reads and writes about as much as the copies into and out of the reduction's buffer. So these
    copies stay in the first variant.
    """
    early, _ = select_early_reductions(analysis.passes)
    rows = early.ints("row").tolist()
    kept = edits.drop_collectives(graph, frozenset(rows), keeps_copies=True)
    return [kept, *drop_collectives(graph, rows)]
