"""The app: loads the run beside the screens, and keeps what is selected."""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from zprof.model.errors import ZprofError
from zprof.model.printable import printable
from zprof.tui import actions
from zprof.tui.figures import Figure
from zprof.tui.keys import KEYS, Where, bindings
from zprof.tui.popups.number import NumberPopup
from zprof.tui.popups.pick import LinePopup, PickPopup
from zprof.tui.popups.popup import Popup
from zprof.tui.popups.text import TextPopup
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.screens.registry import SCREENS
from zprof.tui.session import Asked, FirstLook, Loaded, Selected, first_look, first_selected, load
from zprof.tui.tables import Opens
from zprof.tui.widgets.fact_table import FactTable


class ZprofApp(App[int]):
    """Shows one run, and a baseline beside it.

    ``look`` is what the manifest tells, ``loaded`` what was measured: None until then.
    """

    TITLE = "zprof"
    CSS_PATH = "zprof.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.EVERYWHERE)]
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [  # noqa: RUF012 as Textual declares it
        (0, "-narrow"),
        (100, "-wide"),
    ]

    def __init__(
        self, asked: Asked, *, loaded: Loaded | None = None, ascii_only: bool = False, mono: bool = False
    ) -> None:
        """``loaded``: what was measured already, which is then not measured again."""
        super().__init__()
        self.asked, self.ascii_only, self.mono = asked, ascii_only, mono
        self.look: FirstLook | None = None
        self.loaded = loaded
        self.selected = first_selected(loaded.report) if loaded else Selected()
        self._doing = "opening"

    @property
    def is_dark(self) -> bool:
        """Whether the theme is dark."""
        return bool(self.current_theme.dark)

    @property
    def looks(self) -> tuple[bool, bool, bool]:
        """All that changes how a page is drawn."""
        return (self.is_dark, self.mono, self.ascii_only)

    def waiting_text(self) -> str:
        """What is being done while nothing is loaded."""
        return f"{self._doing} ..."

    def on_mount(self) -> None:
        """First what the manifest tells, then measure beside it."""
        self.look = first_look(self.asked)
        for name, screen in SCREENS.items():
            self.install_screen(screen(), name)
        self.push_screen("overview")
        self.theme_changed_signal.subscribe(self, lambda _: self.refill())
        if self.loaded is None:
            self.measure()

    @work(thread=True, exclusive=True)
    def measure(self) -> None:
        """Load the run; screens are filled when it is there."""
        try:
            loaded = load(self.asked, lambda doing: self.call_from_thread(self._say, doing))
        except ZprofError as error:
            self.call_from_thread(self._failed, error)
            return
        self.call_from_thread(self._take, loaded)

    def _say(self, doing: str) -> None:
        self._doing = doing
        self.refill()

    def _failed(self, error: ZprofError) -> None:
        self._doing = f"{printable(error)} ({error.hint})" if error.hint else printable(error)
        self.refill()
        self.notify(self._doing, severity="error", markup=False, timeout=20)

    def _take(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.selected = first_selected(loaded.report)
        self.refill()

    def refill(self) -> None:
        """The screen in front shows what has changed."""
        if isinstance(self.screen, PageScreen):
            self.screen.refill()

    def select(self, rank: int | None = None, step: int | None = None) -> None:
        """Show this rank, or this step, from now on."""
        self.selected = Selected(
            rank=self.selected.rank if rank is None else rank,
            step=self.selected.step if step is None else step,
        )
        self.refill()

    def action_show(self, name: str) -> None:
        """Switch to a screen."""
        while isinstance(self.screen, Popup):
            self.pop_screen()
        if self.screen is not self.get_screen(name):
            self.switch_screen(name)

    def action_explain(self) -> None:
        """What is focused."""
        self.push_screen(TextPopup(*actions.explained(self)))

    def action_help(self) -> None:
        """All keys."""
        self.push_screen(TextPopup("keys", actions.keys_text(KEYS)))

    def action_pick_rank(self) -> None:
        """One of the loaded ranks."""
        choices = actions.rank_choices(self)
        if choices:
            self.push_screen(PickPopup("rank", choices), self._pick_rank)

    def action_pick_step(self) -> None:
        """One of the timed steps."""
        choices = actions.step_choices(self)
        if choices:
            self.push_screen(PickPopup("step", choices), self._pick_step)

    def _pick_rank(self, key: str | None) -> None:
        if key:
            self.select(rank=int(key))

    def _pick_step(self, key: str | None) -> None:
        if key:
            self.select(step=int(key))

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
            self.asked = actions.with_baseline(self.asked, Path(path).expanduser())
            self.measure()

    def action_copy_markdown(self) -> None:
        """What is focused, as Markdown, on the clipboard and in a file where that is out of reach."""
        actions.copy(self, actions.as_markdown)

    def action_copy_json(self) -> None:
        """What is focused, as JSON."""
        actions.copy(self, actions.as_json)

    def action_export(self) -> None:
        """The report, in a file whose name says the format."""
        self.push_screen(
            LinePopup("write the report to (.txt or .json)", actions.report_name(self)), self._export
        )

    def _export(self, path: str | None) -> None:
        if path:
            actions.told(self, lambda: actions.export_report(self, Path(path).expanduser()))

    def action_perfetto(self) -> None:
        """The selected step of the selected rank, as a trace."""
        actions.told(self, lambda: actions.export_perfetto(self))

    def on_fact_table_opened(self, event: FactTable.Opened) -> None:
        """A number is opened as a number, a row as what it leads to."""
        if self.loaded is None:
            return
        if isinstance(event.cell, Figure) and event.cell.leaves:
            title = f"{event.line.cells[0].text}"
            self.push_screen(NumberPopup(event.cell, title, self.loaded))
        elif event.line.opens is Opens.RANK:
            self.select(rank=event.line.target)
        elif event.line.opens is Opens.STEP:
            self.select(step=event.line.target)
        elif event.line.opens is not Opens.NOTHING:
            opened = actions.opened(self, event.line)
            if opened is not None:
                self.push_screen(opened)

    def on_fact_table_search_asked(self, event: FactTable.SearchAsked) -> None:
        """A text to narrow the table to."""
        table = event.asking

        def search(text: str | None) -> None:
            if text is not None:
                table.search(text)

        self.push_screen(LinePopup("show rows with", table.wanted), search)

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
