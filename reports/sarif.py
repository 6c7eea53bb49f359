"""A report as SARIF 2.1.0: a result a finding, its rule with its page, gaps as notifications."""

from collections.abc import Sequence

from zprof.model.errors import BadInput
from zprof.model.findings import Confidence, Finding, Severity
from zprof.model.json_format import to_tree
from zprof.model.report import Report, VerdictStatus
from zprof.reports import finding_pages
from zprof.reports.presenters.findings import grouped_gaps, list_finding_lines
from zprof.reports.sarif_log import Log, Result, Rule, document
from zprof.reports.terminal import markdown_text

_LEVELS = {Severity.HIGH: "error", Severity.MEDIUM: "warning", Severity.LOW: "note"}
_VERDICTS = {VerdictStatus.SLOWER: "error", VerdictStatus.RISK: "warning"}
_VERDICT = Rule(
    id="verdict",
    name="verdict",
    short="A run that is slower than its baseline, or at risk, whatever the cause.",
    help_text="The run is slower or at risk, and no finding that is more than a guess says why.",
)
_NUMBERS = ("cause", "severity", "confidence", "saving_ns", "saving_bytes", "evidence")


def render(report: Report) -> str:
    """Return the log; a guess is never more than a note."""
    results = [make_finding_result(finding, get_sarif_level(finding)) for finding in report.findings]
    verdict = [] if any(result.level != "note" for result in results) else _verdict(report)
    return document(
        Log(
            version=report.zprof_version,
            run=report.run.name,
            rules=[*make_finding_rules(report.findings), *(_VERDICT for _ in verdict)],
            results=[*results, *verdict],
            notes=[("note", report.verdict.sentence), *list_gap_notes(report)],
        )
    )


def get_sarif_level(finding: Finding) -> str:
    """Return ``error``, ``warning`` or ``note``."""
    return "note" if finding.confidence is Confidence.LOW else _LEVELS[finding.severity]


def make_finding_rules(findings: Sequence[Finding]) -> list[Rule]:
    """Return a rule for each cause that was found."""
    return [_rule(finding) for finding in findings]


def make_finding_result(finding: Finding, level: str) -> Result:
    """Return a finding as a result, with its numbers as properties."""
    ranks = dict.fromkeys(fact.rank for fact in finding.evidence if fact.rank is not None)
    return Result(
        rule=finding.id,
        level=level,
        lines=list_finding_lines(finding),
        places=[(f"rank {rank}", "module") for rank in ranks] or [("all ranks", "module")],
        properties={name: to_tree(getattr(finding, name)) for name in _NUMBERS},
    )


def _verdict(report: Report) -> list[Result]:
    """Return the verdict if it is bad: what no finding explains would be green otherwise."""
    level = _VERDICTS.get(report.verdict.status)
    said = [report.verdict.sentence]
    return (
        [Result(rule=_VERDICT.id, level=level, lines=said, places=[("all ranks", "module")])] if level else []
    )


def list_gap_notes(report: Report) -> list[tuple[str, str]]:
    """Return what could not be measured or tested, and what would make it known."""
    notes = []
    for group in grouped_gaps(report.gaps):
        remedy = f" → {group.remedy}" if group.remedy else ""
        notes.append(("note", f"{group.what}{group.where}: {group.reason}{remedy}"))
    return notes


def _rule(finding: Finding) -> Rule:
    try:
        page = finding_pages.page(finding.cause)
    except BadInput:
        page = ""
    claim = finding_pages.claims().get(finding.cause) or finding.cause.value.replace("_", " ")
    return Rule(
        id=finding.id,
        name=finding.cause.value,
        short=claim,
        help_text=markdown_text(page) if page else claim,
        help_markdown=page,
        level=get_sarif_level(finding),
    )
