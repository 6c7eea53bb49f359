"""ZP101 measurement_artifact: the recording itself is part of what it shows.

There are five signs. A sign that spoils the answer has high severity.

- Waiting for the others' start is more than a fifth of all exposed waiting: profilers open up to several
  milliseconds apart. A rank waits for that in the first collective of the window, beyond its wait in the
  first collective of any other step. If compute hides it, the rank is that much ahead, and waits in a later
  collective of that step. The cost is then the excess of exposed waiting of that step over others, and at
  most the wait of the first collective.
- The same start lies in what was left out before the first step.
- The ranks' clocks are less certain than the waits that they time.
- The ranks' windows hold different steps.
- All ranks are there, but fewer than half of their collectives could be matched.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.ledger import RankTracks
from zprof.model.findings import START_COST_PER_STEP, Cause, Confidence, Evidence, Finding, Severity
from zprof.model.formatting import format_ns, format_percent
from zprof.model.gaps import Gap
from zprof.rules.rule import (
    SURE_RATIO,
    clock_uncertainty_ns,
    make_finding,
    mean_per_step,
    noise_floor_ns,
    untested_gap,
    wall_ns,
)

_FIRST_RATIO = 0.20
#: Below this share of matched collectives, rules about ranks that wait for each other see chance rows.
_MATCHED_RATIO = 0.50
#: Share of launches that a window may cut off at its start.
_UNLAUNCHED_RATIO = 0.01
#: Start-up skew from this share of the step changes the ledger enough to matter.
_MATTERS_RATIO = 0.05
#: From this share it is reported before all causes: the means hold more of it than most causes cost.
_LEADS_RATIO = 0.10
#: A straggler costs a twentieth of a step and must exceed the clock uncertainty tenfold.
_BLIND_RATIO = 0.05 / 10
#: The cost of a start, by which the finding is ranked among causes.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sign:
    sentence: str
    evidence: tuple[Evidence, ...]
    severity: Severity
    confidence: Confidence
    fix: str


def measurement_artifact(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a note, or with high severity a warning that the times cannot be trusted."""
    if analysis.steps.empty:
        if analysis.run.source == "snapshot":
            return None  # a snapshot never has steps
        return untested_gap(Cause.MEASUREMENT_ARTIFACT, "no step was timed", "record with the time window on")
    signs = [sign for look in _SIGNS if (sign := look(analysis))]
    if not signs:
        return None
    order = list(Severity)
    worst = min(signs, key=lambda sign: order.index(sign.severity))
    return make_finding(
        Cause.MEASUREMENT_ARTIFACT,
        sentence=worst.sentence,
        evidence=[fact for sign in signs for fact in sign.evidence],
        saving_ns=(0, 0),
        severity=worst.severity,
        confidence=worst.confidence,
        fix=worst.fix,
        disprove="record again: an artifact changes from recording to recording, a cause stays",
    )


def _windows_differ(analysis: RunAnalysis) -> _Sign | None:
    steps = analysis.steps.groupby("rank")["step"].agg(frozenset)
    common = frozenset.intersection(*steps)
    every = frozenset().union(*steps)
    if common == every:
        return None
    return _Sign(
        sentence=f"the ranks' windows differ: {len(common)} of {len(every)} steps were timed on all of them",
        evidence=(
            Evidence(
                key="steps_on_all_ranks", what="steps timed on all ranks", value=len(common), unit="count"
            ),
            Evidence(key="steps_on_any_rank", what="steps timed on any rank", value=len(every), unit="count"),
        ),
        severity=Severity.LOW if common else Severity.HIGH,
        confidence=Confidence.LOW,
        fix="give every rank the same zprof.steps(...), and call .step() once per step on each",
    )


def _clocks_blind(analysis: RunAnalysis) -> _Sign | None:
    if analysis.collectives.empty or analysis.time.alignment is None:
        return None
    uncertainty = clock_uncertainty_ns(analysis)
    wait = mean_per_step(analysis, analysis.collectives["wait_ns"].sum())
    wall = wall_ns(analysis)
    if uncertainty <= wait or uncertainty <= _BLIND_RATIO * wall:
        return None
    return _Sign(
        sentence=f"the ranks' clocks are known to {format_ns(uncertainty)}, more than all waiting of a step "
        f"({format_ns(wait)}): wait and transfer cannot be separated",
        evidence=(
            Evidence(key="clock_uncertainty", what="clock uncertainty", value=uncertainty, unit="ns"),
            Evidence(key="wait_per_step", what="waiting in collectives per step", value=wait, unit="ns"),
        ),
        severity=Severity.HIGH if uncertainty > _MATTERS_RATIO * wall else Severity.LOW,
        confidence=Confidence.HIGH if uncertainty > _MATTERS_RATIO * wall else Confidence.LOW,
        fix="record with zprof.record, which pings the ranks at both ends of the window",
    )


def _start_up_skew(analysis: RunAnalysis) -> _Sign | None:
    rows = analysis.collectives
    if rows.empty:
        return None
    total = float(rows["exposed_wait_ns"].sum())
    costs = _start_costs_ns(rows)
    first = float(costs.sum())
    if first <= _FIRST_RATIO * total or first <= noise_floor_ns(analysis):
        return None
    a_step = float(costs.max()) / max(1, analysis.steps["step"].nunique())
    wall = wall_ns(analysis)
    confidence = Confidence.MEDIUM if a_step > SURE_RATIO * wall else Confidence.LOW
    if a_step > _LEADS_RATIO * wall:
        confidence = Confidence.HIGH
    return _Sign(
        sentence=f"{format_percent(first / total)} of all exposed waiting begins in the window's first "
        f"collective: the ranks' profilers started apart (the rank that waits longest loses "
        f"{format_ns(a_step)} per step)",
        evidence=(
            Evidence(
                key="first_wait_summed",
                what="exposed wait for the others' start, summed over ranks",
                value=first,
                unit="ns",
            ),
            Evidence(
                key="exposed_wait_summed",
                what="exposed wait in all collectives, summed over ranks and steps",
                value=total,
                unit="ns",
            ),
            Evidence(
                key=START_COST_PER_STEP,
                what="lost per step by the rank that waits longest for the others' start",
                value=a_step,
                unit="ns",
            ),
        ),
        severity=Severity.MEDIUM if a_step > _MATTERS_RATIO * wall else Severity.LOW,
        confidence=confidence,
        fix="skip more steps before the window: zprof.steps(skip=3), or time more of them",
    )


def _start_costs_ns(rows: pd.DataFrame) -> "pd.Series[float]":
    """Return the exposed wait of each rank for the others' start.

    Only collectives that are the first on all of their ranks count. If an event of a rank is lost, its first
    recorded collective is a later one, and waiting there is not start-up.
    """
    first = rows["first_of_window"].astype(bool)
    opening = rows[first.groupby(rows["instance"]).transform("all") & rows["matched"].astype(bool)]
    opens = rows["step"].isin(opening["step"])
    firsts = rows.groupby(["rank", "group", "step"], observed=True)["start_ns"].idxmin()
    later = rows[~opens]
    later_firsts = later[later.index.isin(firsts)]
    at_once = _sum_beyond_usual(opening, later_firsts, "exposed_wait_ns").clip(lower=0.0)
    if later_firsts.empty:
        return at_once
    waited = _sum_beyond_usual(opening, later_firsts, "wait_ns")
    exposed = _sum_beyond_usual(rows[opens], later, "exposed_wait_ns")
    return at_once.combine(waited.combine(exposed, min, fill_value=0.0), max, fill_value=0.0)


def _sum_beyond_usual(rows: pd.DataFrame, later: pd.DataFrame, column: str) -> "pd.Series[float]":
    """Return each rank's sum less the usual sum of the rank that has most in a later step.

    The reference is the largest rank because another rank may wait in each step, for one that is late in
    turn.
    """
    usual = (
        later.groupby(["step", "rank"])[column].sum().groupby("step").max().median() if len(later) else 0.0
    )
    of_ranks = rows.groupby("rank")
    beyond: pd.Series[float] = of_ranks[column].sum() - float(usual) * of_ranks["step"].nunique()
    return beyond


def _start_left_out(analysis: RunAnalysis) -> _Sign | None:
    """Return the sign of a start before the first step, which the means here leave out."""
    if analysis.steps.empty or not analysis.tracks:
        return None
    walls = analysis.steps.groupby("rank")["wall_ns"].median()
    before = {tracks.rank: _left_out_ns(tracks) for tracks in analysis.tracks}
    lost = max(
        min(tracks.wait_before_ns, before[tracks.rank] - float(walls.get(tracks.rank, 0.0)))
        for tracks in analysis.tracks
    )
    recorded = analysis.steps["step"].nunique() + 1
    if lost <= noise_floor_ns(analysis) or lost <= SURE_RATIO * recorded * wall_ns(analysis):
        return None
    return _Sign(
        sentence=f"the ranks started apart: before the first step a rank waits {format_ns(lost)} for the "
        "others' start, which no figure here holds, and any mean over the whole recording does",
        evidence=(
            Evidence(
                key="wait_before_first_step",
                what="wait for the others' start before the first step, longest rank",
                value=lost,
                unit="ns",
            ),
            Evidence(
                key="recorded_before_first_step",
                what="recorded before the first step",
                value=max(before.values()),
                unit="ns",
            ),
        ),
        severity=Severity.LOW,
        confidence=Confidence.MEDIUM,
        fix="call prof.step() at the end of each step, and compare only whole steps",
    )


def _left_out_ns(tracks: RankTracks) -> float:
    """Return how long a rank was recorded before its first step."""
    if not len(tracks.coverage) or not len(tracks.steps):
        return 0.0
    return float(tracks.steps.begin_ns[0] - tracks.coverage[0, 0])


def matched_ratio(analysis: RunAnalysis) -> float | None:
    """Return the share of collectives that were matched across ranks, None if ranks are missing."""
    rows = analysis.collectives
    rows = rows[rows["group_size"] != 1]
    if rows.empty or len(analysis.run.ranks_loaded) < analysis.run.world_size:
        return None
    return float(rows["matched"].astype(bool).mean())


def do_recordings_match(analysis: RunAnalysis) -> bool:
    """Return whether at least half of the collectives were matched; True if that is unknown."""
    matched = matched_ratio(analysis)
    return matched is None or matched >= _MATCHED_RATIO


def has_lost_events(analysis: RunAnalysis) -> bool:
    """Return whether recordings do not match because events are lost, launches of collectives among them."""
    if analysis.collectives.empty or do_recordings_match(analysis):
        return False
    return float(analysis.collectives["launch_start_ns"].isna().mean()) > _UNLAUNCHED_RATIO


def _unmatched_collectives(analysis: RunAnalysis) -> _Sign | None:
    """Return the sign that recordings of all ranks hardly have a collective in common."""
    matched = matched_ratio(analysis)
    if matched is None or do_recordings_match(analysis):
        return None
    return _Sign(
        sentence=f"the ranks' recordings do not fit together: {format_percent(matched)} of their collectives "
        "were matched, and without that wait and transfer cannot be separated",
        evidence=(
            Evidence(
                key="collectives_matched",
                what="collectives matched across ranks",
                value=matched,
                unit="ratio",
            ),
            Evidence(
                key="collectives_total",
                what="collectives of all ranks",
                value=len(analysis.collectives),
                unit="count",
            ),
        ),
        severity=Severity.HIGH,
        confidence=Confidence.LOW,
        fix="open the window in the same step on all ranks, after a barrier, and skip its first steps: "
        "zprof.steps(skip=3)",
    )


_SIGNS: tuple[Callable[[RunAnalysis], _Sign | None], ...] = (
    _windows_differ,
    _unmatched_collectives,
    _clocks_blind,
    _start_up_skew,
    _start_left_out,
)
