"""Findings with evidence, what they save, the fix, and what would disprove them."""

from collections.abc import Sequence

from zprof.model.findings import Finding
from zprof.model.report import Report
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, FindingCard, FindingList, Notes
from zprof.reports.shown.evidence import evidence_name, evidence_value, worth

_MOST = 100
_EVIDENCE = 100


def findings(report: Report) -> Sequence[Block]:
    """All of them, or that there is none."""
    if not report.findings:
        return (Notes(lines=("none",)),)
    cards = tuple(_card(number, entry) for number, entry in enumerate(report.findings[:_MOST], start=1))
    notes = (_basis(report), *words.left_out(len(cards), len(report.findings), "findings"))
    return (Notes(lines=notes), FindingList(cards=cards))


def _basis(report: Report) -> str:
    timed = any(entry.saving_ns[1] > 0 for entry in report.findings)
    return "savings per step, each fix on its own" if timed else "bytes are those of the largest rank"


def _card(number: int, entry: Finding) -> FindingCard:
    return FindingCard(
        number=number,
        name=words.name(f"{entry.id} {entry.cause.value}"),
        severity=entry.severity.value,
        worth=worth(entry),
        sentence=words.sentence(entry.sentence),
        evidence=tuple(
            (words.name(evidence_value(fact), 32), words.sentence(evidence_name(fact)))
            for fact in entry.evidence[:_EVIDENCE]
        ),
        fix=words.lines(entry.fix),
        disprove=words.sentence(entry.disprove),
        doc=words.name(entry.doc),
        explain=words.name(f"zprof explain {entry.id}"),
    )
