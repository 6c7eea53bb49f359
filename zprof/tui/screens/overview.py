"""The first screen: the verdict, where the step goes, and what to change."""

from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Static

from zprof.model.printable import printable_lines
from zprof.tui.pages.communication_parts import units_table
from zprof.tui.pages.overview import (
    findings_table,
    rest_table,
    told_of,
    untested_of,
    verdict_words,
    warning,
    warning_word,
)
from zprof.tui.pages.overview_behind import evidence_table
from zprof.tui.pages.overview_ledger import ledger_table
from zprof.tui.pages.overview_room import (
    LEAST,
    Room,
    cut_warning,
    has_room_behind,
    room_for,
    verdict_lines,
)
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import Loaded, Selected
from zprof.tui.tables import Word
from zprof.tui.theme.looks import look_of
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.paint import cell_text

_HELP = (
    "The verdict, then the step split into terms that sum to it, then findings by what they save.\n"
    "enter on a number: its formula and inputs; on a finding: how it is found, and what to change."
)
#: Lines of the names above, and of the status and keys below; columns beside a verdict.
_BARS, _BESIDE = 3, 2
_BEHIND = ("evidence", "worst")


class OverviewScreen(PageScreen):
    """Verdict, ledger, findings, and what is left over."""

    name_of: ClassVar[str] = "overview"
    help_of: ClassVar[str] = _HELP
    AUTO_FOCUS = "#findings"

    def __init__(self) -> None:
        super().__init__()
        self._words, self._warned, self._room = Text(""), Word(""), Room()

    def parts(self) -> ComposeResult:
        """The answer in lines, and three tables."""
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

    def fill(self, loaded: Loaded, selected: Selected) -> None:
        """From the report."""
        look, report = look_of(self.app), loaded.report
        status, sentence = verdict_words(report)
        self.help_of = f"{status.text} {sentence.text}\n{warning(report)}\n{_HELP}"  # type: ignore[misc]
        self._words = Text(" ").join([cell_text(status, look), cell_text(sentence, look)])
        self._warned = warning_word(report)
        self.query_one("#warnings", Static).display = bool(self._warned.raw)
        tables = {
            "ledger": ledger_table,
            "findings": findings_table,
            "rest": rest_table,
            "worst": units_table,
        }
        for name, make in tables.items():
            self.query_one(f"#{name}", FactTable).show(make(loaded))
        self.query_one("#ledger", FactTable).display = bool(report.time.per_rank)
        self._arrange()
        self._focus_what_there_is()

    def on_data_table_cell_highlighted(self, event: DataTable.CellHighlighted) -> None:
        """Another finding."""
        if event.data_table.id == "findings":
            self._tell()

    def on_resize(self, event: events.Resize) -> None:
        """More room for the focused finding, or less."""
        if self.filled is not None:
            self._arrange()

    def on_fact_table_redrawn(self, event: FactTable.Redrawn) -> None:
        """Other findings, or none, are left of a search."""
        if event.drawn.id == "findings":
            self._tell()

    def _arrange(self) -> None:
        """Room for the verdict first, then for what is left over, the ledger, findings, and what is told."""
        width, height = self.app.size
        lines = verdict_lines(self._words, width - _BESIDE, height)
        self.query_one("#verdict", Static).update(Text("\n").join(lines))
        warned = replace(self._warned, raw=cut_warning(self._warned.text, width - _BESIDE))
        self.query_one("#warnings", Static).update(cell_text(warned, look_of(self.app)))
        above = len(lines) + bool(self.query_one("#warnings").display)
        terms, rows, rest = (self._shown_rows(name) for name in ("ledger", "findings", "rest"))
        self._room = room_for(width, height - _BARS - above - rest, terms, rows)
        is_free, told = self._room.is_free, self.query_one("#told").styles
        findings = self.query_one("#findings").styles
        self.query_one("#ledger").styles.max_height = self._room.ledger
        if is_free:
            findings.height = findings.max_height = told.height = told.max_height = None
        elif rows:
            findings.height, findings.max_height = "1fr", "100%"
            told.height, told.max_height = "auto", max(1, self._room.told)
        else:
            findings.height, told.height, told.max_height = LEAST, "1fr", "100%"
        self._tell()

    def _shown_rows(self, name: str) -> int:
        """Of a table, where it is shown."""
        return self._rows(name) if self.query_one(f"#{name}").display else 0

    def _rows(self, name: str) -> int:
        table = self.query_one(f"#{name}", FactTable).table
        return len(table.lines) if table else 0

    def _tell(self) -> None:
        loaded = self.zprof.loaded
        focused = self.query_one("#findings", FactTable).focused_line()
        said = ""
        if loaded is not None and focused:
            said = told_of(loaded.report, focused[0].target, whole=self._room.is_free)
        elif loaded is not None and not loaded.report.findings:
            said = untested_of(loaded.report)
        text = Text("\n".join(printable_lines(said)))
        self.query_one("#told", Static).update(text)
        self.query_one("#told", Static).display = bool(said) and (self._room.is_free or self._room.told > 0)
        self._show_behind(loaded, focused[0].target if focused else -1, text)

    def _show_behind(self, loaded: Loaded | None, place: int, told: Text) -> None:
        """Evidence of the focused finding, and the worst units, where there is room for them."""
        fits = loaded is not None and has_room_behind(self._room, told, self.app.size.width - _BESIDE)
        if loaded is not None and fits:
            self.query_one("#evidence", FactTable).show(evidence_table(loaded, place))
        there = [fits and self._rows(name) > 0 for name in _BEHIND]
        for name, is_there in zip(_BEHIND, there, strict=True):
            self.query_one(f"#{name}").display = is_there
        self.query_one("#behind").display = any(there)
        if self._room.is_free:
            self.query_one("#told").styles.height = "auto" if any(there) else None

    def _focus_what_there_is(self) -> None:
        """The findings, else the ledger."""
        findings, ledger = self.query_one("#findings", FactTable), self.query_one("#ledger", FactTable)
        if self.focused is None and findings.row_count:
            self.set_focus(findings, scroll_visible=False)
        elif self.focused in (None, findings) and not findings.row_count and ledger.display:
            self.set_focus(ledger, scroll_visible=False)
