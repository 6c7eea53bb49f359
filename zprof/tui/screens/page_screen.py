"""Base class of all screens: title line, status line, footer, and a refill for new data."""

from collections.abc import Sequence
from typing import ClassVar, cast

from msgspec import Struct
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Footer, Static

from zprof.base.formatting import printable, shorten
from zprof.model.gaps import Gap
from zprof.tui.session import LoadedRun, Selection, pick_selection
from zprof.tui.shell import Shell
from zprof.tui.table_view import TableSource
from zprof.tui.widgets.fact_table import FactTable


class SearchTarget(Struct, frozen=True, kw_only=True):
    """A row of a table by its key, or the rows with a text."""

    table: str
    key: str = ""
    text: str = ""


class PageScreen(Screen[None]):
    """A screen of the app. Subclasses define ``name_of``, ``page_help``, ``parts`` and ``fill``."""

    name_of: ClassVar[str] = ""
    page_help: ClassVar[str] = ""
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self) -> None:
        super().__init__()
        #: State of the last fill, to skip redundant fills; None before the first.
        self.filled: tuple[object, ...] | None = None
        #: What the next fill shows: a table, and the key of a row or the text to filter by.
        self.target: SearchTarget | None = None

    @property
    def zprof(self) -> Shell:
        """The app, typed as `Shell`."""
        return cast(Shell, self.app)

    def compose(self) -> ComposeResult:
        """Yield the title line, the screen's own widgets, the status line and the footer."""
        yield TitleLine(self.name_of)
        with Vertical(id="body"):
            yield Static("", id="waiting")
            yield from self.parts()
        yield StatusLine()
        yield KeyFooter(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Show the loaded run."""
        self.refill()

    def on_screen_resume(self) -> None:
        """Refill, because data or selection may have changed while the screen was hidden."""
        self.refill()

    def refill(self) -> None:
        """Refill the screen if its content has changed."""
        if not self.is_mounted or not self.query("#waiting"):
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
        if self.target is not None:
            self._show_target(self.target)
        if self.focused is None:
            # Focus the first visible widget: before loading, hidden widgets could not take the focus.
            first = next((part for part in self.query("#body *") if part.focusable and part.display), None)
            if first is not None:
                self.set_focus(first, scroll_visible=False)

    def _show_target(self, target: "SearchTarget") -> None:
        self.target = None
        self.reveal(target.table)
        table = self.query_one(f"#{target.table}", FactTable)
        table.search(target.text)
        table.go_to(target.key)
        self.set_focus(table)

    def reveal(self, table: str) -> None:
        """Show a table that is hidden."""

    def parts(self) -> ComposeResult:
        """Yield the widgets of the screen."""
        raise NotImplementedError

    def fill(self, loaded: LoadedRun, selected: Selection) -> None:
        """Show the loaded run and the selected rank and step."""
        raise NotImplementedError

    def extra_gaps(self) -> Sequence[Gap]:
        """Return gaps on this screen that are not in the report."""
        return ()

    def make_export(self, loaded: LoadedRun) -> LoadedRun:
        """Return the run that ``e`` exports: as measured, or with additions by this screen."""
        return loaded

    def focused_table(self) -> TableSource | None:
        """Return the focused table or chart, else the first visible table."""
        if isinstance(self.focused, TableSource):
            return self.focused
        tables = [table for table in self.query(FactTable) if table.display]
        return tables[0] if tables else None


#: The screens in the order of their keys: name, title, and short title for narrow terminals.
SCREEN_TITLES: tuple[tuple[str, str, str], ...] = (
    ("overview", "Overview", "Overview"),
    ("memory", "Memory", "Memory"),
    ("communication", "Communication", "Comm"),
    ("timeline", "Timeline", "Timeline"),
    ("ranks", "Ranks", "Ranks"),
    ("compare", "Compare", "Compare"),
    ("plan", "Plan", "Plan"),
)
_MIN_WIDE_COLUMNS = 100
#: Minimum columns of the run name.
_MIN_NAME = 12


class TitleLine(Static):
    """The screens and their keys, with the current screen in reverse."""

    def __init__(self, current: str) -> None:
        super().__init__("", id="titles")
        self._current = current

    def refresh_from(self, app: Shell) -> None:
        """Draw the line for the width of the terminal."""
        is_wide = app.size.width >= _MIN_WIDE_COLUMNS
        text = Text("zprof ", no_wrap=True, style="bold")
        for number, (name, title, short) in enumerate(SCREEN_TITLES, 1):
            style = "reverse" if name == self._current else ""
            click = Style.from_meta({"@click": f"app.show('{name}')"})
            text.append(f" {number} {title if is_wide else short} ", style=Style.parse(style) + click)
        self.update(text)


class StatusLine(Static):
    """Status of the run: ranks, steps, selected rank and step, gaps, progress."""

    def __init__(self) -> None:
        super().__init__("", id="status")

    def refresh_from(self, app: Shell) -> None:
        """Draw the line for the width of the terminal."""
        width = app.size.width - 2
        self.update(Text(shorten(format_status(app, width), width), no_wrap=True))


def format_status(app: Shell, width: int) -> str:
    """Return the status as one line; if too long, the run name is shortened first."""
    if app.preview is None:
        return app.waiting_text()
    facts, selected = app.preview.facts, app.selected
    ranks = len(facts.ranks_loaded)
    parts = [
        "logs"
        if facts.is_of_logs
        else f"{ranks} of {facts.world_size} ranks"
        if ranks < facts.world_size
        else format_count(ranks, "rank"),
        format_count(len(facts.steps), "step"),
    ]
    if selected.rank is not None:
        parts.append(
            f"rank {selected.rank}" + (f" step {selected.step}" if selected.step is not None else "")
        )
    if app.loaded is not None:
        parts.append(format_count(len(app.loaded.report.gaps), "gap"))
    if app.is_measuring or app.loaded is None or not app.loaded.is_judged:
        parts.append(app.waiting_text())
    suffix = " · ".join(["", *parts])
    status = f"{shorten(printable(facts.name), max(_MIN_NAME, width - cell_len(suffix)))}{suffix}"
    reason = f" · step {selected.step}: the median step" if is_default_selection(app) else ""
    return f"{status}{reason}" if cell_len(status) + len(reason) <= width else status


def is_default_selection(app: Shell) -> bool:
    """Return True if rank and step are the defaults, not picked by the user."""
    loaded, selected = app.loaded, app.selected
    return loaded is not None and selected.step is not None and selected == pick_selection(loaded.report)


def format_count(number: int, what: str) -> str:
    """Return a count with its noun: ``1 rank``, ``2 ranks``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


#: Actions with keys shown only in wide terminals.
_WIDE_ONLY = frozenset({"help"})


class KeyFooter(Footer):
    """Footer that marks keys for the style sheet to hide in narrow terminals."""

    def compose(self) -> ComposeResult:
        """Yield the footer keys, marking those for wide terminals."""
        for part in super().compose():
            if str(getattr(part, "action", "")).removeprefix("app.") in _WIDE_ONLY:
                part.add_class("for-room")
            yield part
