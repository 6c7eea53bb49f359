"""ZP401 no_prefetch: all_gathers start only when their result is already needed.

An all_gather of unit k+1 can overlap with the compute of unit k. Signal of a late all_gather, on CPU ranks
and devices alike: almost no compute overlaps with it, although there was compute since the previous
all_gather during which the link was idle (``free_compute_ns``,
:mod:`zprof.analysis.time.transfer.launch_delays`). That compute could have hidden it, so with

    blocked_i = its exposed transfer + the exposed transfer of collectives that it was queued behind

    hideable = sum over the late ones of min(blocked_i, free_i)       per rank and step
    at most    min(sum of blocked_i + exposed wait, sum of free_i + the largest of them)

because with prefetch the compute of one unit, including the last one, can also hide gathers of other units,
and the waiting for occasionally late ranks. If the model of the run also predicts the saving, both ranges
apply (:mod:`zprof.rules.saving_range`). A gather that could run long before it started waits for the device,
not for its launch, and does not count.

FSDP waits for an all_gather of a CPU rank in the call that launches it, prefetched or not: FSDP1 calls
``dist.all_gather`` (``FlatParamHandle._all_gather_flat_param``), and FSDP2's streams are a device's
(``FSDPParamGroup.unshard``). There a finding is a note with a saving from 0, because no option, or only a
private switch, makes these calls asynchronous.

Thresholds: 30 % of the all_gathers' transfer exposed (without prefetch all of it is; with it, simulated on a
network that is barely fast enough, 7 %). The others are from simulated jobs, where 50 % and 115 % bracketed
the true saving.
"""

import pandas as pd
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Engine, Framework
from zprof.model.whatif import Change
from zprof.rules.evidence import make_fact
from zprof.rules.fixes import Fix, choose_fix
from zprof.rules.rule import (
    has_no_collectives,
    make_finding,
    mean_per_step,
    mean_wall_ns,
    rate_severity,
    select_kind,
    select_steady_rows,
    untested_gap,
)
from zprof.rules.saving_range import BoundedSaving, bound_by_prediction

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
    gathers = gathers[gathers["group_size"] != 1]
    if gathers.groupby(["rank", "step"]).size().median() < _MIN_GATHERS or gathers.empty:
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


def _measure(analysis: RunAnalysis, gathers: pd.DataFrame) -> _Gathers:
    duration = (gathers["end_ns"] - gathers["start_ns"]).clip(lower=1)
    queued = gathers["queued_exposed_ns"]
    late = _is_late(gathers, duration) & ~_is_held(analysis, gathers, duration)
    blocked = (gathers["exposed_transfer_ns"] + queued).where(late, 0)
    waited = blocked + gathers["exposed_wait_ns"].where(late, 0)
    free = gathers["free_compute_ns"].where(late, 0)
    place = [gathers["rank"], gathers["step"]]
    return _Gathers(
        count=len(gathers),
        late=int(late.sum()),
        transfer_ns=mean_per_step(analysis, gathers["transfer_ns"].sum()),
        exposed_ns=mean_per_step(analysis, gathers["exposed_transfer_ns"].sum()),
        queued_ns=mean_per_step(analysis, queued.where(late, 0).sum()),
        free_ns=mean_per_step(analysis, free.sum()),
        hideable_ns=_within_free_compute(
            analysis, blocked.clip(upper=free).astype(float).groupby(place).sum()
        ),
        max_ns=_within_free_compute(analysis, _max_saving_per_step(gathers.assign(waited=waited, free=free))),
        launched=bool(gathers["launch_start_ns"].notna().mean() > 0.5),
        bound=not gathers["matched"].mean() > 0.5,
    )


def _is_late(gathers: pd.DataFrame, duration: "pd.Series[int]") -> "pd.Series[bool]":
    """Return a mask of the gathers with almost no overlapping compute although there was free compute."""
    alone = gathers["hidden_ns"] <= _HIDES_NOTHING_RATIO * duration
    return alone & (gathers["free_compute_ns"] > _WORTH_HIDING_RATIO * duration)


def _is_held(analysis: RunAnalysis, gathers: pd.DataFrame, duration: "pd.Series[int]") -> "pd.Series[bool]":
    """Return a mask of the gathers that a device delayed although they were ready; none on CPU ranks."""
    if analysis.run.device == "cpu":
        return pd.Series(False, index=gathers.index)
    stood = gathers["start_ns"] - gathers["launch_start_ns"] - gathers["dependency_ns"]
    kept = pd.concat([stood, gathers["blocked_ns"]], axis=1).astype("Float64").max(axis=1).fillna(0)
    return ((kept >= _STARTS_LATE_NS) & (kept >= _STARTS_LATE_RATIO * duration)).astype(bool)


def _max_saving_per_step(rows: pd.DataFrame) -> "pd.Series[float]":
    """Measure the time per step that late gathers block and that free compute could hide.

    The compute of the last unit, taken as the largest, counts too.
    """
    steps = rows.groupby(["rank", "step"])
    return _MAX_SAVING_RATIO * steps["waited"].sum().clip(upper=steps["free"].sum() + steps["free"].max())


def _within_free_compute(analysis: RunAnalysis, claimed: "pd.Series[float]") -> float:
    """Limit each step's time by its free compute; return the mean per rank and step."""
    steps = analysis.steps.set_index(["rank", "step"])
    free = (steps["compute_ns"] - steps["overlapped_ns"]).clip(lower=0)
    return mean_per_step(analysis, claimed.clip(upper=free.reindex(claimed.index).fillna(0)).sum())


def _build_finding(analysis: RunAnalysis, gathers_cost: _Gathers) -> Finding:
    # if ranks are missing, the exposed time may be waiting for them, which earlier launches do not shorten
    basis = analysis.time.basis
    low = (
        0.0
        if gathers_cost.bound or _waits_at_once(analysis)
        else _MIN_SAVING_RATIO * gathers_cost.hideable_ns
    )
    high = max(gathers_cost.hideable_ns, gathers_cost.max_ns)
    expected = _bound_saving(analysis, gathers_cost, (low, high))
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
        saving_ns=expected.saving_ns,
        severity=rate_severity(high, mean_wall_ns(analysis)),
        confidence=expected.confidence,
        fix=choose_fix(analysis, FIXES),
        disprove="turn prefetch on and record again: if the exposed transfer of all_gathers remains, "
        "late launches are not the cause",
    )


def _bound_saving(
    analysis: RunAnalysis, gathers_cost: _Gathers, own_range: tuple[float, float]
) -> BoundedSaving:
    confidence = _rate_confidence(analysis, gathers_cost)
    if gathers_cost.bound or _waits_at_once(analysis):
        return BoundedSaving(saving_ns=own_range, confidence=confidence)
    return bound_by_prediction(analysis, Change(prefetch=1), own_range, confidence)


def _rate_confidence(analysis: RunAnalysis, gathers_cost: _Gathers) -> Confidence:
    if _waits_at_once(analysis) or gathers_cost.late < _LATE_RATIO * gathers_cost.count:
        return Confidence.LOW
    has_enough_steps = analysis.steps["step"].nunique() >= _MIN_STEPS_FOR_HIGH_CONFIDENCE
    sure = has_enough_steps and gathers_cost.launched and not gathers_cost.bound
    return (
        Confidence.HIGH
        if sure and gathers_cost.late >= _SURE_LATE_RATIO * gathers_cost.count
        else Confidence.MEDIUM
    )


def _waits_at_once(analysis: RunAnalysis) -> bool:
    """Return True if the engine blocks the host for every all_gather, regardless of when it is launched."""
    return analysis.run.device == "cpu" and analysis.training.engine.lower() in ("fsdp1", "fsdp2")
