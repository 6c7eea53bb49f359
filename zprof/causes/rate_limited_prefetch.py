"""ZP406: an all_gather waits until the memory of an earlier one is freed, which costs time.

FSDP1's rate limiter blocks the host until an earlier unit is freed (``limit_all_gathers``). The host then
loses its lead: the device is idle until the host has launched again (a resume gap of about 235 us per
gather: pytorch #108234). A wait for an event outside of such a range is ZP503.

    cost = sum of the time without compute after each wait   (``RunAnalysis.limiter``)

Reported from 2 % of the step, the share proposed when the gap was first described. Time during which the host
is blocked while its device computes costs nothing by itself.

FSDP2 limits on the device instead: the gather waits for the event of a reshard, two units back. If it started
as soon as it could, and had too little overlapping compute although the link was idle before, a deeper
prefetch would hide the rest. That is a note with low confidence, because it costs memory, and because a trace
does not show which event it waited for.

A rank without a device computes on the launching thread: the limiter's wait is already over by then, and
there is no lead to lose. So the first case does not exist on CPU ranks.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import (
    RunAnalysis,
    Untested,
    count_steps,
    find_missing_collectives,
    make_fact,
    make_untested,
    mean_per_step,
    mean_wall_ns,
    select_steady_rows,
)
from zprof.analysis.columns import Columns
from zprof.analysis.time.decomposition import select_kind
from zprof.base.formatting import format_frequency
from zprof.causes.cause import Cause, Need, Observation, Sign, Signal
from zprof.causes.fix import Fix
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine, Framework
from zprof.step import edits
from zprof.step.gathers import measure_shallow_prefetch
from zprof.step.play import PlayedStep
from zprof.step.rank_times import WAITS_FOR_EVENT, are_calls, count_per_step, keep_recurring
from zprof.step.tasks import NONE, Bools, Graph, RankGraph

#: Minimum cost of a limiter, and of a prefetch that is not deep enough, as a share of the step.
_MIN_STEP_RATIO = 0.02
_WORTH_DEPTH_RATIO = 0.03
#: Minimum share of the idle time that is saved: the launches themselves take some time.
_MIN_SAVING_RATIO = 0.7
_MIN_STEPS_FOR_HIGH_CONFIDENCE = 3

_FIX = Fix(
    forms={
        Engine.FSDP1: "FullyShardedDataParallel(model, limit_all_gathers=False)  # only if memory allows\n"
        "or FSDP2 (fully_shard), which limits with an event on the device, so that the host can run ahead",
        Engine.FSDP2: "block.set_modules_to_forward_prefetch([following])  # launched before the wait",
        Engine.DEEPSPEED: '"zero_optimization": {"stage": 3, "stage3_max_live_parameters": $live_elements}',
    },
    settings={
        (Framework.TRANSFORMERS, Engine.FSDP1): 'TrainingArguments(fsdp_config={"limit_all_gathers": False})',
        (Framework.ACCELERATE, Engine.FSDP1): "FullyShardedDataParallelPlugin(limit_all_gathers=False)",
        (Framework.LIGHTNING, Engine.FSDP1): "FSDPStrategy(limit_all_gathers=False)",
    },
)
_DEEPER = Fix(
    forms={
        Engine.FSDP2: "for block, *ahead in zip(blocks, blocks[1:], blocks[2:]):\n"
        "    block.set_modules_to_forward_prefetch(ahead)  # two units ahead: one more in memory",
        Engine.FSDP1: "FullyShardedDataParallel(model, forward_prefetch=True, limit_all_gathers=False)",
        Engine.DEEPSPEED: '"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": '
        "$deeper_elements}",
        Engine.REFERENCE: "ZeroConfig(stage=3, forward_prefetch=2, backward_prefetch=2)",
    },
)
_TOO_SHALLOW = (
    "{count:.0f} all_gathers {per_step} wait for earlier compute while the link is idle, and are then only "
    "partly hidden (exposed {exposed:ns} {per_step})"
)

CAUSE = Cause(
    id="ZP406",
    name="rate_limited_prefetch",
    meaning="Gathers are held back until memory is free, and the compute that should follow "
    "has not been launched yet.",
    needs=(Need.STEPS, Need.DEVICE),
    terms=("idle_ns", "exposed_transfer_ns"),
    produces=(Sign.HOST_WAITS,),
    sentence="the rate limiter blocks the host before {count:.0f} all_gathers {per_step}, "
    "leaving the device idle for {idle:ns}",
    observed="the host waits {frequency} for an event before it continues gathering: without these waits "
    "{step_is} shorter",
    evidence={
        "gathers_held_back_per_step": ("all_gathers delayed by the limiter {per_step}", Unit.COUNT),
        "host_blocked_per_step": ("time the host is blocked before them {per_step}", Unit.NS),
        "device_idle_after_per_step": (
            "time without compute on the device after that, {per_step}",
            Unit.NS,
        ),
        "late_gathers_per_step": ("all_gathers that start after earlier compute, {per_step}", Unit.COUNT),
        "exposed_transfer_per_step": ("their exposed transfer {per_step}", Unit.NS),
        "hideable_per_step": ("hideable with more depth {per_step}", Unit.NS),
        "event_waits_per_step": ("waits for an event, {per_step}", Unit.COUNT),
    },
    fix=_FIX,
    disprove="record some steps without the limiter (FSDP1: limit_all_gathers=False): the gaps after the "
    "waits must disappear, or something else prevents the host from launching",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if delayed gathers leave the device idle, or are needlessly exposed."""
    missing = find_missing_collectives(analysis)
    if missing:
        return missing
    gathers = select_kind(select_steady_rows(analysis), CollectiveKind.ALL_GATHER)
    gathers = gathers.at(gathers.ints("group_size") != 1)
    if not len(gathers):
        return None
    holds = analysis.limiter
    idle_ns = mean_per_step(analysis, holds.ints("idle_ns").sum()) if len(holds) else 0.0
    if not len(holds) or idle_ns < _MIN_STEP_RATIO * mean_wall_ns(analysis):
        return _find_shallow_prefetch(analysis, gathers)
    count = mean_per_step(analysis, len(holds))
    blocked_ns = mean_per_step(analysis, (holds.ints("end_ns") - holds.ints("start_ns")).sum())
    has_steps = count_steps(analysis) >= _MIN_STEPS_FOR_HIGH_CONFIDENCE
    return Signal(
        confidence=Confidence.HIGH if has_steps else Confidence.MEDIUM,
        words={"count": count, "idle": idle_ns},
        facts=[
            make_fact("gathers_held_back_per_step", count),
            make_fact("host_blocked_per_step", blocked_ns),
            make_fact("device_idle_after_per_step", idle_ns),
        ],
        saving_ns=(_MIN_SAVING_RATIO * idle_ns, idle_ns),
    )


def _find_shallow_prefetch(analysis: RunAnalysis, gathers: Columns) -> Signal | Untested | None:
    """Return a note if a deeper prefetch could hide gathers that wait for earlier compute."""
    if not gathers.known("launch_start_ns").any():
        return make_untested("host_calls_not_recorded")
    count, exposed_ns, hideable_ns = measure_shallow_prefetch(analysis, gathers)
    if hideable_ns < _WORTH_DEPTH_RATIO * mean_wall_ns(analysis):
        return None
    return Signal(
        confidence=Confidence.LOW,
        sentence=_TOO_SHALLOW,
        words={"count": count, "exposed": exposed_ns},
        facts=[
            make_fact("late_gathers_per_step", count),
            make_fact("exposed_transfer_per_step", exposed_ns),
            make_fact("hideable_per_step", hideable_ns),
        ],
        lost_ns=hideable_ns,
        fix=_DEEPER,
        disprove="prefetch one unit deeper and record again: if these all_gathers still start as late, the "
        "device was full (ZP407), and the prefetch depth is not the cause",
    )


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return how often the host waits for an event in most steps, with the step without these waits."""
    graph = step.graph
    assert graph is not None

    def recur(rank: RankGraph) -> Bools:
        return keep_recurring(rank, graph.steps, _wait_for_event(rank))

    count = count_per_step(graph, recur)
    if not count:
        return None
    return Observation(
        changed=[edits.unblock_calls(graph, recur)],
        words={"frequency": format_frequency(count, step.analysis.time.basis)},
        facts=[make_fact("event_waits_per_step", count)],
    )


@CAUSE.edit
def run_ahead(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step in which the host does not wait for events."""
    return [edits.unblock_calls(graph, _wait_for_event)]


def _wait_for_event(rank: RankGraph) -> Bools:
    return are_calls(rank, WAITS_FOR_EVENT) & (rank.blocks_on != NONE)
