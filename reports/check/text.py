"""A check as plain text in 80 columns: a line a gate, then why, then how it ended."""

from collections.abc import Sequence
from dataclasses import replace

from zprof.model.check import Check, GateResult, Outcome
from zprof.model.printable import display_width, printable, shorten
from zprof.model.report import Report
from zprof.reports.check.words import (
    MARKS,
    GateLine,
    against,
    by_weight,
    ended,
    explained,
    gate_line,
    is_noisy,
    limit_said,
    outcome_sentence,
    spread_change,
)
from zprof.reports.escape_log import log_line
from zprof.reports.text.layout import INDENT, heading, page_width, table, wrap

_PARTS = (
    (Outcome.FAILED, "FAILED"),
    (Outcome.UNKNOWN, "NOT JUDGED"),
    (Outcome.WARNED, "WARNED"),
    (Outcome.WITHIN_NOISE, "WITHIN NOISE"),
    (Outcome.SKIPPED, "SKIPPED"),
)
_NAME, _ROOM = 16, 40


def render(check: Check, report: Report) -> str:
    """The whole page; ``report`` is what was checked, and nothing more of it is said than the gates say."""
    title = f"CHECK {shorten(printable(check.run), _ROOM)}"
    lines = [heading(title, printable(against(check))), *_table(check)]
    for outcome, name in _PARTS:
        lines += _part(name, ended(check, outcome))
    noisy = [result for result in check.results if is_noisy(result) and result.outcome is Outcome.PASSED]
    lines += _part("PASSED, TOO NOISY TO FAIL", noisy)
    lines += _notices(check.notices)
    lines += ["", *wrap(printable(outcome_sentence(check)), first=f"{MARKS[check.outcome]} ")]
    return "\n".join(log_line(printable(line)) for line in lines) + "\n"


def _table(check: Check) -> list[str]:
    found = [replace(gate_line(result), change=spread_change(result)) for result in by_weight(check)]
    if not found:
        return []
    rows = [["  gate", "value", "baseline", "allowed", "change"], *(_cells(line) for line in found)]
    room = (
        page_width()
        - len(INDENT)
        - sum(2 + max(display_width(row[at]) for row in rows) for at in range(1, 5))
    )
    long = {at for at, row in enumerate(rows) if display_width(row[0]) > max(_NAME, room)}
    lines = table([["", *row[1:]] if at in long else row for at, row in enumerate(rows)])
    return [
        text
        for at, line in enumerate(lines)
        for text in ([shorten(INDENT + rows[at][0], page_width()), line] if at in long else [line])
    ]


def _cells(line: GateLine) -> list[str]:
    cells = (line.value, line.baseline, line.allowed, line.change)
    return [printable(f"{line.mark} {line.gate}"), *(shorten(printable(cell), _NAME) for cell in cells)]


def _part(name: str, results: Sequence[GateResult]) -> list[str]:
    if not results:
        return []
    lines = ["", heading(f"{name} ({len(results)})")]
    for result, (first, *rest) in explained(results):
        lines += wrap(printable(first), first=f"{INDENT}{MARKS[result.outcome]} ")
        rest += [f"limit {limit_said(result.limit)}"] if result.outcome is not Outcome.SKIPPED else []
        lines += [line for text in rest for line in wrap(printable(text), first=f"{INDENT}  ")]
    return lines


def _notices(notices: Sequence[str]) -> list[str]:
    if not notices:
        return []
    lines = [line for notice in notices for line in wrap(printable(notice), first=f"{INDENT}- ")]
    return ["", heading("NOTICES"), *lines]
