"""The run and its baseline side by side."""

from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Static

from zprof.model.printable import printable
from zprof.tui.keys import Where, bindings
from zprof.tui.pages.compare import (
    NO_BASELINE,
    Shown,
    compare_table,
    head_words,
    settings_table,
    short_verdict,
    why_no_tokens,
)
from zprof.tui.pages.overview import warning, warning_word
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import Asked, Loaded, Progress, Selected, turned
from zprof.tui.theme.looks import look_of
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.paint import cell_text


class CompareScreen(PageScreen):
    """Two runs: every figure, what differs, and how they were run."""

    name_of: ClassVar[str] = "compare"
    help_of: ClassVar[str] = (
        "This run (B) against its baseline (A).\n"
        "d: only what differs. n: times per token, for runs that work off different amounts in a step.\n"
        "x: A becomes the run that all screens show, B its baseline. b: another baseline."
    )
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.COMPARE)]

    def __init__(self) -> None:
        super().__init__()
        self.shown = Shown()

    def parts(self) -> ComposeResult:
        """What to do without a baseline; else which is which, the verdict, and two tables."""
        with Vertical(id="beside"):
            yield Static(Text(NO_BASELINE), id="no-baseline")
            yield Static("", id="sides")
            yield Static("", id="verdict")
            yield Static("", id="warnings")
            yield FactTable(id="compare", classes="fill")
            yield FactTable(id="settings")

    def fill(self, loaded: Loaded, selected: Selected) -> None:
        """From what both say."""
        has_both = loaded.both is not None
        for part in self.query("#beside > *"):
            part.display = has_both != (part.id == "no-baseline")
        if not has_both:
            return
        if self.shown.per_token and why_no_tokens(loaded):
            self.shown = Shown(only_differences=self.shown.only_differences)
        self._fill_head(loaded)
        self.query_one("#compare", FactTable).show(compare_table(loaded, self.shown))
        self.query_one("#settings", FactTable).show(settings_table(loaded, self.shown))

    def _fill_head(self, loaded: Loaded) -> None:
        look = look_of(self.app)
        words = {"sides": head_words(loaded, self.shown), "verdict": short_verdict(loaded)}
        for name, said in words.items():
            text = Text("  " if name == "sides" else " ").join(cell_text(word, look) for word in said)
            self.query_one(f"#{name}", Static).update(text)
        self.query_one("#warnings", Static).update(cell_text(warning_word(loaded.report), look))
        self.query_one("#warnings", Static).display = bool(warning(loaded.report))

    def action_differences(self) -> None:
        """Only what differs, or all."""
        self._show(Shown(only_differences=not self.shown.only_differences, per_token=self.shown.per_token))

    def action_per_token(self) -> None:
        """Times per token, where the tokens of both are known; else why not."""
        loaded = self.zprof.loaded
        if loaded is None or loaded.both is None:
            return
        reason = "" if self.shown.per_token else why_no_tokens(loaded)
        if reason:
            self.app.notify(printable(f"not per token: {reason}"), severity="warning", markup=False)
            return
        self._show(Shown(only_differences=self.shown.only_differences, per_token=not self.shown.per_token))

    def action_swap(self) -> None:
        """The baseline becomes the run, and the run its baseline: on all screens."""
        loaded, asked = self.zprof.loaded, self.zprof.asked
        if loaded is None or loaded.before_run is None:
            self.app.notify(
                "there is no baseline to swap with: b names one", severity="warning", markup=False
            )
            return

        def turn(asked: Asked, progress: Progress) -> Loaded:
            return turned(asked, loaded, progress)

        other = replace(asked, path=asked.baseline or loaded.before_run.path, baseline=asked.path)
        self.zprof.measure(other, loader=turn)

    def _show(self, shown: Shown) -> None:
        self.shown, self.filled = shown, None
        self.refill()
