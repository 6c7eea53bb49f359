"""What to change: each finding with its worth, its proof in a few rows, and the fix."""

from collections.abc import Sequence

from zprof.model.findings import Finding
from zprof.model.printable import printable, printable_lines, shorten
from zprof.model.report import Report
from zprof.reports.shown.diagnosis_presenter import decisive, told
from zprof.reports.shown.evidence import worth
from zprof.reports.text.findings import facts, labelled
from zprof.reports.text.layout import heading, headings, wrap

_FULL = 3
_SHORT = 6
#: Lines of a fix: of the first finding, which is the one to try, and of the others.
_FIX_LINES = (14, 6)


def changes(report: Report) -> list[str]:
    """Findings by saving; guesses last, as notes."""
    chosen = told(report.findings, _FULL)
    if not (chosen.full or chosen.notes):
        return ["", heading("WHAT TO CHANGE"), "  nothing: none of the causes that were tested was found"]
    lines = ["", heading("WHAT TO CHANGE", _basis(report))]
    if not chosen.full:
        lines.append("  nothing is sure enough")
    for number, entry in enumerate(chosen.full, start=1):
        lines += ([""] if number > 1 else []) + _full(number, entry, said=report.verdict.sentence)
    lines += _listed("also", chosen.short)
    return lines + _listed("perhaps", chosen.notes)


def _basis(report: Report) -> str:
    timed = any(entry.saving_ns[1] > 0 for entry in report.findings)
    return "savings per step, each fix on its own" if timed else "bytes are those of the largest rank"


def _full(number: int, entry: Finding, *, said: str) -> list[str]:
    """All of a finding; its sentence only where the verdict is not that already."""
    name = shorten(printable(entry.id), 12)
    lines = headings(f"  {number} {name} {entry.cause.value}", worth(entry))
    if entry.sentence not in said:
        lines += wrap(printable(entry.sentence), first="    ")
    lines += labelled("evidence", facts(decisive(entry)))
    lines += labelled("fix", _fix(entry, _FIX_LINES[number > 1]), code=True)
    return lines + labelled("more", [f"zprof explain {name}"])


def _fix(entry: Finding, most: int) -> list[str]:
    lines = printable_lines(entry.fix)
    return lines if len(lines) <= most else [*lines[: most - 1], "…"]


def _listed(label: str, found: Sequence[Finding]) -> list[str]:
    """A head line and the claim of each."""
    if not found:
        return []
    lines = [""]
    for entry in found[:_SHORT]:
        lines += headings(f"  {label} {shorten(printable(entry.id), 12)} {entry.cause.value}", worth(entry))
        lines += wrap(printable(entry.sentence), first="    ")
    if len(found) > _SHORT:
        lines += wrap(f"and {len(found) - _SHORT} more: zprof report")
    return lines
