"""What the diagnosis cannot say: time that no finding claims, and what was not tested or measured."""

from zprof.model.printable import printable, shorten
from zprof.model.report import Report
from zprof.model.units import format_ns, format_percent
from zprof.reports.shown.diagnosis_presenter import (
    on_unclaimed_rank,
    unclaimed_ns,
    unclaimed_step_ns,
    unclaimed_terms,
)
from zprof.reports.shown.presenter import GapGroup, grouped_gaps
from zprof.reports.shown.time_presenter import per
from zprof.reports.text.layout import heading, page_width, table, wrap

_MOST = 8
#: Of each gap.
_LINES = 2


def unexplained(report: Report) -> list[str]:
    """What is lost and not claimed, by ledger term; its size also where it is small."""
    if not report.time.per_rank or not report.unclaimed:
        return []
    rest, whole = unclaimed_ns(report), unclaimed_step_ns(report)
    title = heading("UNEXPLAINED", f"lost{on_unclaimed_rank(report)}, and no finding explains it")
    share = f" ({format_percent(rest / whole)})" if whole else ""
    of = f"{format_ns(whole)} {per(report.time)}{share}"
    if not rest:
        return ["", title, f"  nothing of {of.removesuffix(share)}"]
    rows = [
        [printable(row.name), format_ns(row.left_ns), format_percent(row.share)]
        for row in unclaimed_terms(report)
    ]
    return ["", title, *wrap(f"{format_ns(rest)} of {of}"), *table(rows)]


def untested(report: Report) -> list[str]:
    """Gaps, those that differ in the rank only as one; their remedies have no room here."""
    groups = grouped_gaps(report.gaps)
    if not groups:
        return []
    lines = ["", heading(f"NOT TESTED, NOT MEASURED ({len(groups)})", "what would show it: zprof report")]
    for group in groups[:_MOST]:
        lines += _two(wrap(f"{_what(group)}: {printable(group.reason)}", first="  - "))
    if len(groups) > _MOST:
        lines.append(f"  - and {len(groups) - _MOST} more")
    return lines


def _two(lines: list[str]) -> list[str]:
    """The first lines, the last of them with a mark that something is missing."""
    if len(lines) <= _LINES:
        return lines
    last = shorten(lines[_LINES - 1], page_width() - 2)
    return [*lines[: _LINES - 1], last if last.endswith("…") else f"{last} …"]


def _what(group: GapGroup) -> str:
    name = group.what
    if name.startswith("rule") and name.endswith(" not tested"):
        name = name.removesuffix(" not tested").partition(" ")[2]
    where = f" (rank{'s' if len(group.ranks) > 1 else ''} {_ranks(group)})" if group.ranks else ""
    return printable(name + where)


def _ranks(group: GapGroup) -> str:
    shown = ", ".join(map(str, group.ranks[:4]))
    return shown if len(group.ranks) <= 4 else f"{shown} and {len(group.ranks) - 4} more"
