"""The compare screen: the run and its baseline side by side."""

from typing import ClassVar

from msgspec.structs import replace
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Static

from zprof.model.formatting import printable
from zprof.tui.keys import Where, bindings
from zprof.tui.presenters.compare import (
    NO_BASELINE,
    CompareOptions,
    build_compare_table,
    build_settings_table,
    explain_no_tokens,
    format_header,
    format_short_verdict,
    settings_differ,
)
from zprof.tui.presenters.overview import format_verdict, format_warning, format_warning_cell
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import LoadedRun, Progress, RunRequest, Selection, swap_baseline
from zprof.tui.table_view import get_text
from zprof.tui.theme import get_look
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.text import TruncatedText, render_cell

_HELP = (
    "This run (B) against its baseline (A).\n"
    "d: differences only. n: times per token, to compare steps with different amounts of work: "
    "step times summed over all ranks, divided by their tokens.\n"
    "x: swap, so that all screens show A and B becomes the baseline. b: choose another baseline."
)
_VERDICT_LINES = 2
#: Actions that need both runs.
_BASELINE_ACTIONS = frozenset({"differences", "per_token", "swap"})


class CompareScreen(PageScreen):
    """Two runs: every figure, the differences, and the settings."""

    #: No automatic focus: tables take the focus when they are shown.
    AUTO_FOCUS: ClassVar[str | None] = ""
    name_of: ClassVar[str] = "compare"
    page_help: ClassVar[str] = _HELP
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.COMPARE)]

    def __init__(self) -> None:
        super().__init__()
        self.shown = CompareOptions()

    def parts(self) -> ComposeResult:
        """Yield a hint for runs without a baseline; else names, verdict and two tables."""
        with Vertical(id="beside"):
            yield Static(Text(NO_BASELINE), id="no-baseline")
            yield Static("", id="sides")
            yield TruncatedText(lines=_VERDICT_LINES, id="verdict")
            yield Static("", id="warnings")
            yield FactTable(id="compare", classes="fill")
            yield FactTable(id="settings")

    def fill(self, loaded: LoadedRun, selected: Selection) -> None:
        """Show the comparison, or the hint if there is no baseline."""
        has_both = loaded.both is not None
        for part in self.query("#beside > *"):
            part.display = has_both != (part.id == "no-baseline")
        if not has_both:
            self.page_help = _HELP  # type: ignore[misc]
            self.set_focus(None)
            return
        if self.shown.per_token and explain_no_tokens(loaded):
            self.shown = CompareOptions(only_differences=self.shown.only_differences)
        self._fill_head(loaded)
        self.query_one("#compare", FactTable).show(build_compare_table(loaded, self.shown))
        self.query_one("#settings", FactTable).show(build_settings_table(loaded, self.shown))

    def _fill_head(self, loaded: LoadedRun) -> None:
        """Show names, verdict and warning, shortened to fit; ``?`` shows them in full."""
        look, report = get_look(self.app), loaded.report
        sides = format_header(loaded, self.shown, self.app.size.width)
        self.query_one("#sides", Static).update(Text("  ").join(render_cell(word, look) for word in sides))
        verdict = Text(" ").join(render_cell(word, look) for word in format_short_verdict(loaded))
        self.query_one("#verdict", TruncatedText).show(verdict)
        self.query_one("#warnings", Static).update(render_cell(format_warning_cell(report), look))
        self.query_one("#warnings", Static).display = bool(format_warning(report))
        parts = [" ".join(get_text(word) for word in format_verdict(report)), format_warning(report), _HELP]
        self.page_help = "\n".join(text for text in parts if text)  # type: ignore[misc]

    def on_resize(self) -> None:
        """Redraw the head for the new width."""
        loaded = self.zprof.loaded
        if self.filled is not None and loaded is not None and loaded.both is not None:
            self._fill_head(loaded)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that need a baseline, so that the footer hides them."""
        if action in _BASELINE_ACTIONS and (self.zprof.loaded is None or self.zprof.loaded.both is None):
            return False
        return super().check_action(action, parameters)

    def action_differences(self) -> None:
        """Toggle between differences only and all rows."""
        shown = CompareOptions(
            only_differences=not self.shown.only_differences, per_token=self.shown.per_token
        )
        loaded = self.zprof.loaded
        if shown.only_differences and loaded is not None and not settings_differ(loaded):
            self.app.notify("all settings are the same", markup=False)
        self._show(shown)

    def action_per_token(self) -> None:
        """Toggle times per token, or notify the user why they are not available."""
        loaded = self.zprof.loaded
        if loaded is None or loaded.both is None:
            return
        reason = "" if self.shown.per_token else explain_no_tokens(loaded)
        if reason:
            self.app.notify(printable(f"not per token: {reason}"), severity="warning", markup=False)
            return
        self._show(
            CompareOptions(only_differences=self.shown.only_differences, per_token=not self.shown.per_token)
        )

    def action_swap(self) -> None:
        """Swap run and baseline on all screens."""
        loaded, request = self.zprof.loaded, self.zprof.request
        if loaded is None or loaded.before_run is None:
            self.app.notify(
                "no baseline to swap with: press b to choose one", severity="warning", markup=False
            )
            return

        def load_swapped(request: RunRequest, progress: Progress) -> LoadedRun:
            return swap_baseline(request, loaded, progress)

        other = replace(request, path=request.baseline or loaded.before_run.path, baseline=request.path)
        self.zprof.measure(other, loader=load_swapped)

    def _show(self, shown: CompareOptions) -> None:
        self.shown, self.filled = shown, None
        self.refill()
