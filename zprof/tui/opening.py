"""Build the popups opened by rows and numbers: findings, allocations, formula checks, collectives.

A number opens its meaning, formula, inputs and source rows.  For a collective, the popup lists the most
exposed instances of its kind, group and element type. The module is imported when something is first opened:
metric help imports the analysis, which would slow down the first screen.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from msgspec.structs import replace
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Texts
from zprof.analysis.source_rows import find_source_rows
from zprof.analysis.tables import make_collective_table, pick_most_exposed, select_rows
from zprof.base.formatting import printable, shorten
from zprof.model.cursor import follow, get, read
from zprof.model.gaps import Gap
from zprof.model.metrics import find_metric
from zprof.model.plan import Outlook, PredictedFigure
from zprof.model.quantities import (
    EVERY,
    Aggregation,
    Bound,
    Bounds,
    Path,
    Unit,
    Value,
    find_unit,
    resolve_input,
    strip_unit,
)
from zprof.model.report import Report
from zprof.model.time import SPLIT_BOUNDS, CollectiveTime, LateReason
from zprof.reports.finding_pages import read_page
from zprof.reports.layout import render_markdown_text, wrap
from zprof.reports.pages.collectives import name_collective
from zprof.reports.pages.compare_table import describe_compared
from zprof.reports.pages.findings import format_location, worth
from zprof.reports.pages.hang import describe_standing, describe_wait
from zprof.reports.pages.ledger import build_ledger_table
from zprof.reports.pages.memory_allocations import describe_allocation
from zprof.reports.pages.memory_formulas import describe_formula_check
from zprof.reports.pages.plan import list_assumption_details
from zprof.reports.pages.whatif import FIGURES, read_figures
from zprof.reports.table import Cell, Column, Kind, Mark, Opens, Row, Table
from zprof.tui.help_texts import format_gaps, get_export, list_screen_gaps
from zprof.tui.popups import Popup, TextPopup
from zprof.tui.session import LoadedRun, make_row_judge
from zprof.tui.shell import Shell, format_gap
from zprof.tui.table_view import get_text, is_of_model
from zprof.tui.theme import MARKS, get_look
from zprof.tui.widgets.fact_table import FactTable, PagedTable

#: Column titles that popup titles omit, because they add nothing to the numbers.
_UNNAMED_COLUMNS = frozenset({"ms", "time", "bytes", "size"})
#: Maximum characters of a popup title.
_MAX_TITLE = 120
MAX_INSTANCES = 200
_HELP = (
    "One row per rank and collective: a collective that runs once per step on 2 ranks has 2 rows per step. "
    "wait: until the last rank of the group arrived; transfer: after that; exposed: the part of both during "
    "which the rank was blocked.\nlast: the rank that arrived last; tied: all arrived within the clock "
    "uncertainty; unknown: not all ranks were matched.\nwhy late: what the last rank spent more time on "
    "beforehand than the others: compute, host (Python, launches), previous collective (it finished that one "
    "late), copies, allocator, sync, data; profiler start: the first collective of the window, which is not "
    "meaningful; blank: no rank was late, or the reason is unknown.\nIf not all ranks are matched, waits are "
    "lower bounds and transfers upper bounds."
)
#: Reasons with a display text that differs from their name.
_REASONS: Mapping[str, str] = {
    LateReason.PREVIOUS_COLLECTIVE: "previous collective",
    LateReason.MEMCPY: "copies",
}
_COLUMNS = (
    Column(
        title="rank",
    ),
    Column(
        title="step",
    ),
    Column(title="unit", kind=Kind.TEXT, help="the wrapped module"),
    Column(
        title="exposed",
        help="in ms",
    ),
    Column(
        title="wait",
        help="in ms, hidden or exposed",
    ),
    Column(
        title="transfer",
        help="in ms, hidden or exposed",
    ),
    Column(title="last", kind=Kind.TEXT, help="the rank that arrived last"),
    Column(title="why late", kind=Kind.TEXT, help="what delayed the last rank; blank: unknown"),
    Column(title="delay from", kind=Kind.TEXT, help="the rank on which the delay started", from_width=100),
    Column(title="start", help="in ms after the start of the step", from_width=100),
    Column(title="bytes", help="of the full tensor", from_width=110),
    Column(title="launch delay", help="from launch to start", from_width=125),
    Column(title="matched", kind=Kind.TEXT, help="yes if the rows of all ranks were found", from_width=140),
)
_MAX_LEAVES = 8
#: Width of the column of input names.
_NAME_WIDTH = 26
#: Leaves with this prefix, and their rows, come from the baseline.
_BASELINE = "comparison.baseline_"


def open_number(app: Shell, number: Value, line: Row, table: Table) -> Popup[None]:
    """Return the popup that explains a number of this row."""
    title = shorten(format_title(number, line, table), _MAX_TITLE)
    shown = get_export(app)
    assert app.loaded is not None
    if is_of_model(number) and shown is not None:
        lines = explain_model_number(shown.report, number, table.title, list_screen_gaps(app))
        return TextPopup(f"{title}: {number.text}", "\n".join(lines))
    return NumberPopup(number, title, app.loaded)


def explain_model_number(report: Report, number: Value, words: str, gaps: Sequence[Gap]) -> list[str]:
    """Explain a number of the what-if model: its figures and assumption, or why it is missing.

    Args:
        report: The report with the prediction.
        number: The number.
        words: The changes as text.
        gaps: Gaps in the prediction.
    """
    place, outlook = follow(report, number.leaves[0].parent), report.outlook
    figure = get(place)
    if isinstance(figure, PredictedFigure) and outlook is not None:
        cells = [replace(cell, in_ms=False) for cell in read_figures(place, figure.name)]
        lines = [
            f"for: {words}",
            "",
            *(f"  {column.title:<10} {cell.text}" for column, cell in zip(FIGURES, cells, strict=True)),
            "",
            *_explain_assumption(outlook, figure.assumption),
        ]
        if outlook.calibration is not None:
            lines += [
                f"fitted to {outlook.calibration.steps} steps of this run; press m for the model's inputs"
            ]
    elif number.number is not None:
        lines = ["an input of the model, taken from this run; predictions are based on it"]
    else:
        is_whole = outlook is not None and any(each.step and each.memory for each in outlook.predictions)
        if is_whole or not gaps:
            return ["not predicted: the model does not cover this value"]
        return "\n\n".join(f"not predicted: {format_gap(gap)}" for gap in gaps).split("\n")
    where = "in zprof whatif RUN -f json, and in the report written by e:"
    return [*lines, "", where, f"  {number.leaves[0]}"]


def _explain_assumption(outlook: Outlook, key: str) -> list[str]:
    assumption = outlook.assumptions.get(key)
    if assumption is None:
        return [f"assumption  {key or 'none'}: not stated"]
    details = (("formula", assumption.formula), *list_assumption_details(assumption))
    return [f"assumption  {key}", *(f"  {name:<10}  {text}" for name, text in details)]


def format_title(number: Value, line: Row, table: Table) -> str:
    """Return the row and column names of a number; a row that starts with a number has no name."""
    first = line.cells[0]
    columns = zip(table.columns, line.cells, strict=True)
    column = next((column.title for column, cell in columns if cell is number), "")
    names = [
        "" if isinstance(first, Value) else get_text(first),
        "" if column in _UNNAMED_COLUMNS else column,
    ]
    return ", ".join(name for name in names if name)


def open_row(app: Shell, line: Row) -> Popup[None] | None:
    """Return the popup of a row, or None if the row opens nothing."""
    loaded = app.loaded
    if loaded is not None and line.opens is Opens.ALLOCATION:
        return TextPopup(*describe_allocation(loaded.report, line.target))
    if loaded is not None and line.opens is Opens.FORMULA:
        return TextPopup(*describe_formula_check(loaded.report, line.target, loaded.run.manifest.training))
    if loaded is not None and line.opens is Opens.GAP:
        return TextPopup("what could not be measured", format_gaps(app))
    if loaded is not None and line.opens is Opens.COLLECTIVE:
        return TablePopup(build_instance_table(loaded.analysis, loaded.report.time.collectives[line.target]))
    if loaded is not None and loaded.both is not None and line.opens is Opens.COMPARED:
        return TextPopup(*describe_compared(loaded.both, make_row_judge(loaded), line.key))
    if loaded is not None and line.opens is Opens.LEDGER:
        return TablePopup(build_ledger_table(loaded.report))
    if loaded is not None and line.opens is Opens.WAIT:
        return TextPopup(*describe_wait(loaded.report, line.target))
    if loaded is not None and line.opens is Opens.STANDING:
        return TextPopup(*describe_standing(loaded.report, line.target))
    if loaded is None or line.opens is not Opens.FINDING:
        return None
    return _open_finding(loaded, line.target)


def _open_finding(loaded: LoadedRun, index: int) -> Popup[None]:
    finding = loaded.report.findings[index]

    def layout_text(columns: int) -> str:
        # Format the time a fix saves, the memory it frees, and the confidence of the rule.
        lines = [
            *wrap(finding.sentence, first="", width=columns),
            "",
            *[f"  {part.strip()}" for part in worth(finding).split(", ")],
        ]
        if finding.location is not None:
            lines += [f"  in {format_location(finding.location)}"]
        lines += ["", "evidence", *format_evidence(loaded, index, columns)]
        lines += [
            "",
            "what to change (y copies it)",
            *[f"  {line}" for line in finding.fix.strip().split("\n")],
        ]
        lines += ["", "how to disprove it", *wrap(finding.disprove, width=columns)]
        return "\n".join([*lines, "", render_markdown_text(read_page(finding.id), columns)])

    return TextPopup(f"{finding.id} {finding.cause}", layout_text, copies=finding.fix)


def format_evidence(loaded: LoadedRun, index: int, columns: int) -> list[str]:
    """Format a finding's evidence, each fact with value and unit."""
    lines: list[str] = []
    for fact in loaded.report.findings[index].evidence:
        value = Value(number=fact.value, unit=Unit(fact.unit))
        lines += wrap(fact.what, first=f"  {value.text:>12}  ", width=columns)
    return lines


class TablePopup(Popup[None]):
    """Popup with a table, such as the instances of a collective, or who waits for whom."""

    CSS: ClassVar[str] = """
    TablePopup #popup { width: 100%; max-width: 190; height: 90%; padding: 0; }
    TablePopup FactTable { height: 1fr; border: none; }
    TablePopup FactTable:focus { border: none; }
    """

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table

    def compose(self) -> ComposeResult:
        """Yield the table in a frame."""
        with Vertical(id="popup") as frame:
            frame.border_title = Text(printable(self.table.title))
            frame.border_subtitle = Text(printable(f"{self.table.note}  esc: back"))
            yield FactTable(id=self.table.name, classes="fill")

    def on_mount(self) -> None:
        """Fill the table."""
        self.query_one(FactTable).show(self.table)


def build_instance_table(analysis: RunAnalysis, entry: CollectiveTime) -> Table:
    """Build the instance table of one collectives row, most exposed first.

    The numbers are not in the report.
    """
    rows = select_rows(analysis, entry)
    worst = make_collective_table(analysis, pick_most_exposed(rows, MAX_INSTANCES))
    matched = int(rows.bools("matched").sum())
    matched_text = "all matched" if matched == len(rows) else f"{matched} matched"
    return Table(
        name="instances",
        title=name_collective(entry),
        columns=_COLUMNS,
        rows=tuple(
            Row(key=str(number), cells=_make_cells(row)) for number, row in enumerate(worst.list_rows())
        ),
        help=_HELP,
        note=f"{len(worst)} of {len(rows)}, most exposed first; {matched_text}; ? explains why late",
    )


def _make_cells(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    bounds = SPLIT_BOUNDS if row["bound"] else {}
    reason = row["late_reason"] or ""
    last = "tied" if row["matched"] else "unknown"
    if row["last_rank"] is not None:
        last = str(row["last_rank"])
    return (
        _make_value(row, "rank"),
        _make_value(row, "step"),
        row["unit"] or "",
        _make_value(row, "exposed_ns", in_ms=True),
        _make_value(row, "wait_ns", bounds, in_ms=True),
        _make_value(row, "transfer_ns", bounds, in_ms=True),
        last,
        "profiler start" if row["first_of_window"] else _REASONS.get(reason, reason),
        ("" if row["origin_rank"] is None else str(row["origin_rank"])),
        _make_value(row, "start_in_step_ns", in_ms=True),
        _make_value(row, "bytes"),
        _make_value(row, "launch_delay_ns"),
        ("yes" if row["matched"] else "no"),
    )


def _make_value(
    row: Mapping[str, Any], name: str, bounds: Bounds | None = None, *, in_ms: bool = False
) -> Value:
    return Value(
        number=None if row[name] is None else float(row[name]),
        unit=find_unit(name),
        bound=(bounds or {}).get(name, Bound.EXACT),
        in_ms=in_ms,
    )


class NumberPopup(Popup[None]):
    """Popup with the formula, inputs and source rows of a number."""

    CSS: ClassVar[str] = """
    NumberPopup #popup { max-width: 190; }
    NumberPopup FactTable { scrollbar-size-horizontal: 0; }
    """

    def __init__(self, number: Value, title: str, loaded: LoadedRun) -> None:
        super().__init__()
        self.number, self.shown_title, self.loaded = number, title, loaded
        self._rows = find_rows(number, loaded)

    def compose(self) -> ComposeResult:
        """Yield the explanation, and below it a table if the number has source rows."""
        with VerticalScroll(id="popup") as frame:
            frame.border_title = Text(f"{printable(self.shown_title)}: {self.number.text}")
            frame.border_subtitle = "esc: back"
            text = Text("\n".join(explain_number(self.number, self.loaded)))
            text.highlight_words(
                [str(leaf) for leaf in list_leaves(self.number)], MARKS[Mark.MUTED].colour(get_look(self.app))
            )
            yield Static(text)
            if self._rows is not None and len(self._rows):
                yield PagedTable(id="rows")

    def on_mount(self) -> None:
        """Fill the table of source rows."""
        if self._rows is not None and len(self._rows):
            self.query_one("#rows", FactTable).show(build_rows_table(self._rows, self.number.leaves[0].name))
            self.call_after_refresh(self._update_key_hint)

    def on_resize(self) -> None:
        """Update the key hint, because a different number of columns fits."""
        self.call_after_refresh(self._update_key_hint)

    def _update_key_hint(self) -> None:
        """Show in the frame that more columns exist; a scroll bar would cover the only row."""
        for table in self.query(FactTable):
            is_cut_off = table.virtual_size.width > table.size.width
            more = "tab, left, right: more columns, " if is_cut_off else ""
            self.query_one("#popup").border_subtitle = f"{more}esc: back"


def explain_number(number: Value, loaded: LoadedRun) -> list[str]:
    """Format a number's meaning, formula, leaves and inputs as lines."""
    lines = []
    meaning = find_metric(number.leaves[0]) if number.leaves else None
    if meaning:
        lines += [meaning.help, *([f"formula  {meaning.formula}"] if meaning.formula else [])]
    if number.how is not Aggregation.LEAF:
        lines.append(f"this is  {number.how.value}")
    lines += [f"  {_get_leaf_title(leaf)}  {leaf}" for leaf in list_leaves(number)]
    if meaning and len(number.leaves) == 1:
        lines += _format_inputs(number.leaves[0], meaning.inputs, loaded)
    return lines


def list_leaves(number: Value) -> list[Path]:
    """Return the first `_MAX_LEAVES` distinct leaves of a number."""
    leaves = dict.fromkeys(number.leaves)
    return list(leaves)[:_MAX_LEAVES]


def _get_leaf_title(leaf: Path) -> str:
    """Return the name of a leaf as shown on screens."""
    meaning = find_metric(leaf)
    return meaning.title if meaning else strip_unit(leaf.name)


def _format_inputs(leaf: Path, names: tuple[str, ...], loaded: LoadedRun) -> list[str]:
    paths = [resolve_input(leaf, name) for name in names]
    figures = [
        (
            path,
            read(
                follow(loaded.report, path),
                how=Aggregation.MEAN if EVERY in path.parts else Aggregation.LEAF,
            ),
        )
        for path in paths
    ]
    shown = [
        (_get_leaf_title(path), value.text, str(path).removeprefix(f"{leaf.parent}."))
        for path, value in figures
    ]
    lines = [
        f"  {shorten(title, _NAME_WIDTH):<{_NAME_WIDTH}} {text:>12}  {name}" for title, text, name in shown
    ]
    return ["inputs", *lines] if figures else []


def find_rows(number: Value, loaded: LoadedRun) -> Columns | None:
    """Return the source rows of a measured number; None if unavailable."""
    if not number.leaves:
        return None
    baseline = loaded.before if str(number.leaves[0]).startswith(_BASELINE) else None
    return find_source_rows(number.leaves[0], baseline or loaded.analysis)


_MAX_ROWS = 50
_FIRST_COLUMNS = ("step", "rank")


def build_rows_table(rows: Columns, first_column: str = "") -> Table:
    """Return a table of the first `_MAX_ROWS` rows: step, rank, ``first_column``, then the other columns.

    The numbers have no leaves, because leaves are computed from them.
    """
    shown = rows.at(slice(_MAX_ROWS))
    first = [name for name in (*_FIRST_COLUMNS, first_column) if name in shown]
    names = [*first, *(name for name in shown.names if name not in first)]
    columns = tuple(
        Column(title=strip_unit(name), kind=Kind.TEXT if isinstance(shown[name], Texts) else Kind.NUMBER)
        for name in names
    )
    cells = ([_make_cell(name, value) for value in shown[name].tolist()] for name in names)
    lines = [Row(key=str(index), cells=row) for index, row in enumerate(zip(*cells, strict=True))]
    note = f"first {len(shown)} of {len(rows)}" if len(rows) > len(shown) else ""
    return Table(name="rows", title="measured from", columns=columns, rows=tuple(lines), note=note)


def _make_cell(name: str, value: str | float | None) -> Cell:
    if value is None or isinstance(value, bool | str):
        return "" if value is None else str(value)
    return Value(number=None if np.isnan(value) else float(value), unit=find_unit(name), leaves=())
