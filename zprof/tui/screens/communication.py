"""The communication screen: collectives, the split of the focused collective, and breakdowns.

The breakdowns are message sizes, units, fitted links and checks.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Static

from zprof.base.formatting import printable, shorten
from zprof.model.cursor import Cursor, get, read
from zprof.model.quantities import Value
from zprof.model.report import Report
from zprof.reports.pages.collectives import (
    build_check_table,
    build_collective_table,
    build_fit_table,
    build_message_table,
    build_unit_table,
    make_hidden_value,
)
from zprof.reports.pages.names import group_name
from zprof.reports.table import Table
from zprof.tui.keys import Where, bindings
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.theme import TIMES, Pen
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.text import render_parts

#: Minimum terminal width for all tables side by side.
_MIN_WIDE_COLUMNS = 120
_PARTS: Mapping[str, Callable[[Report], Table]] = {
    "sizes": build_message_table,
    "units": build_unit_table,
    "fits": build_fit_table,
}


class CommunicationScreen(PageScreen):
    """Collectives, the split of the focused collective, sizes, units, fits, checks."""

    name_of: ClassVar[str] = "communication"
    page_help: ClassVar[str] = (
        "Collectives by kind and group, the most exposed first; the line below splits the focused one.\n"
        "enter on a name: its worst instances; on a number: its formula and rows. m: message sizes, then "
        "units, then the link fit. At the bottom: bytes compared with the formula, sums with the ledger, "
        "clocks; enter on an unknown value explains it."
    )
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.COMMUNICATION)]
    CSS: ClassVar[str] = """
    CommunicationScreen #collectives { max-height: 45%; }
    CommunicationScreen #split { height: 1; }
    #communication-parts { height: 1fr; }
    #communication-left { width: 1fr; }
    #communication-parts FactTable { width: 1fr; height: 1fr; }
    #checks, #checks:focus { border: none; height: 4; min-height: 4; overflow: hidden; }
    """

    def __init__(self) -> None:
        super().__init__()
        #: The breakdown that a narrow terminal shows.
        self.part = "sizes"
        self._parts_filled: set[str] = set()

    def parts(self) -> ComposeResult:
        """Yield the collectives, the split line, the breakdowns and the checks."""
        yield FactTable(id="collectives")
        yield SplitLine(id="split")
        with Horizontal(id="communication-parts"):
            with Vertical(id="communication-left"):
                yield FactTable(id="sizes", classes="fill")
                yield FactTable(id="fits", classes="fill")
            yield FactTable(id="units", classes="fill")
        checks = FactTable(id="checks", classes="fill")
        checks.show_header = False
        yield checks

    def fill(self, loaded: LoadedRun, selected: Selection) -> None:
        """Fill all parts from the report."""
        self._table("collectives").show(build_collective_table(loaded.report))
        self._table("checks").show(build_check_table(loaded.report))
        self._parts_filled.clear()
        self._show_parts(loaded)
        self._show_split()

    def on_resize(self, event: events.Resize) -> None:
        """Show the tables that fit the new size."""
        if self.filled is not None and self.zprof.loaded is not None:
            self._show_parts(self.zprof.loaded)

    def on_data_table_cell_highlighted(self, event: DataTable.CellHighlighted) -> None:
        """Show the split of the newly focused collective."""
        if event.data_table.id == "collectives":
            self._show_split()

    def on_fact_table_redrawn(self, event: FactTable.Redrawn) -> None:
        """Show the split of the collective focused after a search."""
        if event.source.id == "collectives":
            self._show_split()

    def action_next_part(self) -> None:
        """Show or focus the next breakdown."""
        names = list(_PARTS)
        self.part = names[(names.index(self.part) + 1) % len(names)]
        had_focus = self.focused is not None and self.focused.id in _PARTS
        if self.zprof.loaded is not None:
            self._show_parts(self.zprof.loaded)
        if had_focus or self._is_wide:
            self._table(self.part).focus()

    def reveal(self, table: str) -> None:
        """Show a breakdown."""
        if table in _PARTS and self.zprof.loaded is not None:
            self.part = table
            self._show_parts(self.zprof.loaded)

    @property
    def _is_wide(self) -> bool:
        return self.app.size.width >= _MIN_WIDE_COLUMNS

    def _table(self, name: str) -> FactTable:
        return self.query_one(f"#{name}", FactTable)

    def _show_parts(self, loaded: LoadedRun) -> None:
        """Show the breakdowns that fit; hidden breakdowns stay empty, because long tables are slow."""
        for name, make in _PARTS.items():
            table = self._table(name)
            table.display = self._is_wide or name == self.part
            if table.display and name not in self._parts_filled:
                self._parts_filled.add(name)
                table.show(make(loaded.report))
        self.query_one("#communication-left", Vertical).display = self._is_wide or self.part != "units"

    def _show_split(self) -> None:
        loaded, focused = self.zprof.loaded, self._table("collectives").get_focused_line()
        split = find_split(loaded.report, focused[0].target) if loaded and focused else None
        self.query_one("#split", SplitLine).show(split)


_HIDDEN, _WAIT, _TRANSFER = TIMES["overlapped_ns"], TIMES["exposed_wait_ns"], TIMES["exposed_transfer_ns"]
_HIDDEN_LABEL, _MIN_BAR = "  hidden ", 8
#: Name and time of one kind of collective: hidden, exposed wait and exposed transfer.
Split = tuple[str, Value, Value, Value]


def find_split(report: Report, index: int) -> Split | None:
    """Split the time of the collective at an index of the report; None if that index has no collective."""
    if not 0 <= index < len(report.time.collectives):
        return None
    place = Cursor(report).time.collectives[index]
    name = printable(f"{get(place.kind)} {group_name(get(place.group))}")
    hidden = make_hidden_value(place, in_ms=False)
    return name, hidden, read(place.exposed_wait_ns), read(place.exposed_transfer_ns)


class SplitLine(Static):
    """One line with the split of the focused collective into hidden, wait and transfer."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id)
        self.split: Split | None = None

    def show(self, split: Split | None) -> None:
        """Show a split, or nothing for None."""
        self.split = split
        self.draw()

    def on_resize(self) -> None:
        """Redraw the bar for the new width."""
        self.draw()

    def draw(self) -> None:
        """Draw the bar in the space left by its name and numbers."""
        if self.split is None:
            self.update("")
            return
        pen = Pen.for_widget(self)
        full_name, *numbers = self.split
        parts = tuple(zip((_HIDDEN, _WAIT, _TRANSFER), numbers, strict=True))
        legend = Text(" exposed:", no_wrap=True)
        for name, (paint, number) in zip(("wait", "transfer"), parts[1:], strict=True):
            legend.append("  ").append(paint.shown(ascii_only=pen.ascii_only), paint.colour(pen.look))
            legend.append(f" {name} {number.text}")
        name = shorten(full_name, self.app.size.width - legend.cell_len - len(_HIDDEN_LABEL) - _MIN_BAR - 1)
        text = Text(f" {name}{_HIDDEN_LABEL}", no_wrap=True)
        sizes = [(paint, max(0.0, number.number or 0.0)) for paint, number in parts]
        bar_width = max(_MIN_BAR, self.app.size.width - text.cell_len - legend.cell_len)
        total = sum(size for _, size in sizes)
        text.append_text(render_parts(sizes, bar_width, total, pen)).append_text(legend)
        self.update(text)

    def shown_figures(self) -> list[Value]:
        """Return the displayed numbers; the hidden part is drawn without a number."""
        return list(self.split[2:]) if self.split else []
