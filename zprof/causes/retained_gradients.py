"""ZP207: gradients are needlessly alive during a forward pass.

Three cases, distinguished by time and amount:

- **in the first forward of a step**: the last step's gradients were not freed. ``zero_grad`` comes after the
  forward pass, or keeps the memory (``set_to_none=False``). The source is the timeline; without one, the
  forward pass's peak, which looks the same with accumulation: low confidence. Also low for engines that keep
  full gradients in memory allocated once.
- **unsharded between micro-batches in stages 2 and 3**: a forward pass holds at least 1.25 times the rank's
share.
  Accumulated shards are one share; ``no_sync`` keeps everything until the last micro-batch.
- the same, **growing** from one micro-batch's forward to the next (replicas that are never reduced).

DDP's gradient views of its buckets are exempt: their memory remains. A forward pass must hold at least half
of the step's gradients, so a few late gradients are not reported.

The upper bound of the saving is limited by phases that need gradients (the optimizer's). How much the
gradients of the backward pass then grow is unknown, so the lower bound is 0.
"""

from collections.abc import Mapping

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact, make_untested
from zprof.analysis.memory.largest_rank import (
    LargestRank,
    are_gradients_kept,
    compute_state_shares,
    find_largest_rank,
    is_worth,
    limit_confidence,
    read_forward_gradients,
)
from zprof.causes.cause import Cause, Need, Signal, make_memory_signal
from zprof.causes.fix import ANY, Fix
from zprof.model.findings import Confidence
from zprof.model.quantities import Unit
from zprof.model.tenants import Tenant
from zprof.model.training import Engine, Framework, Phase

_WHOLE_RATIO = 1.25
_GRADIENTS = Tenant.GRADIENTS

#: Engines that keep full gradients in memory allocated once, which the user cannot free.
_ENGINES_THAT_KEEP = {
    "reference": "ZeroConfig(stage=2): stages 0 and 1 keep full gradients in memory allocated once",
}
_ZERO_GRAD = "optimizer.zero_grad(set_to_none=True)  # right after optimizer.step()"
_REDUCE_EACH = Fix(
    forms={
        Engine.FSDP2: "model.set_requires_gradient_sync(True)  # and set_requires_all_reduce(True) "
        "with replicas\n"
        "only if memory is short: it reduces in each micro-batch, which ZP411 prices; or take fewer of them",
        Engine.FSDP1: "no model.no_sync() around micro-batches: gradients are then reduced in each of them",
        Engine.DEEPSPEED: "do not use engine.no_sync(): stages 2 and 3 reduce in every micro-batch",
        Engine.REFERENCE: "ZeroConfig(reduce_each_micro_batch=None)",
    },
    settings={
        (
            Framework.TRANSFORMERS,
            ANY,
        ): 'TrainingArguments(accelerator_config={"gradient_accumulation_kwargs":\n'
        '    {"sync_each_batch": True}})',
        (
            Framework.ACCELERATE,
            ANY,
        ): "GradientAccumulationPlugin(num_steps=$micro_batches, sync_each_batch=True)",
    },
)

CAUSE = Cause(
    id="ZP207",
    name="retained_gradients",
    meaning="Gradients are alive while a forward runs, and need not be.",
    needs=(Need.MEMORY,),
    sentence="{held:bytes} of the last step's gradients are alive on rank {rank} while the forward runs",
    evidence={
        "gradients_in_forward": ("gradients alive in a forward", Unit.BYTES),
        "gradients_in_forward_excess": ("in excess of the gradients needed then", Unit.BYTES),
    },
    disprove="gradients accumulated over micro-batches must be alive in a forward: count "
    "the backward passes per optimizer step",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if gradients are needlessly alive in a forward pass."""
    largest = find_largest_rank(analysis)
    if largest is None or not largest.phases:
        return None  # recordings have phases; imported files have none, and none can be added
    forwards = read_forward_gradients(analysis, largest)
    if forwards is None:
        return make_untested("no_forward")
    shares = compute_state_shares(analysis.training) or {}
    share = shares.get(_GRADIENTS) if (analysis.training.shard_ranks or 1) > 1 else None
    if share is not None and forwards.max_bytes >= _WHOLE_RATIO * share:
        grows = forwards.grows_over_micro_batches
        how = "grow from micro-batch to micro-batch" if grows else "are kept unsharded between micro-batches"
        return _make_signal(
            largest,
            forwards.max_bytes,
            share,
            Confidence.HIGH if forwards.in_steps else Confidence.MEDIUM,
            _REDUCE_EACH,
            f"gradients {how}: a forward on rank {{rank}} holds {{held:bytes}}, but its share in stage "
            f"{analysis.training.stage} is {{share:bytes}}",
        )
    if not are_gradients_kept(analysis, largest, forwards):
        return None
    engine = analysis.training.engine.lower()
    is_sure = forwards.in_steps and engine not in _ENGINES_THAT_KEEP
    confidence = Confidence.HIGH if is_sure else Confidence.LOW
    fix = _ENGINES_THAT_KEEP.get(engine, _ZERO_GRAD)
    return _make_signal(largest, forwards.first_bytes, 0, confidence, fix)


def _make_signal(
    largest: LargestRank,
    held_bytes: int,
    share_bytes: int,
    confidence: Confidence,
    fix: Fix | str,
    sentence: str = "",
) -> Signal | None:
    """Return the signal of gradients alive in a forward pass that needs ``share_bytes`` of them."""
    excess_bytes = held_bytes - share_bytes

    def removable(phase: str, held: Mapping[Tenant, int]) -> float:
        if phase in (Phase.OPTIMIZER, Phase.OTHER):
            return 0.0
        return float(min(excess_bytes, max(0, held.get(_GRADIENTS, 0) - share_bytes)))

    high = largest.estimate_peak_reduction(removable)
    if not is_worth(excess_bytes, largest) or not is_worth(high, largest):
        return None
    return make_memory_signal(
        largest,
        confidence=limit_confidence(confidence, largest, largest.uncertain_ratio(_GRADIENTS)),
        facts=[
            make_fact("gradients_in_forward", held_bytes, rank=largest.rank),
            make_fact("gradients_in_forward_excess", excess_bytes, rank=largest.rank),
            make_fact("gradients_at_peak", largest.of(_GRADIENTS), rank=largest.rank),
        ],
        saving_bytes=(0, high),
        words={"held": held_bytes, "share": share_bytes},
        sentence=sentence,
        fix=fix,
    )
