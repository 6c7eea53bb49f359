"""The first screen: the verdict, where the step goes, and what to change."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from zprof.tui.pages.overview import findings_table, ledger_table, verdict_words
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import Loaded, Selected
from zprof.tui.theme.looks import look_of
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.paint import cell_text


class OverviewScreen(PageScreen):
    """Verdict, ledger, findings."""

    name_of: ClassVar[str] = "overview"
    help_of: ClassVar[str] = (
        "The verdict, then the step split into terms that sum to it, then findings by what they save.\n"
        "enter on a number: its formula and inputs; on a finding: how it is found, and what to change."
    )

    def parts(self) -> ComposeResult:
        """A line, and two tables."""
        yield Static("", id="verdict")
        yield FactTable(id="ledger")
        yield FactTable(id="findings", classes="fill")

    def fill(self, loaded: Loaded, selected: Selected) -> None:
        """From the report."""
        words = Text(" ").join(cell_text(word, look_of(self.app)) for word in verdict_words(loaded.report))
        self.query_one("#verdict", Static).update(words)
        self.query_one("#ledger", FactTable).show(ledger_table(loaded))
        self.query_one("#findings", FactTable).show(findings_table(loaded))
