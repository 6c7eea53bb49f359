"""ZP401 no_prefetch: all_gathers start when their result is already needed.

An all_gather of unit k+1 can run under the compute of unit k. Signal of one all_gather, on a CPU rank and on
a device alike: next to no compute runs beside it, although since the previous all_gather there was compute
beside which the link was idle (``free_compute_ns``, :mod:`zprof.analysis.time.transfer.launch_delays`). That
compute could have hidden it, so with

    blocked_i = its exposed transfer + that of the collectives that it was queued behind

    hideable = sum over the late ones of min(blocked_i, free_i)       per rank and step
    at most    min(sum of blocked_i + exposed wait, sum of free_i + the largest of them)

because prefetch lets the compute of one unit, also of the last one, hide the gathers of others, too, and with
it the waiting for ranks that come late now and then. If the model of the run knows the saving too, both must
allow it (:mod:`zprof.rules.saving_range`). A gather that could run long before it started waits for the
device, not for its launch, and does not count.

FSDP2 waits for an all_gather of a CPU rank in the call that launches it, prefetched or not (its streams are a
device's; ``torch.distributed.fsdp``, ``FSDPParamGroup.unshard``). There a finding is a note with a saving
from 0 on, because only a private switch makes these calls asynchronous.

Thresholds: 30 % of the all_gathers' transfer exposed (without prefetch all of it is; with it, simulated on a
network that only just suffices, 7 %). The others are ours, from simulated jobs, where 50 % and 115 % held the
truth.
"""

from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Evidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.whatif import Change
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
from zprof.rules.saving_range import BoundedSaving, bound_by_prediction

#: Compute beside an all_gather below this share of its duration does not hide it.
_HIDES_NOTHING_RATIO = 0.10
#: Free compute before an all_gather below this share of its duration would not hide it either.
_WORTH_HIDING_RATIO = 0.10
#: If it could run this long, and this share of its duration, before it started, something else held it.
_STARTS_LATE_NS = 50_000
_STARTS_LATE_RATIO = 0.10
#: All_gathers whose transfer is exposed to a smaller share are prefetched well enough.
_EXPOSED_RATIO = 0.30
#: A saving below this share of the step is not worth a finding.
_MIN_STEP_RATIO = 0.03
#: Minimum share of the hideable time that is saved: gathers beside compute take cores and memory from it.
_SURE_RATIO = 0.5
#: Maximum saving relative to the hideable time: a rank that is not blocked does not wake up and launch again
#: (the reference engine on two gloo ranks gained up to 1.08 times the blocked time).
_MAX_SAVING_RATIO = 1.15
#: With fewer all_gathers per step there is no other unit to prefetch.
_MIN_GATHERS = 3
_MIN_STEPS_FOR_HIGH_CONFIDENCE = 3
_SURE_LATE_RATIO = 0.5
#: With a smaller share of late ones there is prefetch, and something else delays some of them.
_LATE_RATIO = 1 / 3

FIXES = {
    "FSDP2": "for block, following in zip(blocks, blocks[1:]):\n"
    "    block.set_modules_to_forward_prefetch([following])\n"
    "    following.set_modules_to_backward_prefetch([block])",
    "DeepSpeed": '"zero_optimization": {"stage": 3, "overlap_comm": true,\n'
    '                      "stage3_prefetch_bucket_size": 50000000}',
    "reference": "ZeroConfig(stage=3, forward_prefetch=1, backward_prefetch=1)",
    "FSDP1": "FullyShardedDataParallel(model, forward_prefetch=True,\n"
    "                         backward_prefetch=BackwardPrefetch.BACKWARD_PRE)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathers:
    """All_gathers of the window: how many are late, and the cost per step.

    ``launched``: their launches are known. ``bound``: most of them were not seen on all ranks.
    """

    count: int
    late: int
    transfer_ns: float
    exposed_ns: float
    queued_ns: float
    free_ns: float
    hideable_ns: float
    most_ns: float
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
            "no wait for a collective was recorded: whether all_gathers are exposed is unknown",
            "write ::wait ranges (docs/recording.md)",
        )
    seen = _measure(analysis, gathers)
    return _finding(analysis, seen) if _is_worth(seen, mean_wall_ns(analysis)) else None


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
        most_ns=_within_free_compute(
            analysis, _max_saving_per_step(gathers.assign(waited=waited, free=free))
        ),
        launched=bool(gathers["launch_start_ns"].notna().mean() > 0.5),
        bound=not gathers["matched"].mean() > 0.5,
    )


def _is_late(gathers: pd.DataFrame, duration: "pd.Series[int]") -> "pd.Series[bool]":
    """Return a mask of the gathers that hide under next to nothing although there was compute."""
    alone = gathers["hidden_ns"] <= _HIDES_NOTHING_RATIO * duration
    return alone & (gathers["free_compute_ns"] > _WORTH_HIDING_RATIO * duration)


def _is_held(analysis: RunAnalysis, gathers: pd.DataFrame, duration: "pd.Series[int]") -> "pd.Series[bool]":
    """Return a mask of the gathers that a device held although nothing was missing; none on CPU ranks."""
    if analysis.run.device == "cpu":
        return pd.Series(False, index=gathers.index)
    stood = gathers["start_ns"] - gathers["launch_start_ns"] - gathers["dependency_ns"]
    kept = pd.concat([stood, gathers["blocked_ns"]], axis=1).astype("Float64").max(axis=1).fillna(0)
    return ((kept >= _STARTS_LATE_NS) & (kept >= _STARTS_LATE_RATIO * duration)).astype(bool)


def _max_saving_per_step(rows: pd.DataFrame) -> "pd.Series[float]":
    """Return per step what the late gathers block, as far as there is compute to hide it.

    The compute of the last unit, taken as the largest, counts too.
    """
    steps = rows.groupby(["rank", "step"])
    return _MAX_SAVING_RATIO * steps["waited"].sum().clip(upper=steps["free"].sum() + steps["free"].max())


def _within_free_compute(analysis: RunAnalysis, claimed: "pd.Series[float]") -> float:
    """Cut each step's claim to its compute that hides nothing yet; return the mean per rank and step."""
    steps = analysis.steps.set_index(["rank", "step"])
    free = (steps["compute_ns"] - steps["overlapped_ns"]).clip(lower=0)
    return mean_per_step(analysis, claimed.clip(upper=free.reindex(claimed.index).fillna(0)).sum())


def _is_worth(seen: _Gathers, wall: float) -> bool:
    return seen.exposed_ns >= _EXPOSED_RATIO * seen.transfer_ns and seen.hideable_ns >= _MIN_STEP_RATIO * wall


def _finding(analysis: RunAnalysis, seen: _Gathers) -> Finding:
    # with ranks missing the exposed time may be waiting for one of them, which no launch shortens
    low = 0.0 if seen.bound or _waits_at_once(analysis) else _SURE_RATIO * seen.hideable_ns
    high = max(seen.hideable_ns, seen.most_ns)
    expected = _bound_saving(analysis, seen, (low, high))
    return make_finding(
        Cause.NO_PREFETCH,
        sentence="all_gathers begin only when the compute that could have hidden them is done "
        f"(exposed {format_ns(seen.exposed_ns)} of {format_ns(seen.transfer_ns)} per step)",
        evidence=_evidence(seen),
        saving_ns=expected.saving_ns,
        severity=rate_severity(high, mean_wall_ns(analysis)),
        confidence=expected.confidence,
        fix=choose_fix(analysis.training.engine, FIXES),
        disprove="turn prefetch on and record again: if the exposed transfer of all_gathers stays, "
        "the launch is not what delays them",
    )


def _bound_saving(analysis: RunAnalysis, seen: _Gathers, own: tuple[float, float]) -> BoundedSaving:
    confidence = _confidence(analysis, seen)
    if seen.bound or _waits_at_once(analysis):
        return BoundedSaving(saving_ns=own, confidence=confidence)
    return bound_by_prediction(analysis, Change(prefetch=1), own, confidence)


def _evidence(seen: _Gathers) -> list[Evidence]:
    return [
        Evidence(
            key="late_gathers_ratio",
            what="all_gathers that begin after the compute to hide them",
            value=seen.late,
            unit="count",
        ),
        Evidence(
            key="gathers_examined",
            what="all_gathers examined, all ranks and steps",
            value=seen.count,
            unit="count",
        ),
        Evidence(
            key="gather_transfer_per_step",
            what="all_gather transfer per step",
            value=seen.transfer_ns,
            unit="ns",
        ),
        Evidence(key="exposed_part", what="of it exposed", value=seen.exposed_ns, unit="ns"),
        Evidence(
            key="queued_per_step",
            what="blocked while queued behind others per step",
            value=seen.queued_ns,
            unit="ns",
        ),
        Evidence(
            key="compute_before_idle_link_per_step",
            what="compute before them with the link idle per step",
            value=seen.free_ns,
            unit="ns",
        ),
        Evidence(
            key="hideable_per_step",
            what="hideable under that compute per step",
            value=seen.hideable_ns,
            unit="ns",
        ),
    ]


def _confidence(analysis: RunAnalysis, seen: _Gathers) -> Confidence:
    if _waits_at_once(analysis) or seen.late < _LATE_RATIO * seen.count:
        return Confidence.LOW
    enough = analysis.steps["step"].nunique() >= _MIN_STEPS_FOR_HIGH_CONFIDENCE
    sure = enough and seen.launched and not seen.bound
    return Confidence.HIGH if sure and seen.late >= _SURE_LATE_RATIO * seen.count else Confidence.MEDIUM


def _waits_at_once(analysis: RunAnalysis) -> bool:
    """Return True if the engine blocks the host for every all_gather, whenever it launches it."""
    return analysis.run.device == "cpu" and analysis.training.engine.lower() == "fsdp2"
