"""ZP407 compute_blocks_comm: all_gathers that are ready to start are blocked by kernels of the computing
unit.

A gather launched ahead does not depend on the unit that is computing. If kernels fill the device, or
both share a hardware queue, it starts only when one of that unit's kernels ends
(:mod:`zprof.analysis.time.transfer.launch_delays`). Blocked time counts from 50 us, limited by the exposed
time of the gather:

    cost = sum of min(blocked, exposed)          at most    1.1 * cost and the sum of blocked

Reported above 2 % of the step, both thresholds from docs/thresholds.md. Not applicable to CPU ranks: there a
collective runs on its own thread, and kernels do not block it.
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import has_no_collectives, mean_per_step, mean_wall_ns, select_steady_rows
from zprof.analysis.time.collective_rows import select_kind
from zprof.causes.fix import Fix, choose_fix
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns, format_percent
from zprof.model.gaps import Gap
from zprof.model.training import Engine
from zprof.rules.evidence import make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap

_MIN_STEP_RATIO = 0.02
_BLOCKED_NS = 50_000
#: Minimum share of blocked gathers; fewer are blocked by chance.
_MIN_BLOCKED_RATIO = 0.25
_MIN_COUNT_FOR_HIGH_CONFIDENCE = 10
_SAVING_RATIOS = (0.7, 1.1)

FIX = (
    "unset CUDA_DEVICE_MAX_CONNECTIONS, or set it to at least 8: with 1 all streams share one hardware "
    "queue\nuse a high-priority communication stream: "
    "ProcessGroupNCCL.Options(is_high_priority_stream=True)\n"
)
FIXES = Fix(
    forms={
        Engine.FSDP2: FIX + "launch gathers before the unit's kernels: "
        "block.set_modules_to_forward_prefetch([following])",
        Engine.FSDP1: FIX + "FullyShardedDataParallel(model, forward_prefetch=True)",
        Engine.DEEPSPEED: FIX + '"zero_optimization": {"stage": 3, "overlap_comm": true}',
        Engine.REFERENCE: FIX + "ZeroConfig(stage=3, forward_prefetch=1, backward_prefetch=1)",
    },
    general=FIX.rstrip(),
)


class _Blocked(Struct, frozen=True, kw_only=True):
    """Gathers of the window; times are per step."""

    count: int
    blocked: int
    blocked_ns: float
    exposed_ns: float
    cost_ns: float


def compute_blocks_comm(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if ready all_gathers start late behind kernels."""
    if analysis.run.device == "cpu" or analysis.run.world_size == 1:
        return None
    if has_no_collectives(analysis):
        return untested_gap(Cause.COMPUTE_BLOCKS_COMM, "no collective was recorded", "record the time window")
    gathers = select_kind(select_steady_rows(analysis), CollectiveKind.ALL_GATHER)
    known = gathers.at(gathers.known("blocked_ns"))
    if not len(gathers):
        return None
    if not len(known):
        return untested_gap(
            Cause.COMPUTE_BLOCKS_COMM,
            "the unit computing when a gather was launched is unknown: no launches, or no FSDP ranges",
            "record the host too (ProfilerActivity.CPU); FSDP marks its passes automatically",
        )
    blocked = known.ints("blocked_ns")
    blocked = np.where(blocked > _BLOCKED_NS, blocked, 0)
    exposed = known.ints("exposed_transfer_ns")
    blocking = _Blocked(
        count=len(known),
        blocked=int((blocked > 0).sum()),
        blocked_ns=mean_per_step(analysis, blocked.sum()),
        exposed_ns=mean_per_step(analysis, exposed[blocked > 0].sum()),
        cost_ns=mean_per_step(analysis, np.minimum(blocked, exposed).sum()),
    )
    is_frequent = blocking.blocked >= _MIN_BLOCKED_RATIO * blocking.count
    return (
        _build_finding(analysis, blocking)
        if is_frequent and blocking.cost_ns > _MIN_STEP_RATIO * mean_wall_ns(analysis)
        else None
    )


def _build_finding(analysis: RunAnalysis, blocking: _Blocked) -> Finding:
    words = analysis.time.words
    wall = mean_wall_ns(analysis)
    low, high = (ratio * blocking.cost_ns for ratio in _SAVING_RATIOS)
    return make_finding(
        analysis,
        Cause.COMPUTE_BLOCKS_COMM,
        sentence=f"{blocking.blocked} of {blocking.count} all_gathers were ready but started only after "
        f"kernels of another unit, which costs {format_ns(blocking.cost_ns)} {words.per_step} of their "
        f"exposed {format_ns(blocking.exposed_ns)} "
        f"({format_percent(blocking.cost_ns / wall)} {words.of_step})",
        evidence=[
            make_fact("blocked_gathers_ratio", blocking.blocked),
            make_fact("gathers_examined", blocking.count),
            make_fact("blocked_per_step", blocking.blocked_ns),
            make_fact("exposed_transfer_per_step/blocked", blocking.exposed_ns),
            make_fact("exposed_by_blocking_per_step", blocking.cost_ns),
        ],
        saving_ns=(low, max(min(high, blocking.blocked_ns), blocking.cost_ns)),
        severity=rate_severity(blocking.cost_ns, wall),
        confidence=Confidence.HIGH
        if blocking.blocked >= _MIN_COUNT_FOR_HIGH_CONFIDENCE
        else Confidence.MEDIUM,
        fix=choose_fix(analysis, FIXES),
        disprove="unset CUDA_DEVICE_MAX_CONNECTIONS, give the communication stream high priority, and record "
        "again: if the gathers still start when a kernel ends, they wait for it intentionally (an event)",
    )
