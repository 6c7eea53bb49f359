"""Build the comment of a check for a pull request: verdict, change by term and tenant, fix, folded gates.

It has at most ``MAX_LINES`` lines of Markdown. The bars are text in code spans: GitHub and GitLab show them
in comments and in mails, where a Mermaid chart would be its source.
"""

from collections.abc import Iterator

from zprof.model.baseline import Baseline
from zprof.model.comparison import Outcome
from zprof.model.quantities import Unit, Value, combine_bounds, format_value, negate_bound
from zprof.model.time import LEDGER_NAMES
from zprof.reports.formats import Checked
from zprof.reports.layout import render_bar
from zprof.reports.markdown import render_markdown
from zprof.reports.page import Code, Item, ItemList, Page, Section, make_section
from zprof.reports.pages.check import (
    MARKS,
    build_gate_table,
    build_verdict,
    describe_result,
    sort_by_severity,
)
from zprof.reports.pages.head import build_modelled_notes, list_baseline_runs
from zprof.reports.pages.names import format_ranks
from zprof.reports.pages.tenants import tenant_name
from zprof.reports.table import Row, Table, make_name_column, make_number_columns, make_text_column

#: With the line by which a bot finds its earlier comment, 60.
MAX_LINES = 59
_MAX_ITEMS, _MIN_GATES = 4, 3
#: Lines of a fix, the most first; fewer if the comment would be too long.
_FIX_LINES = (8, 6, 4, 2)
_BAR_WIDTH = 10
_MORE, _LESS = "█", "░"
_STEP, _PEAK = _TOTALS = ("step", "peak memory")
_NAMES = {"wall_ns": _STEP, "peak_bytes": _PEAK, **LEDGER_NAMES}
_LISTED = (Outcome.FAILED, Outcome.UNKNOWN, Outcome.WARNED)


def render_check_comment(checked: Checked) -> str:
    """Return the comment with as many lines of the fix, then as many gates, as fit."""
    for fix_lines in _FIX_LINES:
        smallest = render_markdown(build_comment_page(checked, max_fix_lines=fix_lines))
        spare = MAX_LINES - smallest.count("\n")
        if spare >= 0:
            break
    return render_markdown(build_comment_page(checked, _MIN_GATES + max(0, spare), fix_lines))


def build_comment_page(
    checked: Checked, max_gates: int = _MIN_GATES, max_fix_lines: int = _FIX_LINES[-1]
) -> Page:
    """Build the comment; the first finding's fix is folded if the check did not fail."""
    check, report = checked.check, checked.report
    return Page(
        kind="zprof check",
        subject=check.run,
        head=(
            build_verdict(check),
            *build_modelled_notes([report.run, *list_baseline_runs(report)])[:1],
            _list_reasons(checked),
        ),
        sections=(
            *make_section("change", "Change", "", _build_change_table(checked)),
            *_build_fix(checked, max_fix_lines),
            *make_section("gates", "Gates", "", build_gate_table(check, max_gates), detail=True),
        ),
        made_by=f"zprof {check.zprof_version}, {check.schema}",
        data_command="zprof check RUN -f json",
    )


def _list_reasons(checked: Checked) -> ItemList:
    """List the gates that did not pass, and the notices, which have the likely cause."""
    results = [result for result in sort_by_severity(checked.check) if result.outcome in _LISTED]
    gates = [Item(mark=MARKS[result.outcome], text=describe_result(result)[0]) for result in results]
    notices = [Item(text=notice) for notice in checked.check.notices]
    items = [*gates[: max(_MAX_ITEMS - len(notices), _MAX_ITEMS // 2)], *notices][:_MAX_ITEMS]
    return ItemList(items=tuple(items), total=len(items), tight=True)  # the verdict counts the gates


def _build_fix(checked: Checked, max_lines: int) -> tuple[Section, ...]:
    if not checked.causes:
        return ()
    finding, has_failed = checked.causes[0], checked.check.outcome is Outcome.FAILED
    lines = finding.fix.strip().split("\n")
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], f"… and {len(lines) - max_lines + 1} more lines"]
    title = "Fix of the likely cause" if has_failed else "Fix of the first finding of this run"
    return make_section("fix", title, "", Code(lines=tuple(lines)), detail=not has_failed)


def _build_change_table(checked: Checked) -> Table | None:
    """Build one table of the step's terms and of the tenants; parts without a change are listed below it."""
    if checked.current is None:
        return None
    after, before = _list_figures(checked.current), _list_figures(checked.baseline)
    changes: dict[str, Value] = {}
    rows, unchanged = [], []
    for name in dict.fromkeys([*after, *before]):
        unit = (after.get(name) or before[name]).unit
        a, b = (side.get(name, Value(number=None, unit=unit)) for side in (before, after))
        if a.number != b.number or name in _TOTALS:
            changes[name] = _subtract(b, a)
            rows.append((name, a, b, changes[name]))
        elif b.number:
            unchanged.append(f"{name} {format_value(b)}")
    largest = {
        unit: max((abs(each.number or 0) for each in changes.values() if each.unit == unit), default=0)
        for unit in Unit
    }
    notes = [f"unchanged: {', '.join(unchanged)}"] if unchanged else []
    return Table(
        title="Change",
        columns=(
            make_text_column("part"),
            *make_number_columns("before", "after", "change"),
            make_name_column(f"{_MORE} more, {_LESS} less"),
        ),
        rows=tuple(
            Row(
                cells=(name, a, b, change, _draw_change(change.number or 0, largest[change.unit])),
                total=name in _TOTALS,
            )
            for name, a, b, change in rows
            if a.number or b.number
        ),
        max_text_rows=len(rows),
        note="times per step, mean of the ranks; memory at the highest peak; only gates are judged",
        notes=(*notes, *_list_missing(checked.baseline, checked.current)),
    )


def _list_figures(baseline: Baseline | None) -> dict[str, Value]:
    """Return the terms of the step and the tenants of the peak by name; nothing that was not measured."""
    parts = (baseline.time, baseline.memory) if baseline is not None else ()
    return {
        _NAMES.get(key) or tenant_name(key): value
        for part in parts
        if part is not None
        for key, value in part.list_figures().items()
    }


def _subtract(b: Value, a: Value) -> Value:
    known = a.number is not None and b.number is not None
    return Value(
        number=(b.number or 0) - (a.number or 0) if known else None,
        unit=b.unit,
        bound=combine_bounds((b.bound, negate_bound(a.bound))),
        signed=True,
    )


def _draw_change(change: float, largest: float) -> str:
    if not change:
        return ""
    bar = render_bar(abs(change) / largest, _BAR_WIDTH)
    return bar if change > 0 else _LESS * max(1, round(abs(change) / largest * _BAR_WIDTH))


def _list_missing(before: Baseline | None, after: Baseline) -> Iterator[str]:
    """Yield the ranks that a side lacks, as one line."""
    parts = [
        (f"{what} {name}", part.missing_ranks)
        for name, side in (("before", before), ("after", after))
        if side is not None
        for what, part in (("times", side.time), ("memory", side.memory))
        if part is not None and part.missing_ranks
    ]
    if parts:
        yield "; ".join(f"{what}: no rank {format_ranks(ranks)}" for what, ranks in parts)
