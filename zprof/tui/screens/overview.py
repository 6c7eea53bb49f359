"""The first screen: the verdict, where the step goes, and what to change."""

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import DataTable, Static

from zprof.model.printable import printable_lines
from zprof.tui.pages.overview import findings_table, rest_table, told_of, verdict_words, warning, warning_word
from zprof.tui.pages.overview_ledger import ledger_table
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import Loaded, Selected
from zprof.tui.theme.looks import look_of
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.paint import cell_text

_HELP = (
    "The verdict, then the step split into terms that sum to it, then findings by what they save.\n"
    "enter on a number: its formula and inputs; on a finding: how it is found, and what to change."
)
_WIDE = 100


class OverviewScreen(PageScreen):
    """Verdict, ledger, findings, and what is left over."""

    name_of: ClassVar[str] = "overview"
    help_of: ClassVar[str] = _HELP
    AUTO_FOCUS = "#findings"

    def parts(self) -> ComposeResult:
        """The answer in lines, and three tables."""
        with Vertical(id="answer"):
            yield Static("", id="verdict")
            yield Static("", id="warnings")
            yield FactTable(id="ledger")
            yield FactTable(id="findings", classes="fill")
            yield Static("", id="told")
            rest = FactTable(id="rest")
            rest.show_header = False
            yield rest

    def fill(self, loaded: Loaded, selected: Selected) -> None:
        """From the report."""
        look, report = look_of(self.app), loaded.report
        status, sentence = verdict_words(report)
        self.help_of = f"{status.text} {sentence.text}\n{warning(report)}\n{_HELP}"  # type: ignore[misc]
        words = Text(" ").join([cell_text(status, look), cell_text(sentence, look)])
        warned = warning_word(report)
        self.query_one("#verdict", Static).update(words)
        self.query_one("#warnings", Static).update(cell_text(warned, look))
        self.query_one("#warnings", Static).display = bool(warned.raw)
        tables = {"ledger": ledger_table, "findings": findings_table, "rest": rest_table}
        for name, make in tables.items():
            self.query_one(f"#{name}", FactTable).show(make(loaded))
        self.query_one("#ledger", FactTable).display = bool(report.time.per_rank)
        self._tell()
        self._focus_what_there_is()

    def on_data_table_cell_highlighted(self, event: DataTable.CellHighlighted) -> None:
        """Another finding."""
        self._tell()

    def on_resize(self, event: events.Resize) -> None:
        """More room for the focused finding, or less."""
        if self.filled is not None:
            self._tell()

    def _tell(self) -> None:
        loaded = self.zprof.loaded
        focused = self.query_one("#findings", FactTable).focused_line()
        said = ""
        if loaded is not None and focused:
            said = told_of(loaded.report, focused[0].target, whole=self.app.size.width >= _WIDE)
        self.query_one("#told", Static).update(Text("\n".join(printable_lines(said))))
        self.query_one("#told", Static).display = bool(said)

    def _focus_what_there_is(self) -> None:
        """The findings, else the ledger."""
        findings, ledger = self.query_one("#findings", FactTable), self.query_one("#ledger", FactTable)
        if self.focused is None and findings.row_count:
            self.set_focus(findings, scroll_visible=False)
        elif self.focused in (None, findings) and not findings.row_count:
            self.set_focus(ledger, scroll_visible=False)
