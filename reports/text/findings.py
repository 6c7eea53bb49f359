"""The end of the text report: findings with evidence and fix, then what was not measured."""

from collections.abc import Sequence

from zprof.model.findings import Evidence, Finding
from zprof.model.printable import display_width, printable, printable_lines, shorten
from zprof.model.report import Report
from zprof.reports.shown.evidence import evidence_name, evidence_value, worth
from zprof.reports.shown.presenter import GapGroup, grouped_gaps
from zprof.reports.text.layout import code_or_text, heading, headings, wrap

_LABEL = 10


def findings(report: Report) -> list[str]:
    """Each finding, the one that saves most first."""
    if not report.findings:
        return ["", heading("FINDINGS"), "  none"]
    lines = ["", heading("FINDINGS", _basis(report))]
    for number, entry in enumerate(report.findings, start=1):
        lines += ([""] if number > 1 else []) + _finding(number, entry)
    return lines


def _basis(report: Report) -> str:
    timed = any(entry.saving_ns[1] > 0 for entry in report.findings)
    return "savings per step, each fix on its own" if timed else "bytes are those of the largest rank"


def gaps(report: Report) -> list[str]:
    """What is unknown, why, and what would make it known."""
    groups = grouped_gaps(report.gaps)
    if not groups:
        return []
    return ["", heading(f"NOT MEASURED ({len(groups)})"), *[line for group in groups for line in _gap(group)]]


def _finding(number: int, entry: Finding) -> list[str]:
    head = f"{number} {shorten(printable(entry.id), 12)} {entry.cause.value}"
    lines = headings(f"  {head}", worth(entry))
    lines += wrap(printable(entry.sentence), first="    ")
    lines += labelled("evidence", facts(entry.evidence))
    lines += labelled("fix", printable_lines(entry.fix), code=True)
    lines += labelled("disprove", [printable(entry.disprove)])
    return lines + labelled("read", [printable(entry.doc)])


def facts(rows: Sequence[Evidence]) -> list[str]:
    """Evidence as lines: value and what it is."""
    values = [printable(evidence_value(fact)) for fact in rows]
    width = max((display_width(value) for value in values), default=0)
    return [
        " " * (width - display_width(value)) + f"{value}  {printable(evidence_name(fact))}"
        for value, fact in zip(values, rows, strict=True)
    ]


def labelled(label: str, texts: Sequence[str], *, code: bool = False) -> list[str]:
    """Lines under a label; with ``code`` those that are code are not wrapped."""
    lay = code_or_text if code else wrap
    lines: list[str] = []
    for number, text in enumerate(texts):
        first = f"    {label if number == 0 else '':<{_LABEL}}"
        indent = len(text) - len(text.lstrip(" "))
        lines += lay(text.lstrip(" "), first=first + " " * indent)
    return lines


def _gap(group: GapGroup) -> list[str]:
    lines = wrap(printable(f"{group.what}{group.where}: {group.reason}"), first="  - ")
    return lines + (wrap(printable(group.remedy), first="    → ") if group.remedy else [])
