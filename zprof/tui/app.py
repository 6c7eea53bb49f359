"""The app: loads the run beside the screens, and keeps what is selected."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import work
from textual.app import SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from zprof.model.errors import ZprofError
from zprof.model.printable import printable
from zprof.tui import actions, copying, exporting
from zprof.tui.keys import KEYS, Where, bindings
from zprof.tui.popups.pick import LinePopup, PickPopup
from zprof.tui.popups.popup import Popup
from zprof.tui.popups.text import TextPopup
from zprof.tui.screens.registry import SCREENS
from zprof.tui.session import first_look
from zprof.tui.shell import Shell, one_line
from zprof.tui.tables import Opens, number_of
from zprof.tui.widgets.fact_table import FactTable


class ZprofApp(Shell):
    """All screens on one run, and a baseline beside it: what keys do, and what opens."""

    TITLE = "zprof"
    CSS_PATH = "zprof.tcss"
    SCREENS: ClassVar[dict[str, Callable[[], Screen[Any]]]] = {**SCREENS}
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.EVERYWHERE)]
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [  # noqa: RUF012 as Textual declares it
        (0, "-narrow"),
        (100, "-wide"),
    ]

    def on_mount(self) -> None:
        """First what the manifest tells; once that is drawn, measure beside it."""
        try:
            self.look = first_look(self.asked)
        except ZprofError as error:
            self.say(one_line(error))
        self.push_screen("overview")
        self.theme_changed_signal.subscribe(self, lambda _: self.refill())
        if self.loaded is None and self.look is not None:
            self.call_after_refresh(self.measure, self.asked)

    def action_show(self, name: str) -> None:
        """Switch to a screen."""
        while isinstance(self.screen, Popup):
            self.pop_screen()
        if name in SCREENS and self.screen is not self.get_screen(name):
            self.switch_screen(name)

    def action_explain(self) -> None:
        """What is focused."""
        self.push_screen(TextPopup(*actions.explained(self)))

    def action_help(self) -> None:
        """All keys, first those of the screen in front."""
        self.push_screen(TextPopup("keys", actions.keys_text(actions.nearest_first(self.screen))))

    def action_pick_rank(self) -> None:
        """One of the loaded ranks."""
        choices, present = actions.rank_choices(self), self.selected.rank
        self._pick("rank", choices, present, lambda key: self.select(rank=int(key)))

    def action_pick_step(self) -> None:
        """One of the timed steps."""
        choices, present = actions.step_choices(self), self.selected.step
        self._pick("step", choices, present, lambda key: self.select(step=int(key)))

    def _pick(
        self, what: str, choices: Sequence[tuple[str, str]], present: int | None, take: Callable[[str], None]
    ) -> None:
        if choices:
            popup = PickPopup(what, choices, "" if present is None else str(present))
            self.push_screen(popup, lambda key: take(key) if key else None)
        else:
            self.notify(f"there is no {what} to pick", severity="warning", markup=False)

    def action_step(self, by: int) -> None:
        """The step before, or the next."""
        steps = [int(key) for key, _ in actions.step_choices(self)]
        if self.selected.step in steps:
            at = steps.index(self.selected.step) + by
            self.select(step=steps[max(0, min(len(steps) - 1, at))])

    def action_gaps(self) -> None:
        """What could not be measured."""
        self.push_screen(TextPopup("what could not be measured", actions.gaps_text(self)))

    def action_baseline(self) -> None:
        """Another run as the baseline."""
        present = str(self.asked.baseline or "")
        self.push_screen(LinePopup("baseline: path of a run", present), self._compare_with)

    def _compare_with(self, path: str | None) -> None:
        if path:
            self.measure(actions.with_baseline(self.asked, Path(path).expanduser()))

    def action_copy_markdown(self) -> None:
        """What is focused, as Markdown, on the clipboard."""
        copying.copy(self, copying.as_markdown)

    def action_copy_json(self) -> None:
        """What is focused, as JSON."""
        copying.copy(self, copying.as_json)

    def action_export(self) -> None:
        """The report, in a file whose name says the format."""
        name = exporting.report_name(self.look.facts.name if self.look else "", Path())
        self.push_screen(LinePopup("write the report to (.txt, .json or .svg)", name), self._export)

    def _export(self, path: str | None) -> None:
        if path:
            loaded = actions.to_write(self)
            self._write(lambda: exporting.export_report(loaded, Path(path).expanduser()))

    def action_perfetto(self) -> None:
        """The selected step as a trace."""
        self._write(lambda: exporting.export_perfetto(self.loaded, self.selected, Path()))

    @work(thread=True, exit_on_error=False, description="write")
    def _write(self, act: Callable[[], str]) -> None:
        """Do it beside the screens, and say what was done or why not."""
        try:
            self.notify(printable(act()), markup=False)
        except ZprofError as error:
            self.notify(one_line(error), severity="error", markup=False)

    def on_fact_table_opened(self, event: FactTable.Opened) -> None:
        """A number is opened as a number, a row as what it leads to, else as its first number."""
        if self.loaded is None:
            return
        from zprof.tui import opened

        number = number_of(event.line, event.cell)
        if number is not None:
            self.push_screen(opened.number(self.loaded, number, event.line, event.table))
        elif event.line.opens is Opens.RANK:
            self.select(rank=event.line.target)
        elif event.line.opens is Opens.STEP:
            self.select(step=event.line.target)
        elif (popup := opened.row(self, event.line)) is not None:
            self.push_screen(popup)
        else:
            self.notify("there is nothing behind this row", markup=False)

    def on_fact_table_search_asked(self, event: FactTable.SearchAsked) -> None:
        """A text to narrow the table to."""
        table = event.asking

        def search(text: str | None) -> None:
            if text is not None:
                table.search(text)

        name = table.table.title if table.table is not None else ""
        self.push_screen(LinePopup(f"{name}: show rows with", table.wanted), search)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Everything that has a key, in the palette, too."""
        yield from super().get_system_commands(screen)
        for key in KEYS:
            if key.where is Where.EVERYWHERE and key.action not in ("quit", "command_palette"):
                yield SystemCommand(key.says, f"key {key.written}", _runs(self, key.action))


def _runs(app: ZprofApp, action: str) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        await app.run_action(action)

    return run
