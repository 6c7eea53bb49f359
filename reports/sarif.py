"""Render a report as SARIF 2.1.0: findings as results, their pages as rule help, gaps as notifications.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html; GitHub requires a physical location for each
result.  The JSON is ASCII.  In a message, ``[text](target)`` is a link and ``{0}`` a placeholder (3.11.5,
3.11.6); both are neutralized in text from a run.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from msgspec import Struct, field

from zprof.base.errors import BadInput
from zprof.base.formatting import printable, printable_lines, shorten
from zprof.model.findings import Confidence, Finding, Severity, read_index
from zprof.model.json_format import to_tree
from zprof.model.report import Report, VerdictStatus
from zprof.reports import finding_pages
from zprof.reports.layout import render_markdown_text
from zprof.reports.pages.findings import list_finding_lines, merge_gaps

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_PLACEHOLDER = re.compile(r"\{(?=\d+\})")
#: Path segments that do not refer to a file of that name.
_RESERVED_NAMES = frozenset({"", ".", ".."})
_MAX_LINE, _MAX_NAME, _MAX_URI = 4_000, 300, 200
_LEVELS = {Severity.HIGH: "error", Severity.MEDIUM: "warning", Severity.LOW: "note"}
_VERDICTS = {VerdictStatus.SLOWER: "error", VerdictStatus.RISK: "warning"}
_PROPERTIES = ("cause", "severity", "confidence", "saving_ns", "saving_bytes", "evidence", "location")


class SarifRule(Struct, frozen=True, kw_only=True):
    """The rule that a result refers to.  ``help_markdown``: the page of the finding, or empty."""

    id: str
    name: str
    short: str
    help_text: str
    help_markdown: str = ""
    level: str = "warning"


class Result(Struct, frozen=True, kw_only=True):
    """A result of a rule.  ``level``: error, warning or note; ``lines``: the message.

    ``places``: logical locations, such as ``("rank 2", "module")``; ``file`` and ``line``: the line to
    change, by default the run. ``key``: distinguishes the result from others of its rule, and is stable
    between runs.
    """

    rule: str
    level: str
    lines: Sequence[str]
    places: Sequence[tuple[str, str]] = ()
    file: str = ""
    line: int = 1
    key: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)


class Log(Struct, frozen=True, kw_only=True):
    """Contents of a SARIF document.  ``notes``: gaps and notices as (level, text)."""

    version: str
    run: str
    rules: Sequence[SarifRule]
    results: Sequence[Result]
    notes: Sequence[tuple[str, str]] = ()
    exit_code: int = 0


def document(log: Log) -> str:
    """Return the SARIF document as JSON."""
    tree = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [_run(log)]}
    return json.dumps(tree, indent=2, allow_nan=False) + "\n"


def _run(log: Log) -> dict[str, Any]:
    rules = list({rule.id: rule for rule in log.rules}.values())
    index = {rule.id: at for at, rule in enumerate(rules)}
    driver = {
        "name": "zprof",
        "version": _line(log.version),
        "rules": [_rule(rule) for rule in rules],
    }
    invocation = {
        "executionSuccessful": log.exit_code in (0, 1),
        "exitCode": log.exit_code,
        "toolExecutionNotifications": [
            {"level": level, "message": _message([text])} for level, text in log.notes
        ],
    }
    return {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "artifacts": [
            {
                "location": {"uri": _uri(log.run)},
                "description": {"text": "the recording that was examined"},
                "roles": ["analysisTarget"],
            }
        ],
        "columnKind": "unicodeCodePoints",
        "results": [_result(result, index, log.run) for result in log.results],
    }


def _rule(rule: SarifRule) -> dict[str, Any]:
    help_ = {"text": "\n".join(printable_lines(rule.help_text))}
    if rule.help_markdown:
        help_["markdown"] = rule.help_markdown
    return {
        "id": _line(rule.id),
        "name": _line(rule.name),
        "shortDescription": {"text": _line(rule.short)},
        "fullDescription": {"text": _line(rule.short)},
        "help": help_,
        "defaultConfiguration": {"level": rule.level},
    }


def _result(result: Result, index: Mapping[str, int], run: str) -> dict[str, Any]:
    uri = _file_uri(result.file)
    file = {
        "artifactLocation": {"uri": uri or _uri(run)},
        "region": {"startLine": max(1, result.line) if uri else 1},
    }
    logical = [
        {"name": _line(name), "fullyQualifiedName": f"{_line(run)}/{_line(name)}", "kind": kind}
        for name, kind in result.places
    ]
    location: dict[str, Any] = {"physicalLocation": file}
    if logical:
        location["logicalLocations"] = logical
    return {
        "ruleId": _line(result.rule),
        "ruleIndex": index[result.rule],
        "level": result.level,
        "message": _message(result.lines),
        "locations": [location],
        "partialFingerprints": {"zprof/1": _line(result.key or result.rule)},
        "properties": _safe(result.properties),
    }


def _message(lines: Sequence[str]) -> dict[str, str]:
    text = "\n".join(_line(line, _MAX_LINE) for part in lines for line in str(part).split("\n"))
    return {"text": _PLACEHOLDER.sub("{ ", text.replace("](", "] ("))}


def _safe(value: Any) -> Any:
    """Return a tree of JSON values with printable strings."""
    if isinstance(value, Mapping):
        return {_line(key): _safe(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(child) for child in value]
    return _line(value, _MAX_LINE) if isinstance(value, str) else value


def _line(text: object, max_length: int = _MAX_NAME) -> str:
    return shorten(printable(text), max_length)


def _uri(name: str) -> str:
    """Return a relative URI that can refer only to a file of this name."""
    text = shorten(printable(name), _MAX_URI)
    return "run" if text in _RESERVED_NAMES else quote(text, safe="")


def _file_uri(path: str) -> str:
    """Return the URI of a path inside the working directory; empty if the path could leave it."""
    text = printable(path)
    segments = text.split("/")
    if len(text) > _MAX_URI or _RESERVED_NAMES & set(segments) or segments[0].endswith(":"):
        return ""
    return quote(text, safe="/")


_VERDICT = SarifRule(
    id="verdict",
    name="verdict",
    short="The run is slower than its baseline, or at risk.",
    help_text="The run is slower or at risk, and no finding with more than low confidence explains it.",
)


def render(report: Report) -> str:
    """Return the SARIF log; a finding of low confidence is at most a note."""
    results = [make_finding_result(finding, get_sarif_level(finding)) for finding in report.findings]
    # A bad verdict is a result if there is no other, so an unexplained regression still fails.
    verdict = []
    level = _VERDICTS.get(report.verdict.status)
    if level and all(result.level == "note" for result in results):
        lines, places = [report.verdict.sentence], [("all ranks", "module")]
        verdict.append(Result(rule=_VERDICT.id, level=level, lines=lines, places=places))
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


def list_gap_notes(report: Report) -> list[tuple[str, str]]:
    """List gaps and their remedies as notifications."""
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
