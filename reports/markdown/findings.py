"""The end of a report in Markdown: findings with evidence, fix and disproof, and what was not measured."""

from collections.abc import Sequence

from zprof.model.findings import Evidence, Finding
from zprof.model.gaps import Gap
from zprof.reports.escape_markdown import code, fenced, prose
from zprof.reports.markdown.blocks import bullets, left_out
from zprof.reports.shown.evidence import evidence_name, evidence_value, worth
from zprof.reports.shown.presenter import GapGroup, grouped_gaps

_FACTS = 16


def finding_blocks(findings: Sequence[Finding]) -> list[str]:
    """A block a finding, in the order of the report; says so where there is none."""
    if not findings:
        return ["none"]
    return [_finding(number, entry) for number, entry in enumerate(findings, start=1)]


def gap_blocks(gaps: Sequence[Gap]) -> list[str]:
    """A block a gap: what is unknown, why, and what would make it known."""
    return [f"- {_gap(group)}" for group in grouped_gaps(gaps)]


def _finding(number: int, entry: Finding) -> str:
    title = f"**{number}. {code(entry.id, 20)} {code(entry.cause.value)}**: {worth(entry)}"
    facts = entry.evidence[:_FACTS]
    left = left_out(len(facts), len(entry.evidence), "facts")
    evidence = bullets([*(_fact(fact) for fact in facts), *left])
    fix = fenced(entry.fix.split("\n"))
    last = f"To disprove it: {prose(entry.disprove)}  \nRead: {code(entry.doc)}"
    return "\n\n".join(part for part in (title, prose(entry.sentence), evidence, fix, last) if part)


def _fact(fact: Evidence) -> str:
    return f"{prose(evidence_value(fact), 60)}: {prose(evidence_name(fact), 300)}"


def _gap(group: GapGroup) -> str:
    remedy = f" → {prose(group.remedy, 600)}" if group.remedy else ""
    return f"{prose(group.what, 300)}{group.where}: {prose(group.reason, 600)}{remedy}"
