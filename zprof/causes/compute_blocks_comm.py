"""ZP407: all_gathers that are ready to start are blocked by kernels of the computing unit.

A gather launched ahead does not depend on the unit that is computing. If kernels fill the device, or
both share a hardware queue, it starts only when one of that unit's kernels ends
(:mod:`zprof.analysis.time.decomposition`). Blocked time counts from 50 us, limited by the exposed
time of the gather:

    cost = sum of min(blocked, exposed)          at most    1.1 * cost and the sum of blocked

Reported above 2 % of the step, both thresholds from docs/thresholds.md. Not applicable to CPU ranks: there a
collective runs on its own thread, and kernels do not block it.
"""

from collections.abc import Sequence

import numpy as np

from zprof.analysis.analysis import (
    RunAnalysis,
    Untested,
    find_missing_collectives,
    make_fact,
    make_untested,
    mean_per_step,
    mean_wall_ns,
    select_state_rows,
    select_steady_rows,
)
from zprof.analysis.time.decomposition import select_kind
from zprof.causes.cause import MIN_GAIN_RATIO, Cause, Need, Observation, Sign, Signal, rate_severity
from zprof.causes.fix import Fix
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine
from zprof.step import edits
from zprof.step.gathers import select_opening_gathers
from zprof.step.play import PlayedStep
from zprof.step.tasks import NONE, Graph

_MIN_STEP_RATIO = 0.02
_BLOCKED_NS = 50_000
#: Minimum share of blocked gathers; a smaller share is chance.
_MIN_BLOCKED_RATIO = 0.25
_MIN_COUNT_FOR_HIGH_CONFIDENCE = 10
_SAVING_RATIOS = (0.7, 1.1)
#: Minimum gain if at least this share of a step's collectives is blocked.
_MIN_OBSERVED_RATIO, _MIN_HELD_RATIO = 0.01, 0.25

_QUEUES = (
    "unset CUDA_DEVICE_MAX_CONNECTIONS, or set it to at least 8: with 1 all streams share one hardware "
    "queue\nuse a high-priority communication stream: "
    "ProcessGroupNCCL.Options(is_high_priority_stream=True)\n"
)
_FIX = Fix(
    forms={
        Engine.FSDP2: _QUEUES + "launch gathers before the unit's kernels: "
        "block.set_modules_to_forward_prefetch([following])",
        Engine.FSDP1: _QUEUES + "FullyShardedDataParallel(model, forward_prefetch=True)",
        Engine.DEEPSPEED: _QUEUES + '"zero_optimization": {"stage": 3, "overlap_comm": true}',
        Engine.REFERENCE: _QUEUES + "ZeroConfig(stage=3, forward_prefetch=1, backward_prefetch=1)",
    },
    general=_QUEUES.rstrip(),
)

CAUSE = Cause(
    id="ZP407",
    name="compute_blocks_comm",
    meaning="All_gathers that could start stand behind kernels of the unit that computes, "
    "and are exposed for it.",
    needs=(Need.STEPS, Need.DEVICE),
    terms=("exposed_transfer_ns", "idle_ns"),
    produces=(Sign.GATHERS_OF_BACKWARD,),
    sentence="{blocked} of {count} all_gathers were ready but started only after kernels of another unit, "
    "which costs {cost:ns} {per_step} of their exposed {exposed:ns} ({share:percent} {of_step})",
    observed="{held:.0f} collectives {per_step} start only when a kernel ends on which they do not depend: "
    "if they start immediately, {step_is} shorter",
    evidence={
        "blocked_gathers_ratio": ("all_gathers blocked by kernels", Unit.COUNT),
        "blocked_per_step": ("blocked {per_step}", Unit.NS),
        "exposed_transfer_per_step": ("exposed transfer of blocked all_gathers {per_step}", Unit.NS),
        "exposed_by_blocking_per_step": ("exposed because blocked {per_step}", Unit.NS),
        "blocked_collectives_per_step": (
            "collectives that started after unrelated kernels, {per_step}",
            Unit.COUNT,
        ),
    },
    fix=_FIX,
    disprove="unset CUDA_DEVICE_MAX_CONNECTIONS, give the communication stream high priority, and record "
    "again: if the gathers still start when a kernel ends, they wait for it intentionally (an event)",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if ready all_gathers start late behind kernels."""
    if analysis.run.device == "cpu" or analysis.run.world_size == 1:
        return None
    missing = find_missing_collectives(analysis)
    if missing:
        return missing
    gathers = select_kind(
        select_state_rows(analysis, select_steady_rows(analysis)), CollectiveKind.ALL_GATHER
    )
    known = gathers.at(gathers.known("blocked_ns"))
    if not len(gathers):
        return None
    if not len(known):
        return make_untested("computing_unit_unknown")
    blocked_ns, exposed_ns = known.ints("blocked_ns"), known.ints("exposed_transfer_ns")
    blocked_ns = np.where(blocked_ns > _BLOCKED_NS, blocked_ns, 0)
    blocked, wall_ns = int((blocked_ns > 0).sum()), mean_wall_ns(analysis)
    cost_ns = mean_per_step(analysis, np.minimum(blocked_ns, exposed_ns).sum())
    if blocked < _MIN_BLOCKED_RATIO * len(known) or cost_ns <= _MIN_STEP_RATIO * wall_ns:
        return None
    held_ns = mean_per_step(analysis, blocked_ns.sum())
    shown_ns = mean_per_step(analysis, exposed_ns[blocked_ns > 0].sum())
    low_ns, high_ns = (ratio * cost_ns for ratio in _SAVING_RATIOS)
    return Signal(
        confidence=Confidence.HIGH if blocked >= _MIN_COUNT_FOR_HIGH_CONFIDENCE else Confidence.MEDIUM,
        words={
            "blocked": blocked,
            "count": len(known),
            "cost": cost_ns,
            "exposed": shown_ns,
            "share": cost_ns / wall_ns,
        },
        facts=[
            make_fact("blocked_gathers_ratio", blocked),
            make_fact("gathers_examined", len(known)),
            make_fact("blocked_per_step", held_ns),
            make_fact("exposed_transfer_per_step", shown_ns),
            make_fact("exposed_by_blocking_per_step", cost_ns),
        ],
        saving_ns=(low_ns, max(min(high_ns, held_ns), cost_ns)),
        severity=rate_severity(cost_ns, wall_ns),
    )


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return how many collectives kernels block; the step without the blocking shows the cost."""
    graph = step.graph
    assert graph is not None
    count, total = (
        sum(each) / len(graph.ranks) / graph.steps
        for each in (
            [len(rank.held) for rank in graph.ranks],
            [int((rank.collective != NONE).sum()) for rank in graph.ranks],
        )
    )
    if not count:
        return None
    return Observation(
        words={"held": count},
        facts=[make_fact("blocked_collectives_per_step", count)],
        min_ratio=_MIN_OBSERVED_RATIO if count >= _MIN_HELD_RATIO * total else MIN_GAIN_RATIO,
    )


@CAUSE.edit
def start_when_ready(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step in which no kernel delays a collective that does not depend on it."""
    return [edits.release_held(graph, select_opening_gathers(analysis))]
