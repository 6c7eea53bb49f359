"""A finding as the formats of CI systems say it: whether it weighs, what it is worth, its lines of text."""

from zprof.model.findings import Confidence, Finding, Severity
from zprof.reports.shown.evidence import evidence_name, evidence_value, worth

#: Rules that could not be tested, as the gaps name them.
_UNTESTED = " not tested"


def weighs(finding: Finding) -> bool:
    """Whether it fails a job: it costs something, and is more than a guess."""
    return finding.severity is not Severity.LOW and finding.confidence is not Confidence.LOW


def lines(finding: Finding) -> tuple[str, ...]:
    """All of it: sentence, worth, evidence, fix, disproof, where to read on."""
    return (
        finding.sentence,
        worth(finding),
        *(f"  {evidence_value(fact)}  {evidence_name(fact)}" for fact in finding.evidence),
        f"fix: {finding.fix}",
        f"disprove: {finding.disprove}",
        f"read: {finding.doc}",
    )


def untested(what: str) -> tuple[str, ...]:
    """The causes that a gap says were not tested; none where the gap is about something else."""
    if not (what.startswith("rule") and what.endswith(_UNTESTED)):
        return ()
    names = what.removesuffix(_UNTESTED).partition(" ")[2]
    return tuple(name.strip() for name in names.split(","))
