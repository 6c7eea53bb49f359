"""Build the popups that rows and numbers open: findings, allocations, formula checks, collectives.

Imported when something is first opened: metric help imports the analysis, which would slow down the first
screen.
"""

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical

from zprof.model.cursor import follow, get
from zprof.model.findings import Finding
from zprof.model.formatting import printable, shorten
from zprof.model.gaps import Gap
from zprof.model.quantities import Unit, Value
from zprof.model.report import Report
from zprof.model.whatif import Outlook, PredictedFigure
from zprof.reports.finding_pages import page
from zprof.reports.layout import wrap
from zprof.reports.pages.assumptions import list_assumption_details
from zprof.reports.pages.compare_table import describe_compared
from zprof.reports.pages.findings import format_location, worth
from zprof.reports.pages.hang import describe_standing, describe_wait
from zprof.reports.pages.ledger import build_ledger_table
from zprof.reports.pages.memory_allocations import describe_allocation
from zprof.reports.pages.memory_formulas import describe_formula_check
from zprof.reports.pages.whatif import FIGURES, read_figures
from zprof.reports.table import Opens, Row, Table
from zprof.reports.terminal import render_markdown_text
from zprof.tui.collective_instances import build_instance_table
from zprof.tui.help_texts import format_gaps, get_export, list_screen_gaps
from zprof.tui.number_popup import NumberPopup
from zprof.tui.popups import Popup, TextPopup
from zprof.tui.session import LoadedRun, make_row_judge
from zprof.tui.shell import Shell, format_gap
from zprof.tui.table_view import get_text, is_of_model
from zprof.tui.widgets.fact_table import FactTable

#: Column titles that add nothing to their numbers, so that popup titles leave them out.
_UNNAMED_COLUMNS = frozenset({"ms", "time", "bytes", "size"})
#: Characters of a popup title.
_MAX_TITLE = 120


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
    """Explain a number of the what-if model: its figures and assumption, or why there is none.

    Args:
        report: The report with the prediction.
        number: The number.
        words: What is changed.
        gaps: What could not be predicted.
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
    """Return a number's row and column names; a row that starts with a number has no name."""
    first = line.cells[0]
    columns = zip(table.columns, line.cells, strict=True)
    column = next((column.title for column, cell in columns if cell is number), "")
    names = [
        "" if isinstance(first, Value) else get_text(first),
        "" if column in _UNNAMED_COLUMNS else column,
    ]
    return ", ".join(name for name in names if name)


def open_row(app: Shell, line: Row) -> Popup[None] | None:
    """Return the popup that a row opens, or None if it opens nothing."""
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
        lines = [*wrap(finding.sentence, first="", width=columns), "", *format_worth(finding)]
        if finding.location is not None:
            lines += [f"  in {format_location(finding.location)}"]
        lines += ["", "evidence", *format_evidence(loaded, index, columns)]
        lines += [
            "",
            "what to change (y copies it)",
            *[f"  {line}" for line in finding.fix.strip().split("\n")],
        ]
        lines += ["", "how to disprove it", *wrap(finding.disprove, width=columns)]
        return "\n".join([*lines, "", render_markdown_text(page(finding.cause), columns)])

    return TextPopup(f"{finding.id} {finding.cause.value}", layout_text, copies=finding.fix)


def format_worth(finding: Finding) -> list[str]:
    """Format what a fix saves and frees, and the rule's confidence, as lines."""
    return [f"  {part.strip()}" for part in worth(finding).split(", ")]


def format_evidence(loaded: LoadedRun, index: int, columns: int) -> list[str]:
    """Format a finding's evidence, each fact with its value and unit."""
    lines: list[str] = []
    for fact in loaded.report.findings[index].evidence:
        value = Value(number=fact.value, unit=Unit(fact.unit))
        lines += wrap(fact.what, first=f"  {value.text:>12}  ", width=columns)
    return lines


class TablePopup(Popup[None]):
    """Popup with a table, such as the instances of one collective, or who waits for whom."""

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
