"""The terminal app: its screens, the actions of keys, and the popups of cells.

State is in `shell.py`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace
from textual import work
from textual.app import SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from zprof.base.errors import ZprofError
from zprof.base.formatting import printable
from zprof.reports.table import Opens
from zprof.tui import export, help_texts
from zprof.tui.keys import KEYS, Where, bindings
from zprof.tui.popups import LinePopup, PickPopup, Popup, TextPopup
from zprof.tui.screens.overview import OverviewScreen
from zprof.tui.screens.page_screen import PageScreen, SearchTarget
from zprof.tui.session import preview_run
from zprof.tui.shell import Shell, format_error
from zprof.tui.table_view import find_number
from zprof.tui.theme import Palette
from zprof.tui.widgets.fact_table import FactTable


def _load_memory() -> PageScreen:
    from zprof.tui.screens.memory import MemoryScreen

    return MemoryScreen()


def _load_communication() -> PageScreen:
    from zprof.tui.screens.communication import CommunicationScreen

    return CommunicationScreen()


def _load_timeline() -> PageScreen:
    from zprof.tui.screens.timeline import TimelineScreen

    return TimelineScreen()


def _load_ranks() -> PageScreen:
    from zprof.tui.screens.ranks import RanksScreen

    return RanksScreen()


def _load_compare() -> PageScreen:
    from zprof.tui.screens.compare import CompareScreen

    return CompareScreen()


def _load_plan() -> PageScreen:
    from zprof.tui.screens.plan import PlanScreen

    return PlanScreen()


SCREENS: Mapping[str, Callable[[], PageScreen]] = {
    "overview": OverviewScreen,
    "memory": _load_memory,
    "communication": _load_communication,
    "timeline": _load_timeline,
    "ranks": _load_ranks,
    "compare": _load_compare,
    "plan": _load_plan,
}


#: Screens that show the selected rank.
_RANK_SCREENS = frozenset({"memory", "timeline", "ranks"})


class ZprofApp(Shell):
    """The app with all screens for one run and an optional baseline."""

    TITLE = "zprof"
    CSS_PATH = "zprof.tcss"
    SCREENS: ClassVar[dict[str, Callable[[], Screen[Any]]]] = {**SCREENS}
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.EVERYWHERE)]
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [  # noqa: RUF012 as Textual declares it
        (0, "-narrow"),
        (100, "-wide"),
    ]

    def on_mount(self) -> None:
        """Show the facts from the manifest, then measure the run in the background."""
        try:
            self.preview = preview_run(self.request)
        except ZprofError as error:
            self.say(format_error(error))
        self.push_screen("overview")
        self.theme_changed_signal.subscribe(self, lambda _: self.refill())
        if self.loaded is None and self.preview is not None:
            self.call_after_refresh(self.measure, self.request)

    def action_show(self, name: str) -> None:
        """Close any popups and switch to a screen by name."""
        while isinstance(self.screen, Popup | Palette):
            self.pop_screen()
        if name not in SCREENS or self.screen is self.get_screen(name):
            return
        if isinstance(self.screen, PageScreen):
            self.switch_screen(name)
        else:  # the first screen is not there yet
            self.push_screen(name)

    def action_explain(self) -> None:
        """Open a popup that explains the focused part of the screen."""
        self.push_screen(TextPopup(*help_texts.explain_focus(self)))

    def action_help(self) -> None:
        """Open the list of all keys, starting with those of the current screen."""
        self.push_screen(TextPopup("keys", help_texts.format_keys(help_texts.sort_keys(self.screen))))

    def action_pick_rank(self) -> None:
        """Let the user pick one of the loaded ranks."""
        choices, current = help_texts.list_rank_choices(self), self.selected.rank
        self._pick("rank", choices, current, lambda key: self.select(rank=int(key)))

    def action_pick_step(self) -> None:
        """Let the user pick one of the timed steps of the selected rank."""
        choices, current = help_texts.list_step_choices(self), self.selected.step
        self._pick("step", choices, current, lambda key: self.select(step=int(key)))

    def _pick(
        self, what: str, choices: Sequence[tuple[str, str]], current: int | None, take: Callable[[str], None]
    ) -> None:
        if choices:
            popup = PickPopup(what, choices, "" if current is None else str(current))
            self.push_screen(popup, lambda key: take(key) if key else None)
        else:
            self.notify(f"no {what} to pick", severity="warning", markup=False)

    def action_step(self, by: int) -> None:
        """Select the step `by` positions away, clamped to the first and last timed step."""
        steps = [int(key) for key, _ in help_texts.list_step_choices(self)]
        if self.selected.step in steps:
            index = steps.index(self.selected.step) + by
            self.select(step=steps[max(0, min(len(steps) - 1, index))])

    def action_gaps(self) -> None:
        """Open the list of gaps in the measurement."""
        self.push_screen(TextPopup("what could not be measured", help_texts.format_gaps(self)))

    def action_baseline(self) -> None:
        """Ask for the path of a run to use as the baseline."""
        current = str(self.request.baseline or "")
        self.push_screen(LinePopup("baseline: path of a run", current), self._compare_with)

    def _compare_with(self, path: str | None) -> None:
        if path:
            self.measure(replace(self.request, baseline=Path(path).expanduser()))

    def action_copy_markdown(self) -> None:
        """Copy the focused row to the clipboard as Markdown."""
        export.copy_focused_row(self, export.format_markdown)

    def action_copy_json(self) -> None:
        """Copy the focused row to the clipboard as JSON."""
        loaded = help_texts.get_export(self)
        form = partial(export.format_json, report=loaded.report if loaded else None)
        export.copy_focused_row(self, form)

    def action_export(self) -> None:
        """Ask for a file name and write the report; the suffix picks the format."""
        name = export.suggest_report_name(self.preview.facts.name if self.preview else "", Path())
        self.push_screen(LinePopup("write the report to (.txt, .json or .svg)", name), self._export)

    def _export(self, path: str | None) -> None:
        if path:
            loaded = help_texts.get_export(self)
            self._write_file(lambda: export.export_report(loaded, Path(path).expanduser()))

    def action_perfetto(self) -> None:
        """Write the selected step as a Perfetto trace in the current directory."""
        self._write_file(lambda: export.export_perfetto(self.loaded, self.selected, Path()))

    @work(thread=True, exit_on_error=False, description="write")
    def _write_file(self, act: Callable[[], str]) -> None:
        """Run `act` in a worker thread and notify the user of the result or error."""
        try:
            self.notify(printable(act()), markup=False)
        except ZprofError as error:
            self.notify(format_error(error), severity="error", markup=False)

    def on_fact_table_opened(self, event: FactTable.Opened) -> None:
        """Open the number under the cursor, or else the row's popup."""
        if self.loaded is None:
            return
        from zprof.tui import opening

        number = find_number(event.line, event.cell)
        try:
            if number is not None:
                self.push_screen(opening.open_number(self, number, event.line, event.table))
            elif event.line.opens is Opens.RANK:
                self.select(rank=event.line.target)
            elif event.line.opens is Opens.STEP:
                self.select(step=event.line.target)
            elif (popup := opening.open_row(self, event.line)) is not None:
                self.push_screen(popup)
            else:
                self.notify("nothing to open in this row", markup=False)
        except ZprofError as error:  # the tables behind a kept report are damaged
            self.notify(format_error(error), severity="error", markup=False)

    def action_search(self) -> None:
        """Search causes, units and ranks, and filter the focused table, while the text is typed."""
        from zprof.tui.search import SearchPopup, list_targets

        if not isinstance(self.screen, SearchPopup):
            table = self.focused if isinstance(self.focused, FactTable) else None
            self.push_screen(SearchPopup(list_targets(self.loaded), table), self._go_to)

    def _go_to(self, key: str | None) -> None:
        kind, _, name = (key or "").partition(" ")
        if kind == "rank":
            if getattr(self.screen, "name_of", "") not in _RANK_SCREENS:
                self.action_show("timeline")
            self.select(rank=int(name))
        elif kind in ("cause", "unit"):
            screen = self.get_screen("overview" if kind == "cause" else "communication")
            assert isinstance(screen, PageScreen)
            is_cause = kind == "cause"
            screen.target = (
                SearchTarget(table="findings", key=name)
                if is_cause
                else SearchTarget(table="units", text=name)
            )
            self.action_show(screen.name_of)
            screen.refill()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield Textual's commands and all app-wide keys, for the command palette."""
        yield from super().get_system_commands(screen)
        for key in KEYS:
            if key.where is Where.EVERYWHERE and key.action not in ("quit", "command_palette"):
                yield SystemCommand(key.help, f"key {key.written}", partial(self.run_action, key.action))
