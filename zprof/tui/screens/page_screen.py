"""The base class of all screens.

Title line, status line, footer, and filling the screen when data arrives.
"""

from collections.abc import Sequence
from typing import ClassVar, cast

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Footer, Static

from zprof.model.formatting import printable, shorten
from zprof.model.gaps import Gap
from zprof.tui.session import LoadedRun, Selection, pick_selection
from zprof.tui.shell import Shell
from zprof.tui.tables import TableSource
from zprof.tui.widgets.fact_table import FactTable


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

    def fill(self, loaded: LoadedRun, selected: Selection) -> None:
        """Show what was loaded."""
        raise NotImplementedError

    def further_gaps(self) -> Sequence[Gap]:
        """What this screen could not find out beside what the report says."""
        return ()

    def to_write(self, loaded: LoadedRun) -> LoadedRun:
        """What ``e`` writes here: the report as it was measured, or with what this screen adds to it."""
        return loaded

    def focused_table(self) -> TableSource | None:
        """The table, or picture of one, that has the focus, else the first table of the screen."""
        if isinstance(self.focused, TableSource):
            return self.focused
        tables = [table for table in self.query(FactTable) if table.display]
        return tables[0] if tables else None


#: The screens by their key: name, title, and the title where there is little room.
SCREEN_TITLES: tuple[tuple[str, str, str], ...] = (
    ("overview", "Overview", "Overview"),
    ("memory", "Memory", "Memory"),
    ("communication", "Communication", "Comm"),
    ("timeline", "Timeline", "Timeline"),
    ("ranks", "Ranks", "Ranks"),
    ("compare", "Compare", "Compare"),
    ("plan", "Plan", "Plan"),
)
_WIDE = 100
#: Columns that the name of a run keeps.
_MIN_NAME = 12


class TitleLine(Static):
    """The screens and their keys, the present one in reverse."""

    def __init__(self, current: str) -> None:
        super().__init__("", id="titles")
        self._current = current

    def refresh_from(self, app: Shell) -> None:
        """Draw it for the width of the terminal."""
        wide = app.size.width >= _WIDE
        text = Text("zprof ", no_wrap=True, style="bold")
        for number, (name, title, short) in enumerate(SCREEN_TITLES, 1):
            style = "reverse" if name == self._current else ""
            click = Style.from_meta({"@click": f"app.show('{name}')"})
            text.append(f" {number} {title if wide else short} ", style=Style.parse(style) + click)
        self.update(text)


class StatusLine(Static):
    """Run, ranks, steps, rank and step picked, gaps."""

    def __init__(self) -> None:
        super().__init__("", id="status")

    def refresh_from(self, app: Shell) -> None:
        """Draw it."""
        width = app.size.width - 2
        self.update(Text(shorten(format_status(app, width), width), no_wrap=True))


def format_status(app: Shell, width: int) -> str:
    """One line on what is shown; where it is too long the name of the run gives way first."""
    if app.look is None:
        return app.waiting_text()
    facts, selected = app.look.facts, app.selected
    ranks = len(facts.ranks_loaded)
    parts = [
        f"{ranks} of {facts.world_size} ranks" if ranks < facts.world_size else format_count(ranks, "rank"),
        format_count(len(facts.steps), "step"),
    ]
    if selected.rank is not None:
        parts.append(
            f"rank {selected.rank}" + (f" step {selected.step}" if selected.step is not None else "")
        )
    if app.loaded is not None:
        parts.append(format_count(len(app.loaded.report.gaps), "gap"))
    if app.is_measuring or app.loaded is None:
        parts.append(app.waiting_text())
    said = " · ".join(["", *parts])
    whole = f"{shorten(printable(facts.name), max(_MIN_NAME, width - cell_len(said)))}{said}"
    why = f" · step {selected.step}: the median one" if _is_default_selection(app) else ""
    return f"{whole}{why}" if cell_len(whole) + len(why) <= width else whole


def _is_default_selection(app: Shell) -> bool:
    """Whether the step is shown because it is the median one of its rank, and not because it was picked."""
    loaded, selected = app.loaded, app.selected
    return loaded is not None and selected.step is not None and selected == pick_selection(loaded.report)


def format_count(number: int, what: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


#: Actions whose keys are for wide terminals.
_WIDE_ONLY = frozenset({"help"})


class KeyFooter(Footer):
    """Marks what the style sheet hides in narrow terminals."""

    def compose(self) -> ComposeResult:
        """As the footer is, with what is for wide terminals marked."""
        for part in super().compose():
            if str(getattr(part, "action", "")).removeprefix("app.") in _WIDE_ONLY:
                part.add_class("for-room")
            yield part
