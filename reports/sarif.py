"""Render a report as SARIF 2.1.0: findings as results, their pages as rule help, gaps as notifications."""

from collections.abc import Sequence

from zprof.model.errors import BadInput
from zprof.model.findings import Confidence, Finding, Severity, read_index
from zprof.model.json_format import to_tree
from zprof.model.report import Report, VerdictStatus
from zprof.reports import finding_pages
from zprof.reports.pages.findings import list_finding_lines, merge_gaps
from zprof.reports.sarif_log import Log, Result, SarifRule, document
from zprof.reports.terminal import render_markdown_text

_LEVELS = {Severity.HIGH: "error", Severity.MEDIUM: "warning", Severity.LOW: "note"}
_VERDICTS = {VerdictStatus.SLOWER: "error", VerdictStatus.RISK: "warning"}
_VERDICT = SarifRule(
    id="verdict",
    name="verdict",
    short="The run is slower than its baseline, or at risk.",
    help_text="The run is slower or at risk, and no finding with more than low confidence explains it.",
)
_PROPERTIES = ("cause", "severity", "confidence", "saving_ns", "saving_bytes", "evidence", "location")


def render(report: Report) -> str:
    """Return the SARIF log; a finding of low confidence is never more than a note."""
    results = [make_finding_result(finding, get_sarif_level(finding)) for finding in report.findings]
    verdict = [] if any(result.level != "note" for result in results) else _make_verdict_results(report)
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
    """Return the SARIF level of a finding: ``error``, ``warning`` or ``note``."""
    return "note" if finding.confidence is Confidence.LOW else _LEVELS[finding.severity]


def make_finding_rules(findings: Sequence[Finding]) -> list[SarifRule]:
    """Return the rule of each finding."""
    return [_make_rule(finding) for finding in findings]


def make_finding_result(finding: Finding, level: str) -> Result:
    """Convert a finding to a result with its numbers as properties."""
    ranks = dict.fromkeys(fact.rank for fact in finding.evidence if fact.rank is not None)
    return Result(
        rule=finding.id,
        level=level,
        lines=list_finding_lines(finding),
        places=[(f"rank {rank}", "module") for rank in ranks] or [("all ranks", "module")],
        file=finding.location.file if finding.location else "",
        line=finding.location.line if finding.location else 1,
        properties={name: to_tree(getattr(finding, name)) for name in _PROPERTIES},
    )


def _make_verdict_results(report: Report) -> list[Result]:
    """Return the verdict as a result if it is bad, so that an unexplained regression still fails."""
    level = _VERDICTS.get(report.verdict.status)
    lines = [report.verdict.sentence]
    return (
        [Result(rule=_VERDICT.id, level=level, lines=lines, places=[("all ranks", "module")])]
        if level
        else []
    )


def list_gap_notes(report: Report) -> list[tuple[str, str]]:
    """List what could not be measured or tested, with the remedy, as notifications."""
    notes = []
    for group in merge_gaps(report.gaps):
        remedy = f" → {group.remedy}" if group.remedy else ""
        notes.append(("note", f"{group.what}{group.where}: {group.reason}{remedy}"))
    return notes


def _make_rule(finding: Finding) -> SarifRule:
    try:
        page = finding_pages.read_page(finding.id)
    except BadInput:
        page = ""
    summary = next((entry.meaning for entry in read_index() if entry.id == finding.id), finding.cause)
    return SarifRule(
        id=finding.id,
        name=finding.cause,
        short=summary,
        help_text=render_markdown_text(page) if page else summary,
        help_markdown=page,
        level=get_sarif_level(finding),
    )
