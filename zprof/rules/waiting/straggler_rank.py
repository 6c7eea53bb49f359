"""ZP301 straggler_rank: one rank arrives late at collectives, step after step, and the others wait.

Lateness of the last rank at a collective: its start minus the median start of the others, on the
common clock.  Per step and rank the worst lateness; the rank's *skew* is the median of that over the
steps, and equals a delay planted on that rank (seen: 40 ms planted, 40.8 and 40.5 ms recovered).

Some rank is always last, so "last" alone accuses nobody.  The skew must stand out from the noise
floor, from the clocks' uncertainty and from the other ranks' own skew, be the worst in more steps than
chance makes likely, and cost something.  Above low confidence its excess over the others is also more
than three standard errors of the median.

Exposed wait alone is not the cost: where communication only just fits under compute, the others' waits
are hidden and the delay shows as exposed transfer.  So the upper bound is the rank's *delay*, how much
longer than the others it is busy with itself: wall minus exposed wait and transfer, against the median
of the others, median over the steps.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Evidence, Finding
from zprof.model.gaps import Gap
from zprof.model.units import format_ns
from zprof.rules.rows import INSTANCE, has_no_collectives, steady, wall_ns
from zprof.rules.rule import finding, not_tested, severity_of
from zprof.rules.waiting.arrivals import Arrivals, arrivals
from zprof.rules.waiting.suspect import Suspect, suspect_of

_MIN_STEPS = 3
_LAST_RATIO = 0.60
#: Chance of noise above which nobody is named.
_MAX_CHANCE = 0.10
#: Chance of noise, and excess over its error, for high and for medium confidence.
_SURE = (0.025, 1.5)
_LIKELY = (_MAX_CHANCE, 2.0)
#: Of the step: below the first no finding, below the second one of low confidence.
_WORTH_RATIO = 0.02
_COST_RATIO = 0.05
#: Of the exposed wait: without the late rank, some other rank is the last.
_SURE_RATIO = 0.7


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
    seen = arrivals(matched)
    missing = _missing_input(analysis, seen)
    if missing:
        return missing
    suspect = suspect_of(analysis, seen)
    cost = _cost(analysis, matched, seen, suspect)
    if not _is_there(suspect, cost, wall_ns(analysis)):
        return None
    if _passed_on(matched, suspect.rank):
        reason = f"rank {suspect.rank} is late because of another rank, which few were compared with"
        return not_tested(Cause.STRAGGLER_RANK, reason, "record again, and see what was not matched")
    return _finding(analysis, suspect, cost)


def _passed_on(matched: pd.DataFrame, rank: int) -> bool:
    """Whether most of the waiting that the rank is blamed for began on another rank."""
    waits = matched[matched["blamed_rank"] == rank]
    elsewhere = waits.loc[waits["origin_rank"] != rank, "wait_ns"].sum()
    return bool(elsewhere > waits["wait_ns"].sum() / 2)


def _missing_input(analysis: RunAnalysis, seen: Arrivals) -> Gap | None:
    if len(analysis.run.ranks_loaded) < analysis.run.world_size:
        # Groups that are whole do not help: a rank that is late there may only pass a delay on.
        reason = "ranks are missing: who came last is not known where not all were seen"
        return not_tested(Cause.STRAGGLER_RANK, reason, "record, or import, all ranks")
    steps = seen.table["step"].nunique()
    if steps >= _MIN_STEPS:
        return None
    reason = f"collectives of all ranks were matched in {steps} steps, {_MIN_STEPS} are needed"
    return not_tested(Cause.STRAGGLER_RANK, reason, "record more steps")


def _cost(analysis: RunAnalysis, matched: pd.DataFrame, seen: Arrivals, suspect: Suspect) -> _Cost:
    table = seen.table
    blamed = table[(table["last_rank"] == suspect.rank) & (table["late_ns"] > suspect.floor_ns)]
    waiting = matched[matched["rank"] != suspect.rank].merge(blamed[[INSTANCE]], on=INSTANCE)
    sums = waiting.groupby("rank")[["wait_ns", "exposed_wait_ns"]].sum()
    steps = max(1, suspect.steps)
    others = [rank for rank in analysis.time.per_rank if rank.rank != suspect.rank]
    return _Cost(
        delay_ns=_delay_ns(analysis, suspect.rank),
        wait_ns=float(sums["wait_ns"].median()) / steps if len(sums) else 0.0,
        exposed_ns=float(sums["exposed_wait_ns"].median()) / steps if len(sums) else 0.0,
        transfer_ns=float(np.median([rank.exposed_transfer_ns for rank in others])) if others else 0.0,
    )


def _delay_ns(analysis: RunAnalysis, rank: int) -> float:
    """How much longer than the other ranks this one is busy with itself in a step."""
    steps = analysis.steps
    own = steps.assign(own=steps["wall_ns"] - steps["exposed_wait_ns"] - steps["exposed_transfer_ns"])
    table = own.pivot_table(index="step", columns="rank", values="own")
    if rank not in table.columns or table.shape[1] < 2:
        return 0.0
    longer = table[rank] - table.drop(columns=rank).median(axis=1)
    return max(0.0, float(longer.median()))


def _is_there(suspect: Suspect, cost: _Cost, wall: float) -> bool:
    return (
        suspect.skew_ns > suspect.floor_ns
        and suspect.steps_ratio >= _LAST_RATIO
        and suspect.chance < _MAX_CHANCE
        and suspect.late_ratio >= _LAST_RATIO
        and max(suspect.skew_ns, cost.delay_ns) >= _WORTH_RATIO * wall
        and _saving(cost)[1] > 0
    )


def _saving(cost: _Cost) -> tuple[float, float]:
    """At least most of the exposed waiting; at most the delay, as far as it shows as exposed time."""
    high = min(max(cost.delay_ns, cost.exposed_ns), cost.exposed_ns + cost.transfer_ns)
    return (_SURE_RATIO * cost.exposed_ns, high)


def _finding(analysis: RunAnalysis, suspect: Suspect, cost: _Cost) -> Finding:
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


def _evidence(suspect: Suspect, cost: _Cost) -> list[Evidence]:
    rank = suspect.rank
    return [
        Evidence(what="arrival skew, median over steps", value=suspect.skew_ns, unit="ns", rank=rank),
        Evidence(what="skew that noise and clocks can make", value=suspect.floor_ns, unit="ns"),
        Evidence(what="steps in which it is the latest", value=suspect.steps_ratio, unit="ratio", rank=rank),
        Evidence(what="chance that noise does this", value=suspect.chance, unit="ratio"),
        Evidence(
            what="late collectives in which it is last", value=suspect.late_ratio, unit="ratio", rank=rank
        ),
        Evidence(what="busy with itself longer than the others", value=cost.delay_ns, unit="ns", rank=rank),
        Evidence(what="others wait for it a step, exposed", value=cost.exposed_ns, unit="ns"),
        Evidence(what="others wait for it a step, hidden too", value=cost.wait_ns, unit="ns"),
    ]


def _confidence(suspect: Suspect, cost: _Cost, wall: float) -> Confidence:
    if max(suspect.skew_ns, cost.delay_ns) < _COST_RATIO * wall:
        return Confidence.LOW
    for confidence, (chance, errors) in ((Confidence.HIGH, _SURE), (Confidence.MEDIUM, _LIKELY)):
        if suspect.chance < chance and suspect.excess_ns > errors * suspect.excess_error_ns:
            return confidence
    return Confidence.LOW
