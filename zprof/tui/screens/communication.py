"""Communication: which collective is exposed, what it is made of, and what that is held against."""

from collections.abc import Callable, Mapping
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable

from zprof.tui.keys import Where, bindings
from zprof.tui.pages.communication import collectives_table, split_of
from zprof.tui.pages.communication_checks import checks_table
from zprof.tui.pages.communication_parts import fits_table, sizes_table, units_table
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import Loaded, Selected
from zprof.tui.tables import Table
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.split_line import SplitLine

#: From this width on all tables stand side by side.
_WIDE = 120
_PARTS: Mapping[str, Callable[[Loaded], Table]] = {
    "sizes": sizes_table,
    "units": units_table,
    "fits": fits_table,
}


class CommunicationScreen(PageScreen):
    """Collectives, the split of the focused one, sizes, units, fits, checks."""

    name_of: ClassVar[str] = "communication"
    help_of: ClassVar[str] = (
        "Collectives by kind and group, the most exposed first; the line below splits the focused one.\n"
        "enter on a name: its worst instances; on a number: its formula and rows. m: message sizes, then "
        "units, then the fitted link. At the bottom: bytes against the law, sums against the ledger, clocks; "
        "enter on one that is unknown: why."
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
        #: Which of the tables a narrow terminal shows.
        self.part = "sizes"
        self._parts_filled: set[str] = set()

    def parts(self) -> ComposeResult:
        """Collectives over what they are made of."""
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

    def fill(self, loaded: Loaded, selected: Selected) -> None:
        """From the report."""
        self._table("collectives").show(collectives_table(loaded))
        self._table("checks").show(checks_table(loaded))
        self._parts_filled.clear()
        self._show_parts(loaded)
        self._show_split()

    def on_resize(self, event: events.Resize) -> None:
        """Other tables may fit."""
        if self.filled is not None and self.zprof.loaded is not None:
            self._show_parts(self.zprof.loaded)

    def on_data_table_cell_highlighted(self, event: DataTable.CellHighlighted) -> None:
        """Another collective is focused."""
        if event.data_table.id == "collectives":
            self._show_split()

    def on_fact_table_redrawn(self, event: FactTable.Redrawn) -> None:
        """Another one, or none, is left of a search."""
        if event.drawn.id == "collectives":
            self._show_split()

    def action_next_part(self) -> None:
        """The next of the tables below."""
        names = list(_PARTS)
        self.part = names[(names.index(self.part) + 1) % len(names)]
        had = self.focused is not None and self.focused.id in _PARTS
        if self.zprof.loaded is not None:
            self._show_parts(self.zprof.loaded)
        if had or self._is_wide:
            self._table(self.part).focus()

    @property
    def _is_wide(self) -> bool:
        return self.app.size.width >= _WIDE

    def _table(self, name: str) -> FactTable:
        return self.query_one(f"#{name}", FactTable)

    def _show_parts(self, loaded: Loaded) -> None:
        """Those that are not seen are not filled: tables of many rows take their time."""
        for name, make in _PARTS.items():
            table = self._table(name)
            table.display = self._is_wide or name == self.part
            if table.display and name not in self._parts_filled:
                self._parts_filled.add(name)
                table.show(make(loaded))
        self.query_one("#communication-left", Vertical).display = self._is_wide or self.part != "units"

    def _show_split(self) -> None:
        loaded, focused = self.zprof.loaded, self._table("collectives").focused_line()
        split = split_of(loaded, focused[0].target) if loaded and focused else None
        self.query_one("#split", SplitLine).show(split)
