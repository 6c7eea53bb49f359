"""The overview screen: verdict, ledger, findings, and the layout that decides what fits."""

import io
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Static

from zprof.model.formatting import printable_lines
from zprof.tui.presenters.communication_parts import build_units_table
from zprof.tui.presenters.overview import (
    build_evidence_table,
    build_findings_table,
    build_ledger_table,
    build_rest_table,
    describe_finding,
    format_verdict,
    format_warning,
    format_warning_cell,
    list_untested,
)
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.tables import TextCell
from zprof.tui.theme import get_look
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.text import render_cell

_HELP = (
    "The verdict, then the step split into terms that sum to it, then findings by what they save.\n"
    "enter on a number: its formula and inputs; on a finding: how it is found, and what to change."
)
#: Lines of the title, status and key lines; columns of margin next to the verdict.
_LINES_AROUND, _SIDE_MARGIN = 3, 2
_EVIDENCE_TABLES = ("evidence", "worst")


class OverviewScreen(PageScreen):
    """Verdict, ledger, findings, and the remaining facts."""

    name_of: ClassVar[str] = "overview"
    help_of: ClassVar[str] = _HELP
    AUTO_FOCUS = "#findings"

    def __init__(self) -> None:
        super().__init__()
        self._words, self._warned, self._sizes = Text(""), TextCell(""), OverviewLayout()

    def parts(self) -> ComposeResult:
        """Yield the verdict, warnings, ledger, findings and the tables below them."""
        with Vertical(id="answer"):
            yield Static("", id="verdict")
            yield Static("", id="warnings")
            yield FactTable(id="ledger")
            yield FactTable(id="findings", classes="fill")
            yield Static("", id="told")
            with Horizontal(id="behind"):
                yield FactTable(id="evidence", classes="fill")
                yield FactTable(id="worst", classes="fill")
            rest = FactTable(id="rest")
            rest.show_header = False
            yield rest

    def fill(self, loaded: LoadedRun, selected: Selection) -> None:
        """Fill verdict, warning and tables from the report."""
        look, report = get_look(self.app), loaded.report
        status, sentence = format_verdict(report)
        self.help_of = f"{status.text} {sentence.text}\n{format_warning(report)}\n{_HELP}"  # type: ignore[misc]
        self._words = Text(" ").join([render_cell(status, look), render_cell(sentence, look)])
        self._warned = format_warning_cell(report)
        self.query_one("#warnings", Static).display = bool(self._warned.raw)
        tables = {
            "ledger": build_ledger_table,
            "findings": build_findings_table,
            "rest": build_rest_table,
            "worst": build_units_table,
        }
        for name, make in tables.items():
            self.query_one(f"#{name}", FactTable).show(make(loaded))
        self.query_one("#ledger", FactTable).display = bool(report.time.per_rank)
        self._arrange()
        self._focus_what_there_is()

    def on_data_table_cell_highlighted(self, event: DataTable.CellHighlighted) -> None:
        """Describe the newly focused finding."""
        if event.data_table.id == "findings":
            self._tell()

    def on_resize(self, event: events.Resize) -> None:
        """Redo the layout for the new size."""
        if self.filled is not None:
            self._arrange()

    def on_fact_table_redrawn(self, event: FactTable.Redrawn) -> None:
        """Describe the finding that is focused after a search."""
        if event.source.id == "findings":
            self._tell()

    def _arrange(self) -> None:
        """Allot lines: first to the verdict, then to the rest table, ledger, findings and description."""
        width, height = self.app.size
        lines = wrap_verdict(self._words, width - _SIDE_MARGIN, height)
        self.query_one("#verdict", Static).update(Text("\n").join(lines))
        warned = replace(self._warned, raw=shorten_warning(self._warned.text, width - _SIDE_MARGIN))
        self.query_one("#warnings", Static).update(render_cell(warned, get_look(self.app)))
        above = len(lines) + bool(self.query_one("#warnings").display)
        terms, rows, rest = (self._shown_rows(name) for name in ("ledger", "findings", "rest"))
        self._sizes = compute_layout(width, height - _LINES_AROUND - above - rest, terms, rows)
        is_free, told = self._sizes.is_free, self.query_one("#told").styles
        findings = self.query_one("#findings").styles
        self.query_one("#ledger").styles.max_height = self._sizes.ledger
        if is_free:
            findings.height = findings.max_height = told.height = told.max_height = None
        elif rows:
            findings.height, findings.max_height = "1fr", "100%"
            told.height, told.max_height = "auto", max(1, self._sizes.told)
        else:
            findings.height, told.height, told.max_height = MIN_TABLE_HEIGHT, "1fr", "100%"
        self._tell()

    def _shown_rows(self, name: str) -> int:
        """Return the rows of a table, or 0 if it is hidden."""
        return self._rows(name) if self.query_one(f"#{name}").display else 0

    def _rows(self, name: str) -> int:
        table = self.query_one(f"#{name}", FactTable).table
        return len(table.lines) if table else 0

    def _tell(self) -> None:
        loaded = self.zprof.loaded
        focused = self.query_one("#findings", FactTable).focused_line()
        said = ""
        if loaded is not None and focused:
            said = describe_finding(loaded.report, focused[0].target, whole=self._sizes.is_free)
        elif loaded is not None and not loaded.report.findings:
            said = list_untested(loaded.report)
        text = Text("\n".join(printable_lines(said)))
        self.query_one("#told", Static).update(text)
        self.query_one("#told", Static).display = bool(said) and (self._sizes.is_free or self._sizes.told > 0)
        self._show_behind(loaded, focused[0].target if focused else -1, text)

    def _show_behind(self, loaded: LoadedRun | None, place: int, told: Text) -> None:
        """Show the focused finding's evidence and the worst units if they fit."""
        fits = loaded is not None and fits_evidence(self._sizes, told, self.app.size.width - _SIDE_MARGIN)
        if loaded is not None and fits:
            self.query_one("#evidence", FactTable).show(build_evidence_table(loaded, place))
        there = [fits and self._rows(name) > 0 for name in _EVIDENCE_TABLES]
        for name, is_there in zip(_EVIDENCE_TABLES, there, strict=True):
            self.query_one(f"#{name}").display = is_there
        self.query_one("#behind").display = any(there)
        if self._sizes.is_free:
            self.query_one("#told").styles.height = "auto" if any(there) else None

    def _focus_what_there_is(self) -> None:
        """Focus the findings, or the ledger if there are none."""
        findings, ledger = self.query_one("#findings", FactTable), self.query_one("#ledger", FactTable)
        if self.focused is None and findings.row_count:
            self.set_focus(findings, scroll_visible=False)
        elif self.focused in (None, findings) and not findings.row_count and ledger.display:
            self.set_focus(ledger, scroll_visible=False)


#: Limits on the lines of a verdict: in a small terminal, and in others.
_MAX_VERDICT_SMALL, _MAX_VERDICT = 4, 5
_SMALL = 30
_MORE_SIGN = " … (?)"
_WIDE = 100
#: Separators between the facts of a warning.
_SEPARATORS = (";", ",", " ·")
#: Lines of a table's frame and titles; minimum height of a table with one row.
_FRAME, MIN_TABLE_HEIGHT = 3, 4
#: Lines of a finding's description in tight layouts; free lines from which on it is shown in full.
_MAX_FINDING_LINES, _AMPLE_LINES = 2, 14
#: Minimum height, in lines, to show a finding's evidence.
_MIN_EVIDENCE_HEIGHT = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewLayout:
    """Heights of the parts.

    ``ledger``: limit on its lines, None if it fits. ``told``: lines for the description of the focused
    finding, or of the untested rules if there are no findings. ``is_free``: the description fits in full.
    ``below``: lines left below the findings.
    """

    ledger: int | None = None
    told: int = 0
    is_free: bool = False
    below: int = 0


def compute_layout(width: int, left: int, terms: int, findings: int) -> OverviewLayout:
    """Divide `left` lines among a ledger of `terms` rows, the findings, and the description."""
    ledger = terms + _FRAME if terms else 0
    free = left - ledger
    return OverviewLayout(
        ledger=max(MIN_TABLE_HEIGHT, left - MIN_TABLE_HEIGHT) if ledger > left - MIN_TABLE_HEIGHT else None,
        told=max(
            0, min(_MAX_FINDING_LINES, free - _FRAME - findings) if findings else free - MIN_TABLE_HEIGHT
        ),
        is_free=width >= _WIDE and free >= _AMPLE_LINES,
        below=free - _FRAME - findings,
    )


def fits_evidence(sizes: OverviewLayout, told: Text, width: int) -> bool:
    """Return whether evidence and units fit below the description."""
    lines = told.wrap(Console(file=io.StringIO(), width=width), width)
    return sizes.is_free and sizes.below - len(lines) >= _MIN_EVIDENCE_HEIGHT


def shorten_warning(said: str, width: int) -> str:
    """Shorten a warning to a whole fact plus the key that shows the full text."""
    if cell_len(said) <= width:
        return said
    kept = chop_cells(said, width - len(_MORE_SIGN))[0]
    at = max(kept.rfind(sign) for sign in _SEPARATORS)
    return f"{kept[:at] if at > width // 2 else kept.rstrip()}{_MORE_SIGN}"


def wrap_verdict(words: Text, width: int, height: int) -> list[Text]:
    """Wrap the verdict; if it is too long, the last line ends with the key that shows the full text."""
    most = _MAX_VERDICT_SMALL if height < _SMALL else _MAX_VERDICT
    lines = list(words.wrap(Console(file=io.StringIO(), width=width), width))
    if len(lines) > most:
        last = lines[most - 1]
        last.rstrip()
        last.truncate(width - len(_MORE_SIGN))
        lines = [*lines[: most - 1], last.append(_MORE_SIGN)]
    for line in lines:
        line.rstrip()
    return lines
