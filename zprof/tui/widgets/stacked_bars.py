"""Bars of memory side by side on one scale, one part a tenant, and a legend with the bytes of one rank."""

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import Static

from zprof.tui.figures import Figure
from zprof.tui.pages.memory import RankBar, Stacks
from zprof.tui.tables import Cell, Line, Table
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.stacked_paint import NOT_FOUND, Pen, bars_lines, item_at, legend_rows, shown_bars


class StackedBars(Static, can_focus=True):
    """Draws :class:`~zprof.tui.pages.memory.Stacks`; one tenant of its legend is under the cursor."""

    class Chosen(Message):
        """Another rank was asked for."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    def __init__(self, *, id: str | None = None) -> None:
        """Nothing to draw yet; ``most_bars`` and ``most_notes`` say how much of it at most."""
        super().__init__("", id=id)
        self.stacks: Stacks | None = None
        self.most_bars, self.most_notes = 4, 1
        self.cursor = 0

    @property
    def table(self) -> Table | None:
        """The legend as a table."""
        return self.stacks.legend if self.stacks else None

    def show(self, stacks: Stacks) -> None:
        """Draw these from now on."""
        self.stacks = stacks
        self.cursor = min(self.cursor, len(stacks.legend.lines) - 1)
        self.redraw()

    def shown_bars(self) -> list[RankBar]:
        """As many as fit, in the order of the ranks."""
        return shown_bars(self.stacks, self.most_bars) if self.stacks else []

    def shown_figures(self) -> list[Figure]:
        """Peaks of the bars, the scale, the legend and its sum, the notes."""
        if self.stacks is None:
            return []
        legend = [line.cells[1] for line in self.stacks.legend.lines]
        notes = [cell for note in self.stacks.notes[: self.most_notes] for cell in note]
        cells = [*legend, *self.stacks.total, *notes]
        numbers = [cell for cell in cells if isinstance(cell, Figure)]
        return [self.stacks.whole, *(entry.peak for entry in self.shown_bars()), *numbers]

    def focused_line(self) -> tuple[Line, Cell] | None:
        """The tenant under the cursor."""
        if self.stacks is None:
            return None
        line = self.stacks.legend.lines[self.cursor]
        return line, line.cells[1]

    def open(self) -> None:
        """Its bytes."""
        focused = self.focused_line()
        if self.stacks is not None and focused is not None:
            self.post_message(FactTable.Opened(self.stacks.legend, *focused))

    def along(self, by: int) -> None:
        """Another tenant."""
        if self.stacks is not None:
            self.cursor = max(0, min(len(self.stacks.legend.lines) - 1, self.cursor + by))
            self.redraw()

    def across(self, by: int) -> None:
        """Another rank."""
        if self.stacks is None:
            return
        order = self.stacks.order
        at = max(0, min(len(order) - 1, order.index(self.stacks.subject) + by))
        if order[at] != self.stacks.subject:
            self.post_message(self.Chosen(order[at]))

    def on_resize(self, event: events.Resize) -> None:
        """Bars are as long as there is room."""
        self.redraw()

    def on_focus(self, event: events.Focus) -> None:
        """The cursor is seen."""
        self.redraw()

    def on_blur(self, event: events.Blur) -> None:
        """The cursor is not seen."""
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        """On a bar: its rank; on the legend: the tenant."""
        bars = self.shown_bars()
        row = event.y - 1
        if 0 <= row < len(bars):
            self.post_message(self.Chosen(bars[row].rank))
        elif self.stacks is not None and row >= len(bars):
            rows = legend_rows(self.stacks.legend.lines, self.size.width)
            found = item_at(rows, row - len(bars), event.x)
            if found != NOT_FOUND:
                self.cursor = found
                self.redraw()

    def redraw(self) -> None:
        """Draw it anew for the room there is."""
        if self.stacks is not None and self.size.width:
            most = (self.most_bars, self.most_notes)
            lines = bars_lines(self.stacks, self.size.width, *most, self.cursor, Pen.of(self))
            self.styles.height = len(lines)
            self.update(Text("\n").join(lines))
