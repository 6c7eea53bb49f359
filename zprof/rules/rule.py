"""Define the type of a rule and the helpers that rules share: finding and gap constructors, row selection.

A rule is a pure function from the analysis to a finding, a gap or None. A rule without its inputs returns a
"not tested" gap, which is not the same as having found nothing.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding, SavingNote, Severity, SourceLocation
from zprof.model.gaps import Gap, GapKind
from zprof.rules.evidence import Fact, write_evidence

#: A cause is present if the gain exceeds this share of the step.
MIN_GAIN_RATIO = 0.015


class RuleCheck(Protocol):
    """A function that tests one cause on one run."""

    def __call__(self, analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
        """Return a finding if the cause is present, a gap if it cannot be tested, None if it is absent."""


class Rule(Struct, frozen=True, kw_only=True):
    """A cause, its check, and the ledger terms that its saving is taken from, in that order.

    ``explains``: causes whose symptoms this cause also produces. If both are found and this one is above low
    confidence, it claims its time first and the other gets the remainder. ``other_rank_terms``: terms of
    other ranks that are the same loss: while some ranks wait, the late one is idle. ``taken_from``: key of
    the evidence that states the part of those terms in which the saving lies, e.g. copies in the compute.
    """

    cause: Cause
    check: RuleCheck
    claims: tuple[str, ...] = ()
    explains: tuple[Cause, ...] = ()
    other_rank_terms: tuple[str, ...] = ()
    taken_from: str | None = None


def untested_gap(cause: Cause, reason: str, remedy: str, kind: GapKind = GapKind.UNTESTED_RULE) -> Gap:
    """Build the gap of a rule that lacks its inputs."""
    return Gap(
        kind=kind,
        causes=(cause,),
        what=f"rule {cause.value} not tested",
        reason=reason,
        remedy=remedy,
    )


def list_untested(
    causes: Sequence[Cause], gaps: Sequence[Gap], rules: Sequence[Rule] | None = None
) -> list[Cause]:
    """List the causes that a gap reports as untested, or that none of ``rules`` tests."""
    untested = {cause for gap in gaps for cause in gap.causes}
    known = {rule.cause for rule in rules} if rules is not None else set(causes)
    return [cause for cause in causes if cause in untested or cause not in known]


def group_gaps(gaps: Sequence[Gap]) -> list[Gap]:
    """Merge the gaps of rules that are untested for the same reason."""
    causes: dict[tuple[GapKind, str, str], list[Cause]] = {}
    for gap in gaps:
        causes.setdefault((gap.kind, gap.reason, gap.remedy), []).extend(gap.causes)
    return [
        Gap(
            kind=kind,
            causes=tuple(untested),
            what=f"rule{'s' if len(untested) > 1 else ''} {', '.join(untested)} not tested",
            reason=reason,
            remedy=remedy,
        )
        for (kind, reason, remedy), untested in causes.items()
    ]


def make_finding(
    analysis: RunAnalysis,
    cause: Cause,
    *,
    sentence: str,
    evidence: Sequence[Fact],
    saving_ns: tuple[float, float],
    severity: Severity,
    confidence: Confidence,
    fix: str,
    disprove: str,
    saving_bytes: tuple[float, float] | None = None,
    location: SourceLocation | None = None,
) -> Finding:
    """Build a finding with the id and doc page of its cause, and savings in integer ns and bytes."""
    identifier = cause.finding_id
    low, high = saving_ns
    return Finding(
        id=identifier,
        cause=cause,
        severity=severity,
        sentence=sentence,
        evidence=tuple(write_evidence(fact, analysis.time.words) for fact in evidence),
        saving_ns=(int(min(low, high)), int(high)),
        confidence=confidence,
        fix=fix,
        disprove=disprove,
        doc=f"docs/findings/{identifier}.md",
        saving_bytes=(int(saving_bytes[0]), int(saving_bytes[1])) if saving_bytes else None,
        location=location,
    )


def change_saving(
    finding: Finding,
    saving_ns: tuple[float, float],
    note: SavingNote,
    *,
    confidence: Confidence | None = None,
) -> Finding:
    """Return the finding with another range and the reason for it; an equal range needs none."""
    changed = (int(saving_ns[0]), int(saving_ns[1]))
    notes = finding.saving_notes if changed == finding.saving_ns else (*finding.saving_notes, note)
    return replace(
        finding, saving_ns=changed, saving_notes=notes, confidence=confidence or finding.confidence
    )


def rate_severity(saving: float, total: float) -> Severity:
    """Return HIGH from 10 % of the total (step time or peak bytes), MEDIUM from 5 %, else LOW."""
    if saving >= 0.10 * total:
        return Severity.HIGH
    return Severity.MEDIUM if saving >= 0.05 * total else Severity.LOW
