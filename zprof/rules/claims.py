"""Savings share no time: each finding takes what it claims from the ledger, the largest first.

Two findings can see the same exposed transfer (no prefetch on a slow link); its time can be won once.
A ledger term holds the largest rank's mean a step, because a wait lies on the ranks that do not cause it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Finding, Severity
from zprof.model.time import RankTime
from zprof.rules.rule import Rule


def spoils(finding: Finding) -> bool:
    """Whether the finding says that the times of the run cannot be trusted."""
    return finding.cause is Cause.MEASUREMENT_ARTIFACT and finding.severity is Severity.HIGH


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """What spoils the measurement first, then by time saved, then by memory freed; notes last.

    Among findings about memory those of low confidence come after the others: what they free is a guess.
    """

    def key(finding: Finding) -> tuple[bool, int, bool, bool, int, str]:
        low, bytes_freed = finding.confidence is Confidence.LOW, finding.saving_bytes
        return (
            not spoils(finding),
            -finding.saving_ns[1],
            bytes_freed is None,
            bytes_freed is not None and low,
            -bytes_freed[1] if bytes_freed else 0,
            finding.id,
        )

    return sorted(findings, key=key)


def disjoint(
    findings: Sequence[Finding], rules: Sequence[Rule], ranks: Sequence[RankTime]
) -> tuple[Finding, ...]:
    """``findings`` in their order, no nanosecond of a ledger term claimed twice."""
    claims = {rule.cause: rule.claims for rule in rules}
    terms = {term for rule in rules for term in rule.claims}
    left = {term: max((getattr(rank, term) for rank in ranks), default=0) for term in terms}
    trimmed = []
    for finding in findings:
        wanted = finding.saving_ns[1]
        for term in claims.get(finding.cause, ()):
            taken = min(wanted, left[term])
            left[term] -= taken
            wanted -= taken
        high = finding.saving_ns[1] - wanted
        trimmed.append(replace(finding, saving_ns=(min(finding.saving_ns[0], high), high)))
    return tuple(ordered(trimmed))
