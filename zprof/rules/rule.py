"""What a rule is: a pure function from the analysis to a finding, a gap, or nothing.

A rule that lacks its inputs returns a gap "not tested": that is not the same as having found nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import FINDING_IDS, Cause
from zprof.model.findings import Confidence, Evidence, Finding, Severity
from zprof.model.gaps import Gap

#: Of the step: a gain above which a cause is there.
SURE_RATIO = 0.015


class Check(Protocol):
    """Tests one cause on one run."""

    def __call__(self, analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
        """A finding where the cause is there, a gap where it cannot be tested, None where it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A cause, its check, and the ledger terms that its saving is taken from, in that order.

    ``explains``: causes whose signal this one makes as well.  Where both are found, and this one is sure, it
    takes its time first, and the other one is only what is left.
    ``elsewhere``: terms of other ranks that are the same loss: while some wait, the late one stands idle.
    """

    cause: Cause
    check: Check
    claims: tuple[str, ...] = ()
    explains: tuple[Cause, ...] = ()
    elsewhere: tuple[str, ...] = ()


def not_tested(cause: Cause, reason: str, remedy: str) -> Gap:
    """The gap of a rule without its inputs."""
    return Gap(what=f"rule {cause.value} not tested", reason=reason, remedy=remedy)


def untested(
    causes: Sequence[Cause], gaps: Sequence[Gap], asked: Sequence[Rule] | None = None
) -> list[Cause]:
    """Those of ``causes`` that could not be tested; of ``asked`` rules also those that no rule asks for."""
    words = {
        word for gap in gaps if gap.what.startswith("rule") for word in gap.what.replace(",", " ").split()
    }
    known = {rule.cause for rule in asked} if asked is not None else set(causes)
    return [cause for cause in causes if cause.value in words or cause not in known]


def grouped(gaps: Sequence[Gap]) -> list[Gap]:
    """Gaps of rules, those that the same missing input keeps from being tested as one."""
    rules: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        name = gap.what.removeprefix("rule ").removesuffix(" not tested")
        rules.setdefault((gap.reason, gap.remedy), []).append(name)
    return [
        Gap(
            what=f"rule{'s' if len(names) > 1 else ''} {', '.join(names)} not tested",
            reason=reason,
            remedy=remedy,
        )
        for (reason, remedy), names in rules.items()
    ]


def finding(
    cause: Cause,
    *,
    sentence: str,
    evidence: Sequence[Evidence],
    saving_ns: tuple[float, float],
    severity: Severity,
    confidence: Confidence,
    fix: str,
    disprove: str,
    saving_bytes: tuple[float, float] | None = None,
) -> Finding:
    """A finding with the id and the page of its cause, savings in whole nanoseconds and bytes."""
    identifier = FINDING_IDS[cause]
    low, high = saving_ns
    return Finding(
        id=identifier,
        cause=cause,
        severity=severity,
        sentence=sentence,
        evidence=tuple(evidence),
        saving_ns=(int(min(low, high)), int(high)),
        confidence=confidence,
        fix=fix,
        disprove=disprove,
        doc=f"docs/findings/{identifier}.md",
        saving_bytes=(int(saving_bytes[0]), int(saving_bytes[1])) if saving_bytes else None,
    )


def severity_of(saving: float, whole: float) -> Severity:
    """High from a tenth of the whole (the step's time, the peak's bytes) on, medium from a twentieth."""
    if saving >= 0.10 * whole:
        return Severity.HIGH
    return Severity.MEDIUM if saving >= 0.05 * whole else Severity.LOW


def fix_for(engine: str, snippets: Mapping[str, str]) -> str:
    """The snippet of the run's engine; where that has none, all of them, each under its engine's name."""
    for name, snippet in snippets.items():
        if name.lower() == engine.lower():
            return snippet
    return "\n".join(f"{name}:\n{snippet}" for name, snippet in snippets.items())
