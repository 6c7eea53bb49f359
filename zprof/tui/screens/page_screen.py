"""What all screens share: the line of their names, the status line, and being filled when data comes."""

from collections.abc import Sequence
from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Static

from zprof.model.gaps import Gap
from zprof.tui.session import Loaded, Selected
from zprof.tui.shell import Shell
from zprof.tui.tables import ShowsTable
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.key_footer import KeyFooter
from zprof.tui.widgets.status import StatusLine, TitleLine


class PageScreen(Screen[None]):
    """A screen of the app.  Subclasses give ``title_of``, ``parts`` and ``fill``."""

    name_of: ClassVar[str] = ""
    help_of: ClassVar[str] = ""
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self) -> None:
        super().__init__()
        #: What it was last filled with; None until then.
        self.filled: tuple[object, ...] | None = None

    @property
    def zprof(self) -> Shell:
        """The app, by its own type."""
        return cast(Shell, self.app)

    def compose(self) -> ComposeResult:
        """Names on top, the screen's own parts, status and keys below."""
        yield TitleLine(self.name_of)
        with Vertical(id="body"):
            yield Static("", id="waiting")
            yield from self.parts()
        yield StatusLine()
        yield KeyFooter(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Show what there is."""
        self.refill()

    def on_screen_resume(self) -> None:
        """It may have been loaded, or another rank picked, while this screen was away."""
        self.refill()

    def refill(self) -> None:
        """Fill the screen anew where what it shows has changed."""
        if not self.is_mounted:
            return
        for line in (*self.query(StatusLine), *self.query(TitleLine)):
            line.refresh_from(self.zprof)
        loaded = self.zprof.loaded
        self.query_one("#waiting", Static).display = loaded is None
        for part in self.query("#body > *").exclude("#waiting"):
            part.display = loaded is not None
        if loaded is None:
            self.query_one("#waiting", Static).update(self.zprof.waiting_text())
            return
        state = (id(loaded), self.zprof.selected, self.zprof.looks)
        if state != self.filled:
            self.filled = state
            self.fill(loaded, self.zprof.selected)
        if self.focused is None:
            self._focus_first()

    def _focus_first(self) -> None:
        """What was hidden while nothing was loaded could not take the focus."""
        first = next((part for part in self.query("#body *") if part.focusable and part.display), None)
        if first is not None:
            self.set_focus(first, scroll_visible=False)

    def parts(self) -> ComposeResult:
        """The widgets of the screen."""
        raise NotImplementedError

    def fill(self, loaded: Loaded, selected: Selected) -> None:
        """Show what was loaded."""
        raise NotImplementedError

    def further_gaps(self) -> Sequence[Gap]:
        """What this screen could not find out beside what the report says."""
        return ()

    def to_write(self, loaded: Loaded) -> Loaded:
        """What ``e`` writes here: the report as it was measured, or with what this screen adds to it."""
        return loaded

    def focused_table(self) -> ShowsTable | None:
        """The table, or picture of one, that has the focus, else the first table of the screen."""
        if isinstance(self.focused, ShowsTable):
            return self.focused
        tables = [table for table in self.query(FactTable) if table.display]
        return tables[0] if tables else None
