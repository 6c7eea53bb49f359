"""Chart of live memory over time: a stacked plot above phases and steps."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text
from textual import events
from textual.widgets import Static

from zprof.base.formatting import printable, shorten
from zprof.model.quantities import Value
from zprof.reports.pages.memory_timeline import Curve, build_point_table, format_moment_at
from zprof.reports.pages.tenants import ORDER, tenant_name
from zprof.reports.table import Cell, Row, Table
from zprof.tui.theme import TENANTS, Pen
from zprof.tui.widgets.fact_table import FactTable


class Trend(Static, can_focus=True):
    """Draws a :class:`~zprof.reports.pages.memory_timeline.Curve` with a cursor on one point."""

    def __init__(self, *, id: str | None = None) -> None:
        """Create an empty widget; ``rows``: height of the plot."""
        super().__init__("", id=id)
        self.curve: Curve | None = None
        self.rows = 3
        self.point = 0

    @property
    def table(self) -> Table | None:
        """The point under the cursor as a table."""
        return build_point_table(self.curve, self.point) if self.curve else None

    def show(self, curve: Curve | None) -> None:
        """Show a curve; a new timeline puts the cursor on its peak."""
        if curve is not None and (self.curve is None or self.curve.timeline is not curve.timeline):
            self.point = curve.peak
        self.curve = curve
        self.redraw()

    def shown_figures(self) -> list[Value]:
        """Return the displayed figures: the peak (top of the scale) and the figures at the cursor."""
        if self.curve is None:
            return []
        point = self._displayed_point()
        largest_tenant = find_largest_tenant(self.curve, point)
        return [
            self.curve.total(self.curve.peak),
            self.curve.total(point),
            self.curve.time(point),
            *([self.curve.tenant(largest_tenant, point)] if largest_tenant else []),
        ]

    def get_focused_line(self) -> tuple[Row, Cell] | None:
        """Return the line and cell of the point under the cursor."""
        table = self.table
        return (table.rows[0], table.rows[0].cells[1]) if table else None

    def open(self) -> None:
        """Open the breakdown at the cursor."""
        table, focused = self.table, self.get_focused_line()
        if table is not None and focused is not None:
            self.post_message(FactTable.Opened(table, *focused))

    def move_horizontally(self, by: int) -> None:
        """Move to the peak of the next or previous column."""
        if self.curve is None:
            return
        points = list(dict.fromkeys(pick_points(self.curve, self.size.width) if self.curve else []))
        index = min(range(len(points)), key=lambda i: abs(points[i] - self.point))
        self.point = points[max(0, min(len(points) - 1, index + by))]
        self.redraw()

    def move_vertically(self, by: int) -> None:
        """Do nothing; the plot has a single row."""

    def on_resize(self, event: events.Resize) -> None:
        """Redraw for the new width."""
        self.redraw()

    def on_focus(self, event: events.Focus) -> None:
        """Show the cursor."""
        self.redraw()

    def on_blur(self, event: events.Blur) -> None:
        """Hide the cursor."""
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        """Move to the point of the clicked column."""
        column = event.x - (compute_gutter_width(self.curve) if self.curve else 0)
        points = pick_points(self.curve, self.size.width) if self.curve else []
        if 0 <= column < len(points):
            self.point = points[column]
            self.redraw()

    def redraw(self) -> None:
        """Draw all lines for the current width."""
        if self.curve is None:
            self.styles.height = 1
            self.update(Text(f" {NO_TIMELINE}", no_wrap=True))
        elif self.size.width:
            lines = draw_trend(
                self.curve, self._displayed_point(), self.rows, self.size.width, Pen.for_widget(self)
            )
            self.styles.height = len(lines)
            self.update(Text("\n").join(lines))

    def _displayed_point(self) -> int:
        assert self.curve is not None
        return self.point if self.has_focus else self.curve.peak


NO_TIMELINE = "no live-memory timeline for this rank; record one with zprof record"
_MIN_COLUMNS = 10
#: Minimum height of the plot at which steps get their own axis row.
_MIN_ROWS_FOR_STEP_AXIS = 5


def draw_trend(curve: Curve, point: int, rows: int, width: int, pen: Pen) -> list[Text]:
    """Draw all lines; ``point``: described in the headline; ``rows``: height of the plot."""
    points = pick_points(curve, width)
    steps = [(time, f"step {step}") for time, step in curve.timeline.steps]
    phases = [(time, printable(name)) for time, name in curve.timeline.phases]
    axis_labels = [phases or steps] if rows < _MIN_ROWS_FOR_STEP_AXIS or not steps else [phases, steps]
    axes = [_draw_axis(curve, names, len(points), pen) for names in axis_labels if names] or [
        Text(" " * width, end="")
    ]
    if pen.focused:
        # Axis with a mark below the column of the point.
        axis = axes[0]
        times = curve.timeline.time_ns
        matching = [column for column, shown in enumerate(points) if shown == point]
        column = matching[0] if matching else find_column(times[point], times[0], curve.end_ns, len(points))
        position = compute_gutter_width(curve) + column
        axes[0] = Text(
            axis.plain[:position] + pen.pick("▲", "^") + axis.plain[position + 1 :], no_wrap=True, end=""
        )
    rank_label = f"rank {curve.timeline.rank}"
    if curve.instead_of is not None:
        rank_label += f" (rank {curve.instead_of} has no timeline)"
    total_label = f"{'peak ' if point == curve.peak else ''}{curve.total(point).text}"
    parts = [
        f" live bytes, {rank_label}: {total_label} at {curve.time(point).text}",
        printable(format_moment_at(curve, point)),
    ]
    if largest_tenant := find_largest_tenant(curve, point):
        parts.append(f"{tenant_name(largest_tenant)} {curve.tenant(largest_tenant, point).text}")
    text = shorten(" · ".join(part for part in parts if part), width - 1)
    return [
        pen.start_headline().append(text, style=pen.head_style),
        *_draw_plot(curve, points, rows, pen),
        *axes,
    ]


def compute_gutter_width(curve: Curve) -> int:
    """Return the width of the axis labels."""
    return len(curve.total(curve.peak).text) + 2


def pick_points(curve: Curve, width: int) -> list[int]:
    """Return the point shown in each plot column."""
    columns = max(_MIN_COLUMNS, width - compute_gutter_width(curve))
    return decimate(curve.timeline.time_ns, curve.end_ns, curve.heights, columns)


def find_largest_tenant(curve: Curve, point: int) -> str:
    """Return the largest tenant at a point; empty at the peak, whose breakdown is in the bars."""
    tenants = curve.timeline.tenants
    return "" if point == curve.peak else max(tenants, key=lambda name: tenants[name][point])


def _draw_plot(curve: Curve, points: Sequence[int], rows: int, pen: Pen) -> list[Text]:
    tenants, top = curve.timeline.tenants, curve.heights[curve.peak]
    names = [name for name in ORDER if name in tenants]
    columns = {
        point: stack_cells([(name, tenants[name][point]) for name in names], top, rows)
        for point in set(points)
    }
    peak = points.index(curve.peak) if curve.peak in points else -1
    lines = []
    for row in range(rows - 1, -1, -1):
        label = curve.total(curve.peak).text if row == rows - 1 else "0" if row == 0 else ""
        text = Text((f"{label:>{compute_gutter_width(curve) - 1}}{pen.pick('│', '|')}"), no_wrap=True, end="")
        for column, point in enumerate(points):
            if row == rows - 1 and column == peak:
                text.append(pen.pick("▼", "v"), style="bold")
            else:
                paint = TENANTS.get(columns[point][row])
                glyph = paint.shown(ascii_only=pen.ascii_only) if paint else " "
                text.append(glyph, paint.colour(pen.look) if paint else "")
        lines.append(text)
    return lines


def _draw_axis(curve: Curve, labels: Sequence[tuple[int, str]], columns: int, pen: Pen) -> Text:
    line = [" "] * columns
    for start, end, name in layout_marks(labels, curve, columns):
        label = (pen.pick("╵", "'") + name)[: end - start]
        line[start : start + len(label)] = label
    return Text(" " * compute_gutter_width(curve) + "".join(line), no_wrap=True, end="")


def decimate(times: Sequence[int], end_ns: int, heights: Sequence[int], columns: int) -> list[int]:
    """Return the highest point in each column; a point lasts until the next point.

    A mean would lose the highest point of all.
    """
    edges = [times[0] + (end_ns - times[0]) * column // columns for column in range(columns + 1)]
    points = []
    for start, end in pairwise(edges):
        first = max(0, bisect_right(times, start) - 1)
        last = max(first + 1, bisect_left(times, end))
        points.append(max(range(first, last), key=lambda point: (heights[point], -point)))
    return points


def find_column(time_ns: int, begin_ns: int, end_ns: int, columns: int) -> int:
    """Return the column that contains a time, clamped to the first and last column."""
    length = max(1, end_ns - begin_ns)
    return max(0, min(columns - 1, (time_ns - begin_ns) * columns // length))


def stack_cells(sizes: Sequence[tuple[str, int]], top: int, rows: int) -> list[str]:
    """Return tenant names for the cells of a column, bottom first; empty above the top.

    Each cell shows its largest tenant. A non-zero total fills at least one cell, and a
    total of ``top`` fills all.
    """
    total = sum(size for _, size in sizes)
    filled = min(rows, max(1, (2 * total * rows + top) // (2 * top))) if total > 0 and top > 0 else 0
    cells = []
    for row in range(filled):
        low, high = row * top, min((row + 1) * top, max(total * rows, row * top + 1))
        cells.append(_find_owner(sizes, low, high, rows))
    return cells + [""] * (rows - filled)


def _find_owner(sizes: Sequence[tuple[str, int]], low: int, high: int, rows: int) -> str:
    """Return the tenant with the most bytes between two heights, in units of 1/``rows`` byte."""
    bottom, owner, max_overlap = 0, sizes[0][0], -1
    for name, size in sizes:
        top = bottom + size * rows
        overlap = min(top, high) - max(bottom, low)
        if size > 0 and overlap > max_overlap:
            owner, max_overlap = name, overlap
        bottom = top
    return owner


def layout_marks(named: Sequence[tuple[int, str]], curve: Curve, columns: int) -> list[tuple[int, int, str]]:
    """Return (first column, end column, name) of phases or steps."""
    times = curve.timeline.time_ns
    starts = [find_column(time, times[0], curve.end_ns, columns) for time, _ in named]
    ends = [*starts[1:], columns]
    spans = zip(starts, ends, named, strict=True)
    return [(start, end, name) for start, end, (_, name) in spans if end > start]
