"""ZP406 rate_limited_prefetch: gathered memory must be free before the next all_gather, and that costs time.

FSDP1's rate limiter blocks the host until an earlier unit is freed (``limit_all_gathers``). The host then
loses its lead: the device runs dry until the host has launched again (a resume gap of about 235 us per
gather: pytorch #108234). A wait for an event outside of such a range is blocking_sync.

    cost = sum over the holds of the compute that is missing after each   (``RunAnalysis.limiter``)

Reported from 2 % of the step on, the share proposed when the gap was first described. Time for which the host
is blocked while its device computes costs nothing by itself.

FSDP2 limits on the device instead: the gather waits for the event of a reshard, two units back. If it started
as soon as it could, with too little compute beside it although the link was idle before, more depth would
hide the rest. That is a note of low confidence, because it costs memory, and because a trace does not show
which event it waited for.

A rank without a device computes on the thread that launches: what a limiter waits for is done by then, and
there is no lead to lose. So the first form does not exist on CPU ranks.
"""

from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Evidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.rules.rule import (
    choose_fix,
    has_no_collectives,
    make_finding,
    mean_per_step,
    mean_wall_ns,
    rate_severity,
    select_kind,
    select_steady_rows,
    untested_gap,
)

#: Minimum cost as a share of the step, of a limiter and of a prefetch that is not deep enough.
_MIN_STEP_RATIO = 0.02
_WORTH_DEPTH_RATIO = 0.03
#: Minimum share of the idle time that is saved: the launches themselves take some time, whenever they come.
_SURE_RATIO = 0.7
_MIN_STEPS_FOR_HIGH_CONFIDENCE = 3
#: Minimum compute beside a gather, as a share of its duration, to call it prefetched.
_BESIDE_RATIO = 0.10
#: A longer delay from when it could run to its start has another cause than the event.
_AT_ONCE_NS = 50_000

_FIXES = {
    "FSDP2": "# the limit is an event on the device there, and the host runs on:\n"
    "fully_shard(block); fully_shard(model)\n"
    "block.set_modules_to_forward_prefetch([following])",
    "FSDP1": "FullyShardedDataParallel(model, limit_all_gathers=False)  # only with memory to spare",
    "DeepSpeed": '"zero_optimization": {"stage": 3, "stage3_max_live_parameters": 2000000000}',
}
_DEEPER = {
    "FSDP2": "for block, *ahead in zip(blocks, blocks[1:], blocks[2:]):\n"
    "    block.set_modules_to_forward_prefetch(ahead)  # two units ahead: one more in memory",
    "DeepSpeed": '"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 200000000}',
    "reference": "ZeroConfig(stage=3, forward_prefetch=2, backward_prefetch=2)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holds:
    """The cost of a limiter per step."""

    count: float
    blocked_ns: float
    idle_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShallowPrefetch:
    """Gathers that hide in part, per step: what is exposed, and what more depth could hide of it."""

    count: float
    exposed_ns: float
    hideable_ns: float


def rate_limited_prefetch(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if holding gathers back leaves the device idle, or exposes what could hide."""
    if has_no_collectives(analysis):
        return untested_gap(
            Cause.RATE_LIMITED_PREFETCH, "no collective was recorded", "record with the time window on"
        )
    gathers = select_kind(select_steady_rows(analysis), CollectiveKind.ALL_GATHER)
    gathers = gathers[gathers["group_size"] != 1]
    if gathers.empty:
        return None
    wall = mean_wall_ns(analysis)
    held = _measure_holds(analysis)
    if held and held.idle_ns >= _MIN_STEP_RATIO * wall:
        return _find_rate_limit(analysis, held)
    if gathers["launch_start_ns"].isna().all():
        return untested_gap(
            Cause.RATE_LIMITED_PREFETCH,
            "the calls of the host are not in the recording",
            "record the CPU activity, too (ProfilerActivity.CPU)",
        )
    shallow = _measure_shallow_prefetch(analysis, gathers)
    return (
        _find_shallow_prefetch(analysis, shallow)
        if shallow.hideable_ns >= _WORTH_DEPTH_RATIO * wall
        else None
    )


def _measure_holds(analysis: RunAnalysis) -> _Holds | None:
    holds = analysis.limiter
    if holds.empty:
        return None
    return _Holds(
        count=mean_per_step(analysis, len(holds)),
        blocked_ns=mean_per_step(analysis, (holds["end_ns"] - holds["start_ns"]).sum()),
        idle_ns=mean_per_step(analysis, holds["idle_ns"].sum()),
    )


def _find_rate_limit(analysis: RunAnalysis, held: _Holds) -> Finding:
    steps = analysis.steps["step"].nunique()
    return make_finding(
        Cause.RATE_LIMITED_PREFETCH,
        sentence=f"the host is held back before {held.count:.0f} all_gathers per step, and the device then "
        f"has nothing to compute for {format_ns(held.idle_ns)}",
        evidence=[
            Evidence(
                key="gathers_held_back_per_step",
                what="all_gathers held back per step",
                value=held.count,
                unit="count",
            ),
            Evidence(
                key="host_blocked_per_step",
                what="host blocked before them per step",
                value=held.blocked_ns,
                unit="ns",
            ),
            Evidence(
                key="device_idle_after_per_step",
                what="device without compute after that per step",
                value=held.idle_ns,
                unit="ns",
            ),
        ],
        saving_ns=(_SURE_RATIO * held.idle_ns, held.idle_ns),
        severity=rate_severity(held.idle_ns, mean_wall_ns(analysis)),
        confidence=Confidence.HIGH if steps >= _MIN_STEPS_FOR_HIGH_CONFIDENCE else Confidence.MEDIUM,
        fix=choose_fix(analysis.training.engine, _FIXES),
        disprove="record some steps without the limiter (FSDP1: limit_all_gathers=False): the gaps after the "
        "waits must go, or something else keeps the host from launching",
    )


def _measure_shallow_prefetch(analysis: RunAnalysis, gathers: pd.DataFrame) -> _ShallowPrefetch:
    duration = gathers["end_ns"] - gathers["start_ns"]
    stood = (gathers["start_ns"] - gathers["launch_start_ns"] - gathers["dependency_ns"]).astype("Float64")
    chosen = (
        (gathers["hidden_ns"] > _BESIDE_RATIO * duration)
        & (gathers["dependency_ns"].fillna(0) > 0)
        & (stood.fillna(_AT_ONCE_NS) < _AT_ONCE_NS)
        & (gathers["blocked_ns"].fillna(0) < _AT_ONCE_NS)
    ).astype(bool)
    exposed = gathers["exposed_transfer_ns"].where(chosen, 0)
    hideable = exposed.clip(upper=gathers["free_compute_ns"])
    return _ShallowPrefetch(
        count=mean_per_step(analysis, int((hideable > 0).sum())),
        exposed_ns=mean_per_step(analysis, exposed.sum()),
        hideable_ns=mean_per_step(analysis, hideable.sum()),
    )


def _find_shallow_prefetch(analysis: RunAnalysis, shallow: _ShallowPrefetch) -> Finding:
    return make_finding(
        Cause.RATE_LIMITED_PREFETCH,
        sentence=f"{shallow.count:.0f} all_gathers per step wait for earlier compute while the link is idle, "
        f"and then hide only in part (exposed {format_ns(shallow.exposed_ns)} per step)",
        evidence=[
            Evidence(
                key="late_gathers_per_step",
                what="all_gathers that begin behind earlier compute per step",
                value=shallow.count,
                unit="count",
            ),
            Evidence(
                key="exposed_transfer_per_step",
                what="of them exposed transfer per step",
                value=shallow.exposed_ns,
                unit="ns",
            ),
            Evidence(
                key="hideable_per_step",
                what="hideable with more depth per step",
                value=shallow.hideable_ns,
                unit="ns",
            ),
        ],
        saving_ns=(0, shallow.hideable_ns),
        severity=rate_severity(shallow.hideable_ns, mean_wall_ns(analysis)),
        confidence=Confidence.LOW,
        fix=choose_fix(analysis.training.engine, _DEEPER),
        disprove="prefetch one unit deeper and record again: if these all_gathers still begin as late, the "
        "device had no room for them (ZP407), and the depth is not what holds them",
    )
