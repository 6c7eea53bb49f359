"""ZP401 no_prefetch: all_gathers start only when their result is already needed.

An all_gather of unit k+1 can overlap with the compute of unit k. Signal of a late all_gather, on CPU ranks
and devices alike: almost no compute overlaps with it, although there was compute since the previous
all_gather during which the link was idle (``free_compute_ns``,
:mod:`zprof.analysis.time.transfer.launch_delays`). That compute could have hidden it, so with

    blocked_i = its exposed transfer + the exposed transfer of collectives that it was queued behind

    hideable = sum over the late ones of min(blocked_i, free_i)       per rank and step
    at most    min(sum of blocked_i + exposed wait, sum of free_i + the largest of them)

because with prefetch the compute of one unit, including the last one, can also hide gathers of other units,
and the waiting for occasionally late ranks. A gather that could run long before it started waits for the
device, not for its launch, and does not count.

FSDP waits for an all_gather of a CPU rank in the call that launches it, prefetched or not: FSDP1 calls
``dist.all_gather`` (``FlatParamHandle._all_gather_flat_param``), and FSDP2's streams are a device's
(``FSDPParamGroup.unshard``). There a finding is a note with a saving from 0, because no option, or only a
private switch, makes these calls asynchronous.

Thresholds: 30 % of the all_gathers' transfer exposed (without prefetch all of it is; with it, simulated on a
network that is barely fast enough, 7 %). The others are from simulated jobs, where 50 % and 115 % bracketed
the true saving.
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats, Mask, find_places
from zprof.analysis.intervals import Int64s
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

#: Overlapping compute below this share of an all_gather's duration does not hide it.
_HIDES_NOTHING_RATIO = 0.10
#: Free compute before an all_gather below this share of its duration would not hide it either.
_WORTH_HIDING_RATIO = 0.10
#: If it was ready this long, and this share of its duration, before it started, something else delayed it.
_STARTS_LATE_NS = 50_000
_STARTS_LATE_RATIO = 0.10
#: All_gathers with a smaller exposed share of their transfer are prefetched well enough.
_EXPOSED_RATIO = 0.30
#: A saving below this share of the step is not worth a finding.
_MIN_STEP_RATIO = 0.03
#: Minimum share of the hideable time that is saved: gathers take cores and memory bandwidth from overlapping
#: compute.
_MIN_SAVING_RATIO = 0.5
#: Maximum saving relative to the hideable time: a rank that is not blocked need not wake up and launch again
#: (the reference engine on two gloo ranks gained up to 1.08 times the blocked time).
_MAX_SAVING_RATIO = 1.15
#: With fewer all_gathers per step there is no other unit to prefetch.
_MIN_GATHERS = 3
_MIN_STEPS_FOR_HIGH_CONFIDENCE = 3
_SURE_LATE_RATIO = 0.5
#: With a smaller share of late all_gathers prefetch is on, and something else delays some of them.
_LATE_RATIO = 1 / 3

FIXES = Fix(
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


class _Gathers(Struct, frozen=True, kw_only=True):
    """All_gathers of the window: how many are late, and the cost per step.

    ``launched``: their launches are known. ``bound``: most of them were not recorded on all ranks.
    """

    count: int
    late: int
    transfer_ns: float
    exposed_ns: float
    queued_ns: float
    free_ns: float
    hideable_ns: float
    max_ns: float
    launched: bool
    bound: bool


def no_prefetch(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if all_gathers are exposed because they start late."""
    if has_no_collectives(analysis):
        return untested_gap(Cause.NO_PREFETCH, "no collective was recorded", "record with the time window on")
    gathers = select_kind(select_steady_rows(analysis), CollectiveKind.ALL_GATHER)
    gathers = gathers.at(gathers.ints("group_size") != 1)
    if not len(gathers) or np.median(gathers.group_by("rank", "step").sizes) < _MIN_GATHERS:
        return None
    if any(rank.upper_bound for rank in analysis.time.per_rank):
        return untested_gap(
            Cause.NO_PREFETCH,
            "no waits for collectives were recorded, so it is unknown if all_gathers are exposed",
            "write ::wait ranges (docs/recording.md)",
        )
    gathers_cost = _measure(analysis, gathers)
    return (
        _build_finding(analysis, gathers_cost)
        if (
            gathers_cost.exposed_ns >= _EXPOSED_RATIO * gathers_cost.transfer_ns
            and gathers_cost.hideable_ns >= _MIN_STEP_RATIO * mean_wall_ns(analysis)
        )
        else None
    )


def _measure(analysis: RunAnalysis, gathers: Columns) -> _Gathers:
    duration = np.maximum(1, gathers.ints("end_ns") - gathers.ints("start_ns"))
    queued, exposed = gathers.ints("queued_exposed_ns"), gathers.ints("exposed_transfer_ns")
    late = _is_late(gathers, duration) & ~_is_held(analysis, gathers, duration)
    blocked = np.where(late, exposed + queued, 0)
    waited = blocked + np.where(late, gathers.ints("exposed_wait_ns"), 0)
    free = np.where(late, gathers.ints("free_compute_ns"), 0)
    steps = gathers.group_by("rank", "step")
    hideable = steps.sum(np.minimum(blocked, free))
    # the compute of the last unit, taken as the largest, counts too
    most = _MAX_SAVING_RATIO * np.minimum(steps.sum(waited), steps.sum(free) + steps.max(free))
    step_rows = gathers.at(steps.first)
    return _Gathers(
        count=len(gathers),
        late=int(late.sum()),
        transfer_ns=mean_per_step(analysis, gathers.ints("transfer_ns").sum()),
        exposed_ns=mean_per_step(analysis, exposed.sum()),
        queued_ns=mean_per_step(analysis, np.where(late, queued, 0).sum()),
        free_ns=mean_per_step(analysis, free.sum()),
        hideable_ns=_within_free_compute(analysis, step_rows, hideable),
        max_ns=_within_free_compute(analysis, step_rows, most),
        launched=bool(gathers.known("launch_start_ns").mean() > 0.5),
        bound=not gathers.bools("matched").mean() > 0.5,
    )


def _is_late(gathers: Columns, duration: Int64s) -> Mask:
    """Return a mask of the gathers with almost no overlapping compute although there was free compute."""
    alone = gathers.ints("hidden_ns") <= _HIDES_NOTHING_RATIO * duration
    late: Mask = alone & (gathers.ints("free_compute_ns") > _WORTH_HIDING_RATIO * duration)
    return late


def _is_held(analysis: RunAnalysis, gathers: Columns, duration: Int64s) -> Mask:
    """Return a mask of the gathers that a device delayed although they were ready; none on CPU ranks."""
    if analysis.run.device == "cpu":
        return np.zeros(len(gathers), dtype=np.bool_)
    stood = gathers.ints("start_ns") - gathers.ints("launch_start_ns") - gathers.ints("dependency_ns")
    is_known = gathers.known("launch_start_ns") & gathers.known("dependency_ns")
    kept = np.maximum(np.where(is_known, stood, 0), gathers.ints("blocked_ns"))
    held: Mask = (kept >= _STARTS_LATE_NS) & (kept >= _STARTS_LATE_RATIO * duration)
    return held


def _within_free_compute(analysis: RunAnalysis, rows: Columns, claimed: Int64s | Floats) -> float:
    """Limit the claims on the step of each row by its free compute; return the mean per rank and step."""
    steps = analysis.steps
    free = np.maximum(0, steps.ints("compute_ns") - steps.ints("overlapped_ns"))
    places = find_places(*([table.ints("rank"), table.ints("step")] for table in (rows, steps)))
    return mean_per_step(analysis, np.minimum(claimed, np.append(free, 0)[places]).sum())


def _build_finding(analysis: RunAnalysis, gathers_cost: _Gathers) -> Finding:
    # if ranks are missing, the exposed time may be waiting for them, which earlier launches do not shorten
    basis = analysis.time.basis
    low = (
        0.0
        if gathers_cost.bound or _waits_at_once(analysis)
        else _MIN_SAVING_RATIO * gathers_cost.hideable_ns
    )
    high = max(gathers_cost.hideable_ns, gathers_cost.max_ns)
    return make_finding(
        analysis,
        Cause.NO_PREFETCH,
        sentence="all_gathers start only after the compute that could have hidden them "
        f"(exposed {format_ns(gathers_cost.exposed_ns)} of {format_ns(gathers_cost.transfer_ns)} {basis})",
        evidence=[
            make_fact("late_gathers_ratio", gathers_cost.late),
            make_fact("gathers_examined", gathers_cost.count),
            make_fact("gather_transfer_per_step", gathers_cost.transfer_ns),
            make_fact("exposed_part/all_gathers", gathers_cost.exposed_ns),
            make_fact("queued_per_step", gathers_cost.queued_ns),
            make_fact("compute_before_idle_link_per_step", gathers_cost.free_ns),
            make_fact("hideable_per_step/compute", gathers_cost.hideable_ns),
        ],
        saving_ns=(low, high),
        severity=rate_severity(high, mean_wall_ns(analysis)),
        confidence=_rate_confidence(analysis, gathers_cost),
        fix=choose_fix(analysis, FIXES),
        disprove="turn prefetch on and record again: if the exposed transfer of all_gathers remains, "
        "late launches are not the cause",
    )


def _rate_confidence(analysis: RunAnalysis, gathers_cost: _Gathers) -> Confidence:
    if _waits_at_once(analysis) or gathers_cost.late < _LATE_RATIO * gathers_cost.count:
        return Confidence.LOW
    has_enough_steps = count_steps(analysis) >= _MIN_STEPS_FOR_HIGH_CONFIDENCE
    sure = has_enough_steps and gathers_cost.launched and not gathers_cost.bound
    return (
        Confidence.HIGH
        if sure and gathers_cost.late >= _SURE_LATE_RATIO * gathers_cost.count
        else Confidence.MEDIUM
    )


def _waits_at_once(analysis: RunAnalysis) -> bool:
    """Return True if the engine blocks the host for every all_gather, regardless of when it is launched."""
    return analysis.run.device == "cpu" and analysis.training.engine.lower() in ("fsdp1", "fsdp2")
