"""ZP301 straggler_rank: one rank arrives late at collectives, step after step, and the others wait.

Lateness of the last rank at a collective: its start minus the median start of the others, on the
common clock.  Per step and rank the worst lateness; the rank's *skew* is the median of that over the
steps, and equals a delay planted on that rank (seen: 40 ms planted, 40.8 and 40.5 ms recovered).

Some rank is always last, so "last" alone accuses nobody.  The skew must stand out from the noise
floor, from the clocks' uncertainty and from the other ranks' own skew, be the worst in most steps, and
cost something.  The cost is counted over all waiting, hidden waiting included: where communication
only just fits under compute, the others' waits are hidden and the delay shows as exposed transfer.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Evidence, Finding
from zprof.model.gaps import Gap
from zprof.model.units import format_ns
from zprof.rules.arrivals import Arrivals, arrivals
from zprof.rules.rows import (
    INSTANCE,
    clock_uncertainty_ns,
    has_no_collectives,
    noise_floor_ns,
    steady,
    wall_ns,
)
from zprof.rules.rule import finding, not_tested, severity_of

_MIN_STEPS = 3
_SURE_STEPS = 6
_ABOVE_NOISE = 3
_ABOVE_CLOCK = 10
_ABOVE_OTHERS = 2
_LAST_RATIO = 0.60
#: Of the step: below the first no finding, below the second one of low confidence.
_WORTH_RATIO = 0.02
_COST_RATIO = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspect:
    """The rank with the largest skew.  Ratios are of steps and of late collectives."""

    rank: int
    skew_ns: float
    floor_ns: float
    steps_ratio: float
    late_ratio: float
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """What the suspect loses a step, and what the other ranks then wait: the median of them."""

    delay_ns: float
    wait_ns: float
    exposed_ns: float
    transfer_ns: float


def straggler_rank(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Finding where one rank is late at collectives and the others pay for it."""
    if has_no_collectives(analysis):
        return not_tested(Cause.STRAGGLER_RANK, "no collective was recorded", "record the time window")
    rows = steady(analysis)
    rows = rows[rows["group_size"] > 1]
    if rows.empty:
        return None
    matched = rows[rows["matched"].astype(bool)]
    missing = _missing_input(analysis, matched)
    if missing:
        return missing
    seen = arrivals(matched)
    suspect = _suspect(analysis, seen)
    cost = _cost(analysis, matched, seen, suspect)
    if not _is_there(suspect, cost, wall_ns(analysis)):
        return None
    return _finding(analysis, suspect, cost)


def _missing_input(analysis: RunAnalysis, matched: pd.DataFrame) -> Gap | None:
    steps = matched["step"].nunique()
    if steps >= _MIN_STEPS:
        return None
    if len(analysis.run.ranks_loaded) < analysis.run.world_size:
        reason = "ranks are missing: who came last is not known where not all were seen"
        return not_tested(Cause.STRAGGLER_RANK, reason, "record again with all ranks alive")
    reason = f"collectives of all ranks were matched in {steps} steps, {_MIN_STEPS} are needed"
    return not_tested(Cause.STRAGGLER_RANK, reason, "record more steps: zprof.steps(time=8)")


def _suspect(analysis: RunAnalysis, seen: Arrivals) -> _Suspect:
    worst = seen.worst_per_step()
    skews = worst.median(axis=0)
    rank = seen.ranks[int(np.argmax(skews.to_numpy()))]
    others = float(skews.drop(rank).median())
    floor = max(
        _ABOVE_NOISE * noise_floor_ns(analysis),
        _ABOVE_CLOCK * clock_uncertainty_ns(analysis),
        _ABOVE_OTHERS * others,
    )
    late = seen.table[seen.table["late_ns"] > floor]
    blamed_steps = (worst.idxmax(axis=1) == rank) & (worst[rank] > floor)
    return _Suspect(
        rank=rank,
        skew_ns=float(skews[rank]),
        floor_ns=floor,
        steps_ratio=float(blamed_steps.mean()),
        late_ratio=float((late["last_rank"] == rank).mean()) if len(late) else 0.0,
        steps=len(worst),
    )


def _cost(analysis: RunAnalysis, matched: pd.DataFrame, seen: Arrivals, suspect: _Suspect) -> _Cost:
    table = seen.table
    blamed = table[(table["last_rank"] == suspect.rank) & (table["late_ns"] > suspect.floor_ns)]
    waiting = matched[matched["rank"] != suspect.rank].merge(blamed[INSTANCE], on=INSTANCE)
    sums = waiting.groupby("rank")[["wait_ns", "exposed_wait_ns"]].sum()
    steps = max(1, suspect.steps)
    others = [rank for rank in analysis.time.per_rank if rank.rank != suspect.rank]
    return _Cost(
        delay_ns=seen.delay_ns(suspect.rank),
        wait_ns=float(sums["wait_ns"].median()) / steps if len(sums) else 0.0,
        exposed_ns=float(sums["exposed_wait_ns"].median()) / steps if len(sums) else 0.0,
        transfer_ns=float(np.median([rank.exposed_transfer_ns for rank in others])) if others else 0.0,
    )


def _is_there(suspect: _Suspect, cost: _Cost, wall: float) -> bool:
    return (
        suspect.skew_ns > suspect.floor_ns
        and suspect.steps_ratio >= _LAST_RATIO
        and suspect.late_ratio >= _LAST_RATIO
        and max(suspect.skew_ns, cost.delay_ns) >= _WORTH_RATIO * wall
        and _saving(cost)[1] > 0
    )


def _saving(cost: _Cost) -> tuple[float, float]:
    """At least most of the exposed waiting; at most the delay, as far as it shows as exposed time."""
    return (0.7 * cost.exposed_ns, min(cost.delay_ns, cost.exposed_ns + cost.transfer_ns))


def _finding(analysis: RunAnalysis, suspect: _Suspect, cost: _Cost) -> Finding:
    wall = wall_ns(analysis)
    share = round(suspect.steps_ratio * suspect.steps)
    saving = _saving(cost)
    return finding(
        Cause.STRAGGLER_RANK,
        sentence=f"rank {suspect.rank} arrives {format_ns(suspect.skew_ns)} late at collectives in "
        f"{share} of {suspect.steps} steps, and the others wait "
        f"(exposed {format_ns(cost.exposed_ns)} of {format_ns(cost.wait_ns)} a step)",
        evidence=_evidence(suspect, cost),
        saving_ns=saving,
        severity=severity_of(saving[1], wall),
        confidence=_confidence(suspect, cost, wall),
        fix=f"look at rank {suspect.rank}: CPU and GPU clocks, neighbours on its host, its data loader\n"
        "same operators slower there: the device; same operators but later: the host or the data",
        disprove=f"move rank {suspect.rank}'s work to another host or device and record again: a straggler "
        "stays with the host, an uneven load moves with the rank",
    )


def _evidence(suspect: _Suspect, cost: _Cost) -> list[Evidence]:
    rank = suspect.rank
    return [
        Evidence(what="arrival skew, median over steps", value=suspect.skew_ns, unit="ns", rank=rank),
        Evidence(what="skew that noise and clocks can make", value=suspect.floor_ns, unit="ns"),
        Evidence(what="steps in which it is the latest", value=suspect.steps_ratio, unit="ratio", rank=rank),
        Evidence(
            what="late collectives in which it is last", value=suspect.late_ratio, unit="ratio", rank=rank
        ),
        Evidence(what="its delays a step, all collectives", value=cost.delay_ns, unit="ns", rank=rank),
        Evidence(what="others wait for it a step, exposed", value=cost.exposed_ns, unit="ns"),
        Evidence(what="others wait for it a step, hidden too", value=cost.wait_ns, unit="ns"),
    ]


def _confidence(suspect: _Suspect, cost: _Cost, wall: float) -> Confidence:
    if max(suspect.skew_ns, cost.delay_ns) < _COST_RATIO * wall:
        return Confidence.LOW
    sure = suspect.steps >= _SURE_STEPS and suspect.steps_ratio >= 0.8
    return Confidence.HIGH if sure else Confidence.MEDIUM
