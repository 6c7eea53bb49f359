"""A check as Markdown for a pull request: how it ended, the table of changes, why, and the rest folded."""

from collections.abc import Sequence

from zprof.model.check import Check, GateResult, Outcome
from zprof.model.report import Report
from zprof.reports.check.words import (
    MARKS,
    NONE,
    by_weight,
    ended,
    explained,
    gate_line,
    interval,
    is_noisy,
    outcome_sentence,
)
from zprof.reports.escape_markdown import code, prose
from zprof.reports.markdown.blocks import bullets, left_out, table
from zprof.reports.markdown.differences import difference_blocks
from zprof.reports.markdown.document import Part, joined
from zprof.reports.markdown.findings import finding_blocks, gap_blocks
from zprof.reports.markdown.head import modelled
from zprof.reports.markdown.time import ledger_blocks

_HEAD = ["", "gate", "before", "now", "change", "allowed", "outcome"]
_WORDS = (0, 1, 6)
_WHY = (Outcome.FAILED, Outcome.UNKNOWN, Outcome.WARNED, Outcome.WITHIN_NOISE, Outcome.SKIPPED)
_MOST_GATES = 60


def render(check: Check, report: Report) -> str:
    """The comment, under 65,000 characters."""
    compared = report.comparison is not None and report.comparison.step_time is not None
    parts = [
        Part(blocks=[_title(check), *_table(check), *modelled(report), *_why(check), *_notices(check)]),
        Part(title="What else differs", blocks=difference_blocks(report)),
        Part(
            title=f"Where the time goes{', against the baseline' if compared else ''}",
            blocks=ledger_blocks(report),
            is_folded=True,
        ),
        Part(
            title=f"Findings ({len(report.findings)})",
            blocks=finding_blocks(report.findings) if report.findings else (),
            is_folded=True,
        ),
        Part(title="Not measured", blocks=gap_blocks(report.gaps), is_folded=True),
    ]
    return joined([part for part in parts if part.blocks], _foot(check))


def _title(check: Check) -> str:
    return f"## {MARKS[check.outcome]} zprof check {outcome_sentence(check)}"


def _table(check: Check) -> list[str]:
    found = by_weight(check)
    if not found:
        return []
    blocks = [table(_HEAD, [_row(result) for result in found[:_MOST_GATES]], words=_WORDS)]
    if len(found) > _MOST_GATES:
        blocks.append(f"{_MOST_GATES} of {len(found)} gates, those that failed first.")
    return blocks


def _row(result: GateResult) -> list[str]:
    line = gate_line(result)
    change = f"{_cell(line.change)} {prose(interval(result), 80)}".strip()
    allowed = _cell(line.allowed)
    if result.limit.said:
        allowed += f" ({code(result.limit.said, 60)})"
    return [
        line.mark,
        code(line.gate, 80),
        _cell(line.baseline),
        _cell(line.value),
        change,
        allowed,
        result.outcome.value.replace("_", " "),
    ]


def _cell(figure: str) -> str:
    return NONE if figure == NONE else prose(figure, 60)


def _why(check: Check) -> list[str]:
    """The sentence of each gate that is not fine, with its remedy."""
    found = [(outcome, ended(check, outcome)) for outcome in _WHY]
    noisy = tuple(gate for gate in ended(check, Outcome.PASSED) if is_noisy(gate))
    found += [(Outcome.PASSED, noisy)] if noisy else []
    items = [
        f"{prose(MARKS[outcome])} {_said(lines)}"
        for outcome, results in found
        for _, lines in explained(results[:_MOST_GATES])
    ]
    left = left_out(len(items), sum(len(results) for _, results in found), "reasons")
    return [bullets(items), *left] if items else []


def _said(lines: Sequence[str]) -> str:
    first, *rest = (prose(line) for line in lines)
    return "".join([first, *(f" {line}" if line.startswith("→") else f"; {line}" for line in rest)])


def _notices(check: Check) -> list[str]:
    shown = check.notices[:_MOST_GATES]
    return [*(f"> {prose(notice)}" for notice in shown), *left_out(len(shown), len(check.notices), "notices")]


def _foot(check: Check) -> str:
    baseline = f", baseline {code(check.baseline)}" if check.baseline else ", no baseline"
    return f"---\nzprof {prose(check.zprof_version, 40)}, run {code(check.run)}{baseline}"
