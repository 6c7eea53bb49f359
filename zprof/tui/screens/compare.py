"""The compare screen: the run and its baseline side by side."""

from typing import ClassVar

from msgspec.structs import replace
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Static

from zprof.base.formatting import display_width, printable, shorten
from zprof.model.gaps import GapKind
from zprof.reports.pages.compare_table import (
    CompareOptions,
    build_compare_table,
    build_settings_table,
    name_work_unit,
)
from zprof.reports.pages.head import format_verdict, format_warning, format_warning_cell
from zprof.reports.table import Mark, Marked
from zprof.tui.keys import Where, bindings
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import (
    LoadedRun,
    Progress,
    RunRequest,
    Selection,
    make_row_judge,
    swap_baseline,
)
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
#: Terminal columns of the header line, excluding the two names.
_OTHER_WIDTH = 62
_MIN_NAME_WIDTH = 14
#: A common prefix of both names is cut if it has at least this many characters.
_MIN_COMMON_PREFIX = 4
_NO_BASELINE = (
    "No comparison: this run has no baseline.\n\n"
    "  b              enter the path of another run to use as the baseline\n"
    "  zprof tui RUN --baseline OTHER_RUN\n\n"
    "The verdict then shows whether this run is slower than the baseline, by how much, and why."
)


class CompareScreen(PageScreen):
    """Two runs: every figure, the differences, and the settings."""

    #: No automatic focus: tables take the focus once shown.
    AUTO_FOCUS: ClassVar[str | None] = ""
    name_of: ClassVar[str] = "compare"
    page_help: ClassVar[str] = _HELP
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.COMPARE)]

    def __init__(self) -> None:
        super().__init__()
        self.shown = CompareOptions()

    def parts(self) -> ComposeResult:
        """Yield a hint for runs without a baseline, and names, verdict and two tables for the rest."""
        with Vertical(id="beside"):
            yield Static(Text(_NO_BASELINE), id="no-baseline")
            yield Static("", id="sides")
            yield TruncatedText(lines=_VERDICT_LINES, id="verdict")
            yield Static("", id="warnings")
            yield FactTable(id="compare", classes="fill")
            yield FactTable(id="settings")

    def fill(self, loaded: LoadedRun, selected: Selection) -> None:
        """Show the comparison, or the hint if there is no baseline."""
        both = loaded.both
        for part in self.query("#beside > *"):
            part.display = (both is not None) != (part.id == "no-baseline")
        if both is None:
            self.page_help = _HELP  # type: ignore[misc]
            is_coming = self.zprof.is_measuring and self.zprof.request.baseline is not None
            hint = f"{self.zprof.request.baseline} is compared when causes are judged"
            self.query_one("#no-baseline", Static).update(
                Text(printable(hint) if is_coming else _NO_BASELINE)
            )
            self.set_focus(None)
            return
        if self.shown.per_token and _explain_no_tokens(loaded):
            self.shown = CompareOptions(only_differences=self.shown.only_differences)
        self._fill_head(loaded)
        judge = make_row_judge(loaded, per_work=self.shown.per_token)
        table = build_compare_table(loaded.report, both, judge, self.shown)
        self.query_one("#compare", FactTable).show(table)
        self.query_one("#settings", FactTable).show(build_settings_table(both, self.shown))

    def _fill_head(self, loaded: LoadedRun) -> None:
        """Show names, verdict and warning, shortened to fit; ``?`` shows them in full."""
        look, report = get_look(self.app), loaded.report
        # Format the names of A and B and the display options for a terminal width.
        comparison = loaded.report.comparison
        before = comparison.baseline if comparison else (loaded.both.a.name if loaded.both else "")
        max_width = max(_MIN_NAME_WIDTH, (self.app.size.width - _OTHER_WIDTH) // 2)
        # Shorten two names to ``max_width`` columns each, cutting their common prefix first.
        names = (printable(before), printable(loaded.report.run.name))
        prefix = next((index for index, (a, b) in enumerate(zip(*names, strict=False)) if a != b), 0)
        if prefix >= _MIN_COMMON_PREFIX and max(map(display_width, names)) > max_width:
            names = (f"…{names[0][prefix:]}", f"…{names[1][prefix:]}")
        names = shorten(names[0], max_width), shorten(names[1], max_width)
        sides = [
            Marked(f"A {names[0]} (baseline)", Mark.TITLE),
            Marked(f"B {names[1]} (this run)", Mark.TITLE),
            Marked(f"per {name_work_unit(loaded.report) if self.shown.per_token else 'step'}", Mark.MUTED),
            Marked("differences only" if self.shown.only_differences else "all rows", Mark.MUTED),
        ]
        self.query_one("#sides", Static).update(Text("  ").join(render_cell(word, look) for word in sides))
        status, sentence = format_verdict(report)
        short_verdict = (status, sentence.partition(", because ")[0])  # the overview shows the cause
        verdict = Text(" ").join(render_cell(word, look) for word in short_verdict)
        self.query_one("#verdict", TruncatedText).show(verdict)
        self.query_one("#warnings", Static).update(render_cell(format_warning_cell(report), look))
        self.query_one("#warnings", Static).display = bool(format_warning(report))
        parts = [f"{get_text(status)} {get_text(sentence)}", format_warning(report), _HELP]
        self.page_help = "\n".join(text for text in parts if text)  # type: ignore[misc]

    def on_resize(self) -> None:
        """Redraw the head for the new width."""
        loaded = self.zprof.loaded
        if self.filled is not None and loaded is not None and loaded.both is not None:
            self._fill_head(loaded)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that need a baseline; the footer then hides them."""
        if action in _BASELINE_ACTIONS and (self.zprof.loaded is None or self.zprof.loaded.both is None):
            return False
        return super().check_action(action, parameters)

    def action_differences(self) -> None:
        """Toggle between differences only and all rows."""
        shown = CompareOptions(
            only_differences=not self.shown.only_differences, per_token=self.shown.per_token
        )
        loaded = self.zprof.loaded
        settings = loaded.both.settings if loaded is not None and loaded.both is not None else None
        if shown.only_differences and settings is not None and all(each.a == each.b for each in settings):
            self.app.notify("all settings are the same", markup=False)
        self._show(shown)

    def action_per_token(self) -> None:
        """Toggle times per token, or tell the user why they are unavailable."""
        loaded = self.zprof.loaded
        if loaded is None or loaded.both is None:
            return
        reason = "" if self.shown.per_token else _explain_no_tokens(loaded)
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


def _explain_no_tokens(loaded: LoadedRun) -> str:
    """Explain why times cannot be shown per token; empty if they can be."""
    comparison = loaded.report.comparison
    if comparison is None or comparison.step_time is None:
        return "step times of both runs are required"
    if comparison.equal_work is None:
        gap = next((gap for gap in loaded.report.gaps if gap.kind is GapKind.UNEQUAL_WORK), None)
        return f"{gap.reason} ({gap.remedy})" if gap else "the work per step is unknown for both runs"
    runs = [loaded.report.run, *([comparison.baseline_run] if comparison.baseline_run else [])]
    if any(len(run.ranks_loaded) < run.world_size for run in runs):
        return "not all ranks are loaded, but the token count covers all ranks"
    return ""
