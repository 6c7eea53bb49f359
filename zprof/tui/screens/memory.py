"""The memory screen: bars by rank, live bytes over time, and tables for one rank."""

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Vertical
from textual.widgets import Static

from zprof.model.gaps import GapKind
from zprof.model.report import Report
from zprof.reports.pages.memory import MODULE_TITLE, PHASE_TITLE, build_module_table, build_phase_table
from zprof.reports.pages.memory_allocations import ALLOCATION_TITLE, build_allocation_table
from zprof.reports.pages.memory_device import build_device_table
from zprof.reports.pages.memory_formulas import FORMULA_TITLE, build_formula_table
from zprof.reports.pages.memory_timeline import find_curve
from zprof.reports.table import Table
from zprof.tui.keys import Where, bindings
from zprof.tui.missing_memory import build_missing_table, explain_missing_memory
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.stacked_bars import StackedBars, build_stacks, find_subject
from zprof.tui.widgets.trend import Trend

#: Tables in the order in which ``m`` cycles through them.
TABLES = ("top", "formulas", "phases", "modules", "device")
_MIDDLE_HEIGHT, _LARGE_HEIGHT, _LARGE_WIDTH = 32, 44, 160
_MIDDLE_WIDTH = 100
#: Limits by terminal size: small, middle, large.
_MAX_BARS, _MAX_NOTES, _PLOT_ROWS = (4, 5, 12), (1, 2, 3), (3, 6, 10)
_FEW_BARS = 2
#: Rows of a table that fit below the timeline in a small terminal.
_FEW_ROWS = 6
#: Lines of a table's frame and titles; maximum rows of a table behind the front one.
_FRAME, _MAX_ROWS = 3, 10
#: For a table without rows: title, the gap that explains it, else reason and remedy.
_MISSING: dict[str, tuple[str, GapKind | None, str, str]] = {
    "top": (
        ALLOCATION_TITLE,
        GapKind.ALLOCATOR_EVENTS,
        "individual allocations were not recorded",
        "record in full mode",
    ),
    "formulas": (
        FORMULA_TITLE,
        GapKind.MODEL_STATES,
        "no formula is known for this rank's model states, or they were never complete",
        "pass the training facts: zprof.record(..., training=TrainingFacts(...))",
    ),
    "phases": (
        PHASE_TITLE,
        None,
        "the phases of this rank's memory are unknown",
        "zprof record marks phases",
    ),
    "modules": (
        MODULE_TITLE,
        None,
        "the modules of this rank's memory are unknown",
        "pass the model to zprof.record",
    ),
}


def build_tables(report: Report, rank: int) -> dict[str, Table]:
    """Return the tables of a rank by name; a table that was not measured explains why."""
    tables = {
        "top": build_allocation_table(report, rank),
        "formulas": build_formula_table(report, rank),
        "phases": build_phase_table(report, rank, with_others=True),
        "modules": build_module_table(report, rank),
        "device": build_device_table(report, rank, with_counters=True),
    }
    missing = {
        name: build_missing_table(report, name, f"{title}, rank {rank}", kind, reason, remedy)
        for name, (title, kind, reason, remedy) in _MISSING.items()
    }
    return {name: table or missing[name] for name, table in tables.items() if table or name in missing}


class MemoryScreen(PageScreen):
    """Bars, timeline and tables; ``front`` is the table that gets the most space."""

    name_of: ClassVar[str] = "memory"
    page_help: ClassVar[str] = (
        "Memory of each rank by tenant at its own peak, live memory over time, and the largest allocations.\n"
        "Memory is recorded in a separate window, because recording it slows down the steps. "
        "The step in the status line belongs to the timing window.\n"
        "tab: bars, timeline, table. On the bars, up and down select a rank, left and right a tenant; on the "
        "timeline, left and right move in time; enter opens the item under the cursor.\n"
        "m: the next table (largest allocations, formulas, phases, modules, device); a small terminal hides "
        "the timeline to fit a long one."
    )
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.MEMORY)]

    def __init__(self) -> None:
        super().__init__()
        self.front = TABLES[0]
        self._tables_by_name: dict[str, Table] = {}

    def parts(self) -> ComposeResult:
        """Yield charts above tables."""
        with Container(id="memory"):
            yield Static("", id="missing")
            with Container(id="pictures"):
                yield StackedBars(id="bars")
                yield Trend(id="trend")
            yield FactTable(id="top", classes="fill")
            with Container(id="more"):
                with Vertical(id="left"):
                    yield FactTable(id="formulas", classes="fill")
                    yield FactTable(id="phases", classes="fill")
                with Vertical(id="right"):
                    yield FactTable(id="modules", classes="fill")
                    yield FactTable(id="device", classes="fill")

    def fill(self, loaded: LoadedRun, selected: Selection) -> None:
        """Fill charts and tables from the report for the selected rank."""
        report = loaded.report
        subject, bars = find_subject(report, selected), build_stacks(report, selected)
        self._tables_by_name = build_tables(report, subject.rank) if subject else {}
        self.query_one("#missing", Static).update(Text("\n".join(explain_missing_memory(report))))
        for name, table in self._tables_by_name.items():
            self._table(name).show(table)
        if self.front not in self._tables_by_name:
            self.front = TABLES[0]
        curve = find_curve(report, subject.rank) if subject else None
        if bars is not None:
            self.query_one(StackedBars).show(bars)
        self.query_one(Trend).show(curve)
        self.query_one(StackedBars).display = bars is not None
        self._arrange()

    def on_resize(self, event: events.Resize) -> None:
        """Redo the layout for the new size."""
        self._arrange()

    def on_stacked_bars_chosen(self, event: StackedBars.Chosen) -> None:
        """Select the rank of the chosen bar."""
        self.zprof.select(rank=event.rank)

    def action_next_table(self) -> None:
        """Bring the next table to the front; focus it if a table had the focus or all tables are shown."""
        names = [name for name in TABLES if name in self._tables_by_name]
        if not names:
            return
        self.front = names[(names.index(self.front) + 1) % len(names)]
        if isinstance(self.focused, FactTable) or self.has_class("-large"):
            self._table(self.front).display = True
            self.set_focus(self._table(self.front))
        self._arrange()

    def action_along(self, by: int) -> None:
        """Move to another tenant or point in time."""
        if isinstance(self.focused, StackedBars | Trend):
            self.focused.move_horizontally(by)

    def action_across(self, by: int) -> None:
        """Move to another rank."""
        if isinstance(self.focused, StackedBars | Trend):
            self.focused.move_vertically(by)

    def action_open_part(self) -> None:
        """Open the item under the cursor of a chart."""
        if isinstance(self.focused, StackedBars | Trend):
            self.focused.open()

    def _table(self, name: str) -> FactTable:
        return self.query_one(f"#{name}", FactTable)

    def _arrange(self) -> None:
        """Select and size the parts for the terminal."""
        if not self.is_mounted or self.zprof.loaded is None:
            return
        width, height = self.zprof.size
        is_large = height >= _LARGE_HEIGHT and width >= _LARGE_WIDTH
        is_middle = height >= _MIDDLE_HEIGHT and width >= _MIDDLE_WIDTH
        self.set_class(is_large, "-large")
        self.query_one("#missing").display = not self._tables_by_name
        self._size_charts(2 if is_large else 1 if is_middle else 0)
        self._size_tables(is_large, is_middle)

    def _size_charts(self, size: int) -> None:
        bars, trend = self.query_one(StackedBars), self.query_one(Trend)
        bars.max_bars, bars.max_notes = _MAX_BARS[size], _MAX_NOTES[size]
        # A front table other than the default may be too long to fit below the timeline.
        table = self._tables_by_name.get(self.front)
        is_long = table is not None and self.front != TABLES[0] and len(table.rows) > _FEW_ROWS
        trend.display = bool(self._tables_by_name) and (size > 0 or not is_long)
        trend.rows = _PLOT_ROWS[size] + (size == 0 and len(bars.list_shown_bars()) <= _FEW_BARS)
        bars.redraw()
        trend.redraw()

    def _size_tables(self, is_large: bool, is_middle: bool) -> None:
        second = "formulas" if self.front != "formulas" else "top"
        shown = set(self._tables_by_name) if is_large else {self.front, second} if is_middle else {self.front}
        tall = {"phases", "modules"} if is_large else {self.front}
        for name in TABLES:
            table = self._table(name)
            table.display = name in shown and name in self._tables_by_name
            rows = len(table.table.rows) if table.table else 0
            table.styles.height = "1fr" if name in tall else min(_MAX_ROWS, rows) + _FRAME
        for name in ("#left", "#right", "#more"):
            box = self.query_one(name)
            visible = [table for table in box.query(FactTable) if table.display]
            box.display = bool(visible)
            box.styles.height = "1fr" if is_large or any(table.id in tall for table in visible) else "auto"
