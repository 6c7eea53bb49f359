"""Live memory over time, stacked by tenant: each column at its highest point, phases and steps below."""

from rich.text import Text
from textual import events
from textual.widgets import Static

from zprof.tui.figures import Figure
from zprof.tui.pages.memory_timeline import Curve, point_table
from zprof.tui.tables import Cell, Line, Table
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.stacked_paint import Pen
from zprof.tui.widgets.trend_paint import NO_TIMELINE, chosen_points, gutter, most_of, trend_lines


class Trend(Static, can_focus=True):
    """Draws a :class:`~zprof.tui.pages.memory_timeline.Curve`; one of its points is under the cursor."""

    def __init__(self, *, id: str | None = None) -> None:
        """Nothing to draw yet; ``rows`` is how high the plot is."""
        super().__init__("", id=id)
        self.curve: Curve | None = None
        self.rows = 3
        self.point = 0

    @property
    def table(self) -> Table | None:
        """The point under the cursor as a table."""
        return point_table(self.curve, self.point) if self.curve else None

    def show(self, curve: Curve | None) -> None:
        """Draw this one from now on; the cursor is at its peak where it is another one."""
        if curve is not None and (self.curve is None or self.curve.timeline is not curve.timeline):
            self.point = curve.peak
        self.curve = curve
        self.redraw()

    def shown_figures(self) -> list[Figure]:
        """The peak, which is the scale, and the point under the cursor."""
        if self.curve is None:
            return []
        point = self._seen()
        most = most_of(self.curve, point)
        return [
            self.curve.total(self.curve.peak),
            self.curve.total(point),
            self.curve.time(point),
            *([self.curve.tenant(most, point)] if most else []),
        ]

    def focused_line(self) -> tuple[Line, Cell] | None:
        """The point under the cursor."""
        table = self.table
        return (table.lines[0], table.lines[0].cells[1]) if table else None

    def open(self) -> None:
        """Its bytes."""
        table, focused = self.table, self.focused_line()
        if table is not None and focused is not None:
            self.post_message(FactTable.Opened(table, *focused))

    def along(self, by: int) -> None:
        """The highest point of the next column, or of the one before."""
        if self.curve is None:
            return
        chosen = list(dict.fromkeys(self._chosen()))
        at = min(range(len(chosen)), key=lambda place: abs(chosen[place] - self.point))
        self.point = chosen[max(0, min(len(chosen) - 1, at + by))]
        self.redraw()

    def across(self, by: int) -> None:
        """Nothing: it has one row."""

    def on_resize(self, event: events.Resize) -> None:
        """There are as many columns as there is room."""
        self.redraw()

    def on_focus(self, event: events.Focus) -> None:
        """The cursor is seen."""
        self.redraw()

    def on_blur(self, event: events.Blur) -> None:
        """The cursor is not seen."""
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        """The point in that column."""
        column = event.x - (gutter(self.curve) if self.curve else 0)
        chosen = self._chosen()
        if 0 <= column < len(chosen):
            self.point = chosen[column]
            self.redraw()

    def redraw(self) -> None:
        """Draw it anew for the room there is."""
        if self.curve is None:
            self.styles.height = 1
            self.update(Text(f" {NO_TIMELINE}", no_wrap=True))
        elif self.size.width:
            lines = trend_lines(self.curve, self._seen(), self.rows, self.size.width, Pen.of(self))
            self.styles.height = len(lines)
            self.update(Text("\n").join(lines))

    def _chosen(self) -> list[int]:
        return chosen_points(self.curve, self.size.width) if self.curve else []

    def _seen(self) -> int:
        assert self.curve is not None
        return self.point if self.has_focus else self.curve.peak
