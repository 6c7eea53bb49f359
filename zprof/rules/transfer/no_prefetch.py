"""ZP401 no_prefetch: all_gathers are launched when their result is already needed.

An all_gather of the unit k+1 can run under the compute of unit k if it is launched before that.
Signal of one all_gather: next to no compute between its launch and the wait for it, although there was
compute between the previous wait and this launch.  That compute is what could have hidden it, so

    saving <= sum over such all_gathers of min(exposed transfer + queue, time since the previous wait)

per rank and step, and never more than the step's compute that hides nothing yet.  Queue: the host
blocks while the all_gather still stands behind other collectives on the link.
"""

from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence, Evidence, Finding
from zprof.model.gaps import Gap
from zprof.model.units import format_ns
from zprof.rules.rows import has_no_collectives, mean_per_step, of_kind, queued_ns, steady, wall_ns
from zprof.rules.rule import finding, fix_for, not_tested, severity_of

#: Compute under an all_gather below this share of its duration hides nothing worth the name.
_HIDES_NOTHING_RATIO = 0.10
#: All_gathers whose transfer is exposed to a smaller share than this are prefetched well enough.
_EXPOSED_RATIO = 0.30
#: A saving below this share of the step is not worth a finding.
_WORTH_RATIO = 0.03
#: What is left of the upper bound at least: all_gathers launched early share the link with
#: reduce_scatters, and the compute that hides them slows down where the two share cores.
_SURE_RATIO = 0.5
_TIMES = ["launch_start_ns", "launch_end_ns", "wait_start_ns", "wait_end_ns", "compute_before_wait_ns"]

_FIXES = {
    "FSDP2": "for block, following in zip(blocks, blocks[1:]):\n"
    "    block.set_modules_to_forward_prefetch([following])\n"
    "    following.set_modules_to_backward_prefetch([block])",
    "DeepSpeed": '"zero_optimization": {"stage": 3, "overlap_comm": true,\n'
    '                      "stage3_prefetch_bucket_size": 50000000}',
    "reference": "ZeroConfig(stage=3, forward_prefetch=1, backward_prefetch=1)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathers:
    """All_gathers of the window: how many come too late, and per step what that costs."""

    count: int
    late: int
    transfer_ns: float
    exposed_ns: float
    queued_ns: float
    hideable_ns: float


def no_prefetch(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Finding where all_gathers are exposed for want of an earlier launch."""
    if has_no_collectives(analysis):
        return not_tested(Cause.NO_PREFETCH, "no collective was recorded", "record with the time window on")
    gathers = of_kind(steady(analysis), CollectiveKind.ALL_GATHER)
    if gathers.empty:
        return None
    timed = gathers.dropna(subset=_TIMES)
    if timed.empty:
        return not_tested(
            Cause.NO_PREFETCH,
            "no all_gather has both its launch and the wait for it",
            "on CPU ranks an engine can write launch and wait ranges; device ranks are not judged yet",
        )
    seen = _measure(analysis, timed)
    return _finding(analysis, seen) if _is_there(seen, wall_ns(analysis)) else None


def _measure(analysis: RunAnalysis, gathers: pd.DataFrame) -> _Gathers:
    rows = gathers.sort_values(["rank", "step", "launch_start_ns"]).astype(dict.fromkeys(_TIMES, "int64"))
    duration = (rows["end_ns"] - rows["start_ns"]).clip(lower=1)
    previous_wait = rows.groupby(["rank", "step"])["wait_end_ns"].shift()
    before = (rows["launch_start_ns"] - previous_wait).clip(lower=0).fillna(0)
    late = (rows["compute_before_wait_ns"] <= _HIDES_NOTHING_RATIO * duration) & (before > 0)
    blocked = (rows["exposed_transfer_ns"] + queued_ns(rows)).where(late, 0)
    hideable = blocked.clip(upper=before).groupby([rows["rank"], rows["step"]]).sum()
    return _Gathers(
        count=len(rows),
        late=int(late.sum()),
        transfer_ns=mean_per_step(analysis, rows["transfer_ns"].sum()),
        exposed_ns=mean_per_step(analysis, rows["exposed_transfer_ns"].sum()),
        queued_ns=mean_per_step(analysis, queued_ns(rows).sum()),
        hideable_ns=mean_per_step(analysis, _within_free_compute(analysis, hideable)),
    )


def _within_free_compute(analysis: RunAnalysis, hideable: "pd.Series[float]") -> float:
    """Cut each step's claim to its compute that hides no collective yet."""
    steps = analysis.steps.set_index(["rank", "step"])
    free = (steps["compute_ns"] - steps["overlapped_ns"]).clip(lower=0)
    return float(hideable.clip(upper=free.reindex(hideable.index).fillna(0)).sum())


def _is_there(seen: _Gathers, wall: float) -> bool:
    return seen.exposed_ns >= _EXPOSED_RATIO * seen.transfer_ns and seen.hideable_ns >= _WORTH_RATIO * wall


def _finding(analysis: RunAnalysis, seen: _Gathers) -> Finding:
    return finding(
        Cause.NO_PREFETCH,
        sentence="all_gathers are waited for as soon as they are launched "
        f"(exposed {format_ns(seen.exposed_ns)} of {format_ns(seen.transfer_ns)} a step)",
        evidence=_evidence(seen),
        saving_ns=(_SURE_RATIO * seen.hideable_ns, seen.hideable_ns),
        severity=severity_of(seen.hideable_ns, wall_ns(analysis)),
        confidence=_confidence(analysis, seen),
        fix=fix_for(analysis.training.engine, _FIXES),
        disprove="turn prefetch on and record again: if the exposed transfer of all_gathers stays, "
        "the launch is not what delays them",
    )


def _evidence(seen: _Gathers) -> list[Evidence]:
    return [
        Evidence(what="all_gathers launched after the compute to hide them", value=seen.late, unit="count"),
        Evidence(what="all_gathers looked at, all ranks and steps", value=seen.count, unit="count"),
        Evidence(what="all_gather transfer a step", value=seen.transfer_ns, unit="ns"),
        Evidence(what="of it exposed", value=seen.exposed_ns, unit="ns"),
        Evidence(what="blocked while queued behind others, a step", value=seen.queued_ns, unit="ns"),
        Evidence(what="hideable under that compute, a step", value=seen.hideable_ns, unit="ns"),
    ]


def _confidence(analysis: RunAnalysis, seen: _Gathers) -> Confidence:
    enough = analysis.steps["step"].nunique() >= 3
    return Confidence.HIGH if enough and seen.late >= 0.5 * seen.count else Confidence.MEDIUM
