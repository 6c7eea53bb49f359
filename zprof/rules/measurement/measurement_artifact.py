"""ZP101 measurement_artifact: the recording itself made part of what it shows.

Three signs.  The first collective of the window carries more than a fifth of all waiting: profilers
open up to several milliseconds apart.  The clocks of the ranks are less certain than the waits that
they time.  The ranks' windows hold different steps.  A sign that spoils the answer has high severity.
"""

from collections.abc import Callable
from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Evidence, Finding, Severity
from zprof.model.gaps import Gap
from zprof.model.units import format_ns, format_percent
from zprof.rules.rows import clock_uncertainty_ns, mean_per_step, noise_floor_ns, wall_ns
from zprof.rules.rule import finding, not_tested

_FIRST_RATIO = 0.20
#: Start-up skew from this share of the step on moves the ledger enough to matter.
_MATTERS_RATIO = 0.05
#: A straggler costs a twentieth of a step and must stand ten uncertainties out of the clocks.
_BLIND_RATIO = 0.05 / 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sign:
    sentence: str
    evidence: tuple[Evidence, ...]
    severity: Severity
    confidence: Confidence
    fix: str


def measurement_artifact(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """A note, or with high severity a warning that the times cannot be trusted."""
    if analysis.steps.empty:
        if analysis.run.source == "snapshot":
            return None  # it never has any
        return not_tested(Cause.MEASUREMENT_ARTIFACT, "no step was timed", "record with the time window on")
    signs = [sign for look in _LOOKS if (sign := look(analysis))]
    if not signs:
        return None
    order = list(Severity)
    worst = min(signs, key=lambda sign: order.index(sign.severity))
    return finding(
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
            Evidence(what="steps timed on all ranks", value=len(common), unit="count"),
            Evidence(what="steps timed on any rank", value=len(every), unit="count"),
        ),
        severity=Severity.LOW if common else Severity.HIGH,
        confidence=Confidence.HIGH,
        fix="give every rank the same zprof.steps(...), and call .step() once a step on each",
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
        f"({format_ns(wait)}): wait and transfer cannot be told apart",
        evidence=(
            Evidence(what="clock uncertainty", value=uncertainty, unit="ns"),
            Evidence(what="waiting in collectives, a step", value=wait, unit="ns"),
        ),
        severity=Severity.HIGH if uncertainty > _MATTERS_RATIO * wall else Severity.LOW,
        confidence=Confidence.HIGH if uncertainty > _MATTERS_RATIO * wall else Confidence.LOW,
        fix="record with zprof.record, which pings the ranks at both ends of the window",
    )


def _start_up_skew(analysis: RunAnalysis) -> _Sign | None:
    rows = analysis.collectives
    if rows.empty:
        return None
    total = float(rows["wait_ns"].sum())
    first = float(rows.loc[rows["first_of_window"].astype(bool), "wait_ns"].sum())
    a_step = mean_per_step(analysis, first)
    if first <= _FIRST_RATIO * total or first <= noise_floor_ns(analysis):
        return None
    matters = a_step > _MATTERS_RATIO * wall_ns(analysis)
    return _Sign(
        sentence=f"the window's first collective carries {format_percent(first / total)} of all waiting: "
        f"the ranks' profilers started apart ({format_ns(a_step)} a step of the means)",
        evidence=(
            Evidence(what="waiting in the window's first collective", value=first, unit="ns"),
            Evidence(what="waiting in all collectives, ranks and steps", value=total, unit="ns"),
        ),
        severity=Severity.MEDIUM if matters else Severity.LOW,
        confidence=Confidence.MEDIUM if matters else Confidence.LOW,
        fix="skip more steps before the window: zprof.steps(skip=3), or time more of them",
    )


_LOOKS: tuple[Callable[[RunAnalysis], _Sign | None], ...] = (_windows_differ, _clocks_blind, _start_up_skew)
