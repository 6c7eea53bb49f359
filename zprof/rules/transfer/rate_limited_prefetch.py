"""ZP406 rate_limited_prefetch: an all_gather waits until memory of an earlier one is freed, which costs time.

FSDP1's rate limiter blocks the host until an earlier unit is freed (``limit_all_gathers``). The host then
loses its lead: the device is idle until the host has launched again (a resume gap of about 235 us per
gather: pytorch #108234). A wait for an event outside of such a range is blocking_sync.

    cost = sum of the time without compute after each wait   (``RunAnalysis.limiter``)

Reported from 2 % of the step, the share proposed when the gap was first described. Time during which the host
is blocked while its device computes costs nothing by itself.

FSDP2 limits on the device instead: the gather waits for the event of a reshard, two units back. If it started
as soon as it could, with too little overlapping compute although the link was idle before, more depth would
hide the rest. That is a note with low confidence, because it costs memory, and because a trace does not show
which event it waited for.

A rank without a device computes on the launching thread: the limiter's wait is already over by then, and
there is no lead to lose. So the first case does not exist on CPU ranks.
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import (
    count_steps,
    has_no_collectives,
    mean_per_step,
    mean_wall_ns,
    select_steady_rows,
)
from zprof.analysis.time.collective_rows import select_kind
from zprof.causes.fix import Fix, choose_fix
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Engine, Framework
from zprof.rules.evidence import make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap

#: Minimum cost as a share of the step, of a limiter and of a prefetch that is not deep enough.
_MIN_STEP_RATIO = 0.02
_WORTH_DEPTH_RATIO = 0.03
#: Minimum share of the idle time that is saved: the launches themselves take some time.
_MIN_SAVING_RATIO = 0.7
_MIN_STEPS_FOR_HIGH_CONFIDENCE = 3
#: Minimum overlapping compute, as a share of a gather's duration, to count it as prefetched.
_MIN_OVERLAP_RATIO = 0.10
#: A gather that starts later than this after it was ready was delayed by something other than the event.
_MAX_READY_DELAY_NS = 50_000

FIXES = Fix(
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


class _Holds(Struct, frozen=True, kw_only=True):
    """The cost of a limiter per step."""

    count: float
    blocked_ns: float
    idle_ns: float


class _ShallowPrefetch(Struct, frozen=True, kw_only=True):
    """Partly hidden gathers, per step: their exposed time, and the part that more depth could hide."""

    count: float
    exposed_ns: float
    hideable_ns: float


def rate_limited_prefetch(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if delayed gathers leave the device idle, or are needlessly exposed."""
    if has_no_collectives(analysis):
        return untested_gap(
            Cause.RATE_LIMITED_PREFETCH, "no collective was recorded", "record with the time window on"
        )
    gathers = select_kind(select_steady_rows(analysis), CollectiveKind.ALL_GATHER)
    gathers = gathers.at(gathers.ints("group_size") != 1)
    if not len(gathers):
        return None
    wall = mean_wall_ns(analysis)
    limiter_cost = _measure_holds(analysis)
    if limiter_cost and limiter_cost.idle_ns >= _MIN_STEP_RATIO * wall:
        return _find_rate_limit(analysis, limiter_cost)
    if not gathers.known("launch_start_ns").any():
        return untested_gap(
            Cause.RATE_LIMITED_PREFETCH,
            "the host's calls were not recorded",
            "record CPU activity too (ProfilerActivity.CPU)",
        )
    duration = gathers.ints("end_ns") - gathers.ints("start_ns")
    dependency = gathers.ints("dependency_ns")
    stood = gathers.ints("start_ns") - gathers.ints("launch_start_ns") - dependency
    chosen = (
        (gathers.ints("hidden_ns") > _MIN_OVERLAP_RATIO * duration)
        & (dependency > 0)
        & (gathers.known("launch_start_ns") & (stood < _MAX_READY_DELAY_NS))
        & (gathers.ints("blocked_ns") < _MAX_READY_DELAY_NS)
    )
    exposed = np.where(chosen, gathers.ints("exposed_transfer_ns"), 0)
    hideable = np.minimum(exposed, gathers.ints("free_compute_ns"))
    shallow = _ShallowPrefetch(
        count=mean_per_step(analysis, int((hideable > 0).sum())),
        exposed_ns=mean_per_step(analysis, exposed.sum()),
        hideable_ns=mean_per_step(analysis, hideable.sum()),
    )
    return (
        _find_shallow_prefetch(analysis, shallow)
        if shallow.hideable_ns >= _WORTH_DEPTH_RATIO * wall
        else None
    )


def _measure_holds(analysis: RunAnalysis) -> _Holds | None:
    holds = analysis.limiter
    if not len(holds):
        return None
    return _Holds(
        count=mean_per_step(analysis, len(holds)),
        blocked_ns=mean_per_step(analysis, (holds.ints("end_ns") - holds.ints("start_ns")).sum()),
        idle_ns=mean_per_step(analysis, holds.ints("idle_ns").sum()),
    )


def _find_rate_limit(analysis: RunAnalysis, limiter_cost: _Holds) -> Finding:
    basis = analysis.time.basis
    steps = count_steps(analysis)
    return make_finding(
        analysis,
        Cause.RATE_LIMITED_PREFETCH,
        sentence=f"the rate limiter blocks the host before {limiter_cost.count:.0f} all_gathers {basis}, "
        f"leaving the device idle for {format_ns(limiter_cost.idle_ns)}",
        evidence=[
            make_fact("gathers_held_back_per_step", limiter_cost.count),
            make_fact("host_blocked_per_step", limiter_cost.blocked_ns),
            make_fact("device_idle_after_per_step", limiter_cost.idle_ns),
        ],
        saving_ns=(_MIN_SAVING_RATIO * limiter_cost.idle_ns, limiter_cost.idle_ns),
        severity=rate_severity(limiter_cost.idle_ns, mean_wall_ns(analysis)),
        confidence=Confidence.HIGH if steps >= _MIN_STEPS_FOR_HIGH_CONFIDENCE else Confidence.MEDIUM,
        fix=choose_fix(analysis, FIXES),
        disprove="record some steps without the limiter (FSDP1: limit_all_gathers=False): the gaps after the "
        "waits must disappear, or something else prevents the host from launching",
    )


def _find_shallow_prefetch(analysis: RunAnalysis, shallow: _ShallowPrefetch) -> Finding:
    basis = analysis.time.basis
    return make_finding(
        analysis,
        Cause.RATE_LIMITED_PREFETCH,
        sentence=f"{shallow.count:.0f} all_gathers {basis} wait for earlier compute while the link is idle, "
        f"and are then only partly hidden (exposed {format_ns(shallow.exposed_ns)} {basis})",
        evidence=[
            make_fact("late_gathers_per_step", shallow.count),
            make_fact("exposed_transfer_per_step/late", shallow.exposed_ns),
            make_fact("hideable_per_step/depth", shallow.hideable_ns),
        ],
        saving_ns=(0, shallow.hideable_ns),
        severity=rate_severity(shallow.hideable_ns, mean_wall_ns(analysis)),
        confidence=Confidence.LOW,
        fix=choose_fix(analysis, _DEEPER),
        disprove="prefetch one unit deeper and record again: if these all_gathers still start as late, the "
        "device was full (ZP407), and the prefetch depth is not the cause",
    )
