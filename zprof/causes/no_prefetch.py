"""ZP401: all_gathers start only when their result is already needed.

An all_gather of unit k+1 can overlap with the compute of unit k. :mod:`zprof.step.gathers` finds late gathers
and their cost.

On a CPU rank, FSDP waits for an all_gather in the call that launches it, prefetched or not: FSDP1 calls
``dist.all_gather`` (``FlatParamHandle._all_gather_flat_param``), and FSDP2's streams are a device's
(``FSDPParamGroup.unshard``). There a finding is a note with a saving from 0, because no option, or only a
private switch, makes these calls asynchronous.

Thresholds: 30 % of the all_gathers' transfer exposed (without prefetch all of it is; with it, simulated on a
network that is barely fast enough, 7 %). The others are from simulated jobs, where 50 % and 115 % bracketed
the true saving.
"""

from collections.abc import Sequence

import numpy as np

from zprof.analysis.analysis import (
    RunAnalysis,
    Untested,
    count_steps,
    find_missing_collectives,
    make_fact,
    make_untested,
    mean_wall_ns,
    select_state_rows,
    select_steady_rows,
)
from zprof.analysis.time.decomposition import select_kind
from zprof.causes.cause import Cause, Observation, Sign, Signal
from zprof.causes.fix import Fix
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence, Finding
from zprof.model.plan import Change
from zprof.model.quantities import Unit
from zprof.model.training import Engine, Framework
from zprof.step import edits
from zprof.step.gathers import LateGathers, are_gathers_late, measure_late_gathers, select_gathers
from zprof.step.play import PlayedStep
from zprof.step.tasks import Graph

#: With a smaller exposed share of their transfer, all_gathers are prefetched well enough.
_EXPOSED_RATIO = 0.30
#: A saving below this share of the step is not worth a finding.
_MIN_STEP_RATIO = 0.03
#: Minimum share of the hideable time that is saved: gathers take cores and memory bandwidth from overlapping
#: compute.
_MIN_SAVING_RATIO = 0.5
#: With fewer all_gathers per step there is no other unit to prefetch.
_MIN_GATHERS = 3
_MIN_STEPS_FOR_HIGH_CONFIDENCE = 3
_SURE_LATE_RATIO = 0.5
#: With a smaller share of late all_gathers prefetch is on, and something else delays some of them.
_LATE_RATIO = 1 / 3

_FIX = Fix(
    forms={
        Engine.FSDP2: "for block, following in zip(blocks, blocks[1:]):\n"
        "    block.set_modules_to_forward_prefetch([following])\n"
        "    following.set_modules_to_backward_prefetch([block])",
        Engine.FSDP1: "FullyShardedDataParallel(model, forward_prefetch=True,\n"
        "                         backward_prefetch=BackwardPrefetch.BACKWARD_PRE)",
        Engine.DEEPSPEED: '"zero_optimization": {"stage": 3, "overlap_comm": true,\n'
        '                      "stage3_prefetch_bucket_size": $gather_elements}',
        Engine.REFERENCE: "ZeroConfig(stage=3, forward_prefetch=1, backward_prefetch=1)",
    },
    settings={
        (Framework.TRANSFORMERS, Engine.FSDP1): 'TrainingArguments(fsdp_config={"forward_prefetch": True,\n'
        '                               "backward_prefetch": "backward_pre"})',
        (Framework.ACCELERATE, Engine.FSDP1): "FullyShardedDataParallelPlugin(forward_prefetch=True,\n"
        '                               backward_prefetch="BACKWARD_PRE")',
        (Framework.LIGHTNING, Engine.FSDP1): "FSDPStrategy(forward_prefetch=True,\n"
        "             backward_prefetch=BackwardPrefetch.BACKWARD_PRE)",
    },
)

CAUSE = Cause(
    id="ZP401",
    name="no_prefetch",
    meaning="all_gathers are launched when their result is already needed, so nothing hides them.",
    terms=("exposed_transfer_ns", "idle_ns", "exposed_wait_ns"),
    sign=Sign.LATE_GATHERS,
    produces=(Sign.GATHERS_OF_BACKWARD,),
    is_decisive=True,
    sentence="all_gathers start only after the compute that could have hidden them "
    "(exposed {exposed:ns} of {transfer:ns} {per_step})",
    observed="all_gathers start only when the preceding compute is done: "
    "if launched one unit earlier, {step_is} shorter",
    evidence={
        "late_gathers_ratio": ("all_gathers that start after the compute that could hide them", Unit.COUNT),
        "gather_transfer_per_step": ("all_gather transfer {per_step}", Unit.NS),
        "exposed_part": ("exposed all_gather transfer {per_step}", Unit.NS),
        "queued_per_step": ("blocked while queued behind others {per_step}", Unit.NS),
        "compute_before_idle_link_per_step": (
            "compute before them while the link is idle, {per_step}",
            Unit.NS,
        ),
        "hideable_per_step": ("transfer that this compute could hide, {per_step}", Unit.NS),
    },
    fix=_FIX,
    disprove="turn prefetch on and record again: if the exposed transfer of all_gathers remains, "
    "late launches are not the cause",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if all_gathers are exposed because they start late."""
    missing = find_missing_collectives(analysis)
    if missing:
        return missing
    gathers = select_kind(
        select_state_rows(analysis, select_steady_rows(analysis)), CollectiveKind.ALL_GATHER
    )
    gathers = gathers.at(gathers.ints("group_size") != 1)
    if not len(gathers) or np.median(gathers.group_by("rank", "step").sizes) < _MIN_GATHERS:
        return None
    if any(rank.upper_bound for rank in analysis.time.per_rank):
        return make_untested("no_waits_recorded")
    cost = measure_late_gathers(analysis, gathers)
    is_exposed = cost.exposed_ns >= _EXPOSED_RATIO * cost.transfer_ns
    if not is_exposed or cost.hideable_ns < _MIN_STEP_RATIO * mean_wall_ns(analysis):
        return None
    # if ranks are missing, the exposed time may be waiting for them, which earlier launches do not shorten
    is_uncertain = cost.bound or _waits_at_once(analysis)
    low_ns = 0.0 if is_uncertain else _MIN_SAVING_RATIO * cost.hideable_ns
    return Signal(
        confidence=_rate_confidence(analysis, cost),
        words={"exposed": cost.exposed_ns, "transfer": cost.transfer_ns},
        facts=[
            make_fact("late_gathers_ratio", cost.late),
            make_fact("gathers_examined", cost.count),
            make_fact("gather_transfer_per_step", cost.transfer_ns),
            make_fact("exposed_part", cost.exposed_ns),
            make_fact("queued_per_step", cost.queued_ns),
            make_fact("compute_before_idle_link_per_step", cost.free_ns),
            make_fact("hideable_per_step", cost.hideable_ns),
        ],
        saving_ns=(low_ns, max(cost.hideable_ns, cost.max_ns)),
    )


def _rate_confidence(analysis: RunAnalysis, cost: LateGathers) -> Confidence:
    if _waits_at_once(analysis) or cost.late < _LATE_RATIO * cost.count:
        return Confidence.LOW
    has_enough_steps = count_steps(analysis) >= _MIN_STEPS_FOR_HIGH_CONFIDENCE
    sure = has_enough_steps and cost.launched and not cost.bound
    return Confidence.HIGH if sure and cost.late >= _SURE_LATE_RATIO * cost.count else Confidence.MEDIUM


def _waits_at_once(analysis: RunAnalysis) -> bool:
    """Return True if the engine blocks the host for every all_gather, regardless of when it is launched."""
    return analysis.run.device == "cpu" and analysis.training.engine.lower() in ("fsdp1", "fsdp2")


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return that gathers are launched late; the step with earlier launches shows the cost."""
    return Observation() if are_gathers_late(step) else None


@CAUSE.refute
def are_launched_ahead(step: PlayedStep) -> bool:
    """Return True if the measured step shows that gathers are launched before they are needed."""
    return step.has_kernels and are_gathers_late(step) is False


@CAUSE.edit
def launch_earlier(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step with gathers launched one unit ahead."""
    return [edits.launch_earlier(graph, select_gathers(analysis))]


@CAUSE.reschedule
def prefetch(analysis: RunAnalysis, finding: Finding) -> Sequence[Change]:
    """Return that the engine would launch the gather of the next unit."""
    return [Change(prefetch=1)]
