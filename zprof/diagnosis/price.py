"""Give each finding the saving of its fix: of the step with it and without (:mod:`zprof.step.predict`).

Late launches move forward, dependent work follows, and hidden work may become exposed. A finding whose cause
has no edit, or of whose edit nothing in this run can be played, keeps the saving of its signs.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from zprof.causes.cause import MIN_GAIN_RATIO, Cause, Sign, rate_severity
from zprof.diagnosis.claims import change_saving
from zprof.model.findings import Confidence, Finding, SavingNote, Severity
from zprof.step.edits import changes_graph
from zprof.step.predict import PlayedStep, widen_gains
from zprof.step.tasks import Graph

#: A gain below this share of the step means that the cause costs nothing.
_NEGLIGIBLE_RATIO = 0.01


class Priced(NamedTuple):
    """A finding, None if it is dropped; ``is_played``: its saving is that of the played step."""

    finding: Finding | None
    is_played: bool


def price_finding(step: PlayedStep, finding: Finding, cause: Cause) -> Priced:
    """Return the finding with the saving of its fix, or unchanged if nothing of the step is its cause.

    It is dropped if only the step shows what it costs and the step without it takes as long, or if the step
    shows another reason for its signs.
    """
    graph = step.graph
    if graph is None or finding.saving_ns[1] <= 0:
        return Priced(finding, is_played=False)
    if step.has_kernels and cause.is_refuted is not None and cause.is_refuted(step):
        return Priced(None, is_played=True)
    gains = list_gains(step, finding, cause)
    if not gains:  # nothing of the step is the cause: it cannot be said what it costs
        return Priced(finding, is_played=False)
    low, high = widen_gains(min(gains), max(gains), step.step_ns)
    is_negligible = high < _NEGLIGIBLE_RATIO * step.step_ns
    # one way in which the fix may turn out gains nothing
    confidence = Confidence.LOW if min(gains) <= 0 else finding.confidence
    if cause.is_priced_by_step:
        if step.has_kernels and is_negligible and finding.severity is Severity.LOW:
            return Priced(None, is_played=True)
        finding = replace(finding, severity=rate_severity(high, step.step_ns))
    if is_negligible:  # the step without the cause takes as long: its signs are real, but cost nothing
        noted = change_saving(finding, (0.0, high), SavingNote.GAINS_NOTHING, confidence=Confidence.LOW)
        return Priced(noted, is_played=True)
    # one step does not show whether its content recurs
    is_significant = min(gains) > 0 and max(gains) >= MIN_GAIN_RATIO * step.step_ns and graph.steps > 1
    if is_significant and step.has_kernels and confidence is Confidence.LOW:
        is_note = cause.is_note is not None and cause.is_note(step.analysis)
        confidence = Confidence.LOW if is_note else Confidence.MEDIUM
    priced = replace(finding, saving_ns=(int(low), int(high)), confidence=confidence)
    return Priced(priced, is_played=True)


def list_gains(step: PlayedStep, finding: Finding, cause: Cause) -> list[float]:
    """Return the gain of each way in which the fix may turn out, in ns per step; empty if none can be played.

    Of ranks that are spans of a thread, a change of the schedule of units is played by these units.
    """
    if cause.list_changes is not None and not step.has_kernels:
        changes = cause.list_changes(step.analysis, finding)
        known = [gain for change in changes if (gain := step.gain_of_change_ns(change)) is not None]
        if known:
            return known
    changed = _apply_edit(step, finding, cause)
    return [gain for graph in changed if (gain := step.gain_ns(graph)) is not None]


def _apply_edit(step: PlayedStep, finding: Finding, cause: Cause) -> list[Graph]:
    """Return the steps with the fix; empty if the edit finds nothing to change in this run.

    An edit that returns the graph itself says that the run has the fix already.
    """
    graph = step.graph
    if graph is None or cause.remove is None:
        return []
    return [
        changed
        for changed in cause.remove(step.analysis, graph, finding)
        if changed is graph or changes_graph(graph, changed)
    ]


def drop_explained(
    step: PlayedStep, findings: Sequence[Finding], causes: Mapping[str, Cause]
) -> list[Finding]:
    """Drop findings that are only the effect of another one: fixed after it, they gain almost nothing."""
    if not step.has_kernels:
        return list(findings)
    sure = [finding for finding in findings if finding.confidence is not Confidence.LOW]
    explained = {
        other.cause
        for finding in sure
        for other in findings
        if causes[finding.cause].explains(causes[other.cause])
        and not (causes[other.cause].is_priced_by_step and other in sure)
        and _is_explained(step, finding, other, causes)
    }
    return [finding for finding in findings if finding.cause not in explained]


def move_after_stalls(
    step: PlayedStep, findings: Sequence[Finding], causes: Mapping[str, Cause]
) -> tuple[Finding, ...]:
    """Move host waits after the stalls that explain them, with a note: after these, they gain nothing."""
    ordered = list(findings)
    stalls = [finding for finding in findings if causes[finding.cause].is_stall]
    for waits in [finding for finding in findings if causes[finding.cause].sign is Sign.HOST_WAITS]:
        explaining = [stall for stall in stalls if _is_explained(step, stall, waits, causes)]
        if not explaining:
            continue
        noted = replace(waits, saving_notes=(*waits.saving_notes, SavingNote.EXPOSES_A_STALL))
        first = ordered.index(waits)
        last = max(ordered.index(stall) for stall in explaining)
        ordered[first] = noted
        if last > first:
            ordered.insert(last, ordered.pop(first))
    return tuple(ordered)


def _is_explained(step: PlayedStep, by: Finding, other: Finding, causes: Mapping[str, Cause]) -> bool:
    remove = causes[other.cause].remove
    fixed = _apply_edit(step, by, causes[by.cause])
    if remove is None or not fixed or not _apply_edit(step, other, causes[other.cause]):
        return False
    both = list(remove(step.analysis, fixed[-1], other))
    if not both:
        return False
    alone, together = step.gain_ns(fixed[-1]), step.gain_ns(both[-1])
    if alone is None or together is None:
        return False
    return together - alone < _NEGLIGIBLE_RATIO * step.step_ns
