"""ZP207 retained_gradients: gradients are needlessly alive while a forward runs.

Three cases, distinguished by when and how much:

- **in the first forward of a step**: the last step's gradients were not freed. ``zero_grad`` comes after
  the forward, or keeps the memory (``set_to_none=False``). From the timeline; if there is none, from the
  forward's peak, which looks the same with accumulation: low confidence. Also low for engines that keep full
  gradients in memory allocated once.
- **unsharded between micro-batches in stages 2 and 3**: a forward holds at least 1.25 times the rank's share.
  Accumulated shards are one share; ``no_sync`` keeps everything until the last micro-batch.
- the same, **growing** from one micro-batch's forward to the next (replicas that are never reduced).

DDP's gradient views of its buckets are exempt: their memory remains. A forward must hold at least half of the
step's gradients, so that a few late ones are not reported.

The upper bound of the saving is limited by phases that need gradients (the optimizer's). How far the
backward's own gradients then rise is unknown, so the lower bound is 0.
"""

import bisect
import itertools
from collections.abc import Mapping

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.fix import ANY, Fix, choose_fix
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap
from zprof.model.memory import MemoryTimeline
from zprof.model.tenants import Tenant
from zprof.model.training import Engine, Framework, Phase
from zprof.rules.evidence import make_fact
from zprof.rules.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
    make_memory_finding,
)
from zprof.rules.rule import untested_gap


class ForwardGradients(Struct, frozen=True, kw_only=True):
    """Gradient bytes in the forwards of each step, in order; if not ``in_steps``, one value for all steps."""

    levels: tuple[tuple[int, ...], ...]
    in_steps: bool

    @property
    def first_bytes(self) -> int:
        """Gradient bytes alive at the first forward of every step: the minimum over the steps."""
        return min(levels[0] for levels in self.levels)

    @property
    def max_bytes(self) -> int:
        """Maximum gradient bytes in any forward."""
        return max(max(levels) for levels in self.levels)

    @property
    def grows_over_micro_batches(self) -> bool:
        """True if in some step each forward, from the third, holds more than the previous one."""
        return any(
            len(levels) > 2 and all(low < high for low, high in itertools.pairwise(levels[1:]))
            for levels in self.levels
        )


def read_forward_gradients(analysis: RunAnalysis, big: LargestRank) -> ForwardGradients | None:
    """Return the forwards of the largest rank, None if no forward was identified."""
    timeline = next((t for t in analysis.memory.timelines if t.rank == big.rank), None)
    steps = _levels_by_step(timeline) if timeline else ()
    if steps:
        return ForwardGradients(levels=steps, in_steps=True)
    held = [
        phase.tenants.get(Tenant.GRADIENTS, 0) for phase in big.phases if phase.phase == Phase.FORWARD.value
    ]
    return ForwardGradients(levels=((max(held),),), in_steps=False) if held else None


def _levels_by_step(timeline: MemoryTimeline) -> tuple[tuple[int, ...], ...]:
    begins = [time_ns for time_ns, _ in timeline.steps]
    steps: dict[int, list[int]] = {}
    ends = [time_ns for time_ns, _ in timeline.phases[1:]]
    for (begin_ns, name), end_ns in itertools.zip_longest(timeline.phases, ends):
        step = bisect.bisect_right(begins, begin_ns) - 1
        if name == Phase.FORWARD.value and step >= 0:
            # The minimum of the gradients in [begin, end): the bytes alive throughout.
            gradients = timeline.tenants.get(Tenant.GRADIENTS.value, ())
            first = bisect.bisect_left(timeline.time_ns, begin_ns)
            last = len(timeline.time_ns) if end_ns is None else bisect.bisect_left(timeline.time_ns, end_ns)
            level = min(gradients[first:last], default=None)
            if level is not None:
                steps.setdefault(step, []).append(level)
    return tuple(tuple(levels) for _, levels in sorted(steps.items()))


_WHOLE_RATIO = 1.25
_HALF_RATIO = 0.5
_GRADIENTS = Tenant.GRADIENTS

#: Engines that keep full gradients in memory allocated once, which the user cannot free.
_ENGINES_THAT_KEEP = {
    "reference": "ZeroConfig(stage=2): stages 0 and 1 keep full gradients in memory allocated once",
}
_ZERO_GRAD = "optimizer.zero_grad(set_to_none=True)  # right after optimizer.step()"
_REDUCE_FIXES = Fix(
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


class _Retained(Struct, frozen=True, kw_only=True):
    """Gradients alive in a forward, and their excess."""

    held_bytes: int
    excess_bytes: int
    sentence: str
    fix: str
    confidence: Confidence


def retained_gradients(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if gradients are needlessly alive in a forward."""
    big = find_largest_rank(analysis)
    if big is None or not big.phases:
        return None  # a recording has phases; an imported file has none, and nobody can add them
    forwards = read_forward_gradients(analysis, big)
    if forwards is None:
        return untested_gap(
            Cause.RETAINED_GRADIENTS,
            "no forward was identified: the recorder was not given the model, or the entire model is "
            "compiled",
            "record with model=model, and once without torch.compile",
        )
    retained = _find_kept_whole(analysis, big, forwards) or _find_not_dropped(analysis, big, forwards)
    if retained is None or not is_worth(retained.excess_bytes, big):
        return None
    high = _bound_saving(big, retained)
    return (
        make_memory_finding(
            analysis,
            Cause.RETAINED_GRADIENTS,
            big,
            sentence=retained.sentence,
            evidence=[
                make_fact("gradients_in_forward", retained.held_bytes, rank=big.rank),
                make_fact("gradients_in_forward_excess", retained.excess_bytes, rank=big.rank),
                make_fact("gradients_at_peak", big.of(_GRADIENTS), rank=big.rank),
            ],
            saving_bytes=(0, high),
            confidence=limit_confidence(retained.confidence, big, big.uncertain_ratio(_GRADIENTS)),
            fix=retained.fix,
            disprove="gradients accumulated over micro-batches must be alive in a forward: count "
            "the backward passes per optimizer step",
        )
        if is_worth(high, big)
        else None
    )


def _find_kept_whole(analysis: RunAnalysis, big: LargestRank, forwards: ForwardGradients) -> _Retained | None:
    share = _gradient_share(analysis)
    if share is None or forwards.max_bytes < _WHOLE_RATIO * share:
        return None
    grows = forwards.grows_over_micro_batches
    how = "grow from micro-batch to micro-batch" if grows else "are kept unsharded between micro-batches"
    return _Retained(
        held_bytes=forwards.max_bytes,
        excess_bytes=forwards.max_bytes - share,
        sentence=f"gradients {how}: a forward on rank {big.rank} holds {format_bytes(forwards.max_bytes)}, "
        f"but its share in stage {analysis.training.stage} is {format_bytes(share)}",
        fix=choose_fix(analysis, _REDUCE_FIXES),
        confidence=Confidence.HIGH if forwards.in_steps else Confidence.MEDIUM,
    )


def _gradient_share(analysis: RunAnalysis) -> int | None:
    """Return the rank's share of the gradients in a stage that shards them, None if it does not."""
    facts = analysis.training
    if facts.stage not in (2, 3) or not facts.parameters or not facts.gradient_bytes or not facts.shard_ranks:
        return None
    elements = facts.parameters + facts.padding_elements
    return -(-elements * facts.gradient_bytes // facts.shard_ranks) if facts.shard_ranks > 1 else None


def _find_not_dropped(
    analysis: RunAnalysis, big: LargestRank, forwards: ForwardGradients
) -> _Retained | None:
    held = forwards.first_bytes
    # True for DeepSpeed's ZeRO: a rank's part of the gradients has memory that is allocated once.
    # Whether DDP's gradients are views of its buckets, which remain even if ``.grad`` is reset.
    if (analysis.training.engine == "ddp" and big.of(Tenant.COMMUNICATION_BUFFERS) < _HALF_RATIO * held) or (
        analysis.engine is Engine.DEEPSPEED and bool(analysis.training.stage)
    ):
        return None
    states = big.memory.state_bytes or {}
    if held < max(1, _HALF_RATIO * states.get(_GRADIENTS, 0)):
        return None
    if not forwards.in_steps and analysis.training.micro_batches > 1:
        return None  # accumulated, as intended
    engine = analysis.training.engine.lower()
    is_sure = forwards.in_steps and engine not in _ENGINES_THAT_KEEP
    return _Retained(
        held_bytes=held,
        excess_bytes=held,
        sentence=f"{format_bytes(held)} of the last step's gradients are alive on rank {big.rank} while the "
        "forward runs",
        fix=_ENGINES_THAT_KEEP.get(engine, _ZERO_GRAD),
        confidence=Confidence.HIGH if is_sure else Confidence.LOW,
    )


def _bound_saving(big: LargestRank, retained: _Retained) -> float:
    kept = retained.held_bytes - retained.excess_bytes

    def removable(phase: str, held: Mapping[Tenant, int]) -> float:
        if phase in (Phase.OPTIMIZER, Phase.OTHER):
            return 0.0
        return float(min(retained.excess_bytes, max(0, held.get(_GRADIENTS, 0) - kept)))

    return big.estimate_peak_reduction(removable)
