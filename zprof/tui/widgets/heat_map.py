"""The heat map widget: one row per rank, one column per step, the focused number below.

Only the visible part is computed.
"""

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from zprof.model.quantities import Value
from zprof.reports.layout import INDENT, lay_out_heat_map
from zprof.reports.page import HeatMap
from zprof.reports.table import Cell, Column, Kind, Row, Table
from zprof.tui.heat_grid import Cursor, HeatGrid, HeatPage, build_heat_page
from zprof.tui.keys import Where, bindings
from zprof.tui.theme import HEAT, HEAT_GLYPHS, Look, Pen

_UNKNOWN, _OUTLIER, _DOT = "?", "!", "·"
#: Lowest level of the colour ramp with black text on a cell.
_FIRST_BRIGHT_LEVEL = 5
_MIN_FRAME_WIDTH = 2
_MIN_GAP_WIDTH = 3
_BOLD = Style(bold=True)
#: Lines in addition to the rows: steps above, the focused number and the scale below.
_FRAME = 3
#: Terminal lines outside the body of a screen: titles, status, keys.
_SCREEN_LINES = 3
_MIN_ROWS = 3


class HeatView(Widget):
    """Draws a :class:`~zprof.tui.heat_grid.HeatGrid`.

    If not all ranks fit, they share rows or are split into pages.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.grid: HeatGrid | None = None
        self.folded = True
        self._requested_cursor = Cursor()
        self._page: HeatPage | None = None

    @property
    def cursor(self) -> Cursor:
        """The cursor clamped to the grid; a larger grid restores its requested position."""
        grid = self.grid
        assert grid is not None
        return Cursor(
            row=min(self._requested_cursor.row, len(grid.ranks) - 1),
            column=min(self._requested_cursor.column, len(grid.steps) - 1),
        )

    def show(self, grid: HeatGrid) -> None:
        """Show a grid; the cursor stays."""
        self.grid = grid if grid.ranks else None
        self.display = bool(grid.ranks)
        self._redraw(layout=True)

    def go_to(self, rank: int | None, step: int | None) -> None:
        """Move the cursor to this rank and step if the grid contains them."""
        if self.grid is None:
            return
        ranks, steps, current = self.grid.ranks, self.grid.steps, self._requested_cursor
        self.move_to(
            Cursor(
                row=ranks.index(rank) if rank in ranks else current.row,
                column=steps.index(step) if step is not None and step in steps else current.column,
            )
        )

    def focused_cell(self) -> tuple[int, int] | None:
        """Return the (row, column) in the grid of the focused number; in a shared cell, of the worst."""
        return self.get_page().worst_at(self.cursor) if self.grid else None

    @property
    def table(self) -> Table | None:
        """The focused number as a table, for keys that act on tables."""
        grid = self.grid
        if grid is None:
            return None
        columns = (
            Column(title="rank", kind=Kind.TEXT),
            Column(title="step", kind=Kind.TEXT),
            Column(
                title=grid.title,
            ),
        )
        return Table(name="heat", title=grid.title, columns=columns, help=f"{grid.title}: {grid.help}")

    def get_focused_line(self) -> tuple[Row, Cell] | None:
        """Return rank, step and number under the cursor."""
        grid, position = self.grid, self.focused_cell()
        if grid is None or position is None:
            return None
        step, number = grid.steps[position[1]], grid.figure_at(*position)
        names = (str(grid.ranks[position[0]]), ("run" if step is None else str(step)))
        return Row(key="focused", cells=(*names, number)), number

    def shown_figures(self) -> list[Value]:
        """Return the focused number and the ends of the scale."""
        grid, position = self.grid, self.focused_cell()
        if grid is None or position is None or not grid.is_known:
            return []
        return [grid.figure_at(*position), grid.least, grid.most, *([grid.floor] if grid.floor else [])]

    def on_resize(self, event: events.Resize) -> None:
        """Redraw for the new size."""
        self._redraw()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return one line per rank, limited to leave half of the body to the widgets below."""
        ranks = len(self.grid.ranks) if self.grid else 0
        max_rows = (viewport.height - _SCREEN_LINES) // 2 - _FRAME
        return min(ranks, max(_MIN_ROWS, max_rows)) + _FRAME

    def get_page(self) -> HeatPage:
        """Return the visible page."""
        assert self.grid is not None
        if self._page is None:
            size = self.size
            self._page = build_heat_page(
                self.grid, self.cursor, size.width, size.height - _FRAME, folded=self.folded
            )
        return self._page

    def render_line(self, y: int) -> Strip:
        """Draw one line of the widget."""
        if self.grid is None or not self.size.width:
            return Strip.blank(self.size.width, self.rich_style)
        page = self.get_page()
        pen = Pen.for_widget(self)
        rows = len(page.rows) - 1
        if y == 0:
            text, (start, end) = page.header(self.cursor)
            parts = [
                Segment(text[:start], pen.muted),
                Segment(text[start:end], _BOLD),
                Segment(text[end:], pen.muted),
            ]
            segments = [Segment(" " * page.label), *parts]
        elif y <= rows:
            row = y - 1
            is_focused = page.row_of(self.cursor) == row
            focused_column = page.column_of(self.cursor) if is_focused else -1
            name = page.row_name(row).ljust(page.label)
            segments = [Segment(name, _BOLD if is_focused else pen.muted)]
            for column, (level, far) in enumerate(zip(page.levels[row], page.far[row], strict=True)):
                is_here, text = column == focused_column, page.cell_text(row, column)
                segments += draw_cell(level, pen, far=far, width=page.cell, focused=is_here, text=text)
        elif y == rows + 1:
            segments = self._draw_focus_line(page, pen)
        else:
            segments = self._draw_scale_line(self.grid, pen) if y == rows + 2 else []
        # Set the widget's background, or the terminal default would show through.
        return Strip(segments).adjust_cell_length(self.size.width).apply_style(self.rich_style)

    def _draw_focus_line(self, page: HeatPage, pen: Pen) -> list[Segment]:
        grid = page.grid
        if not grid.is_known:
            return [Segment(f"{grid.title} is unknown: {grid.unknown}; press g for details")]
        position = page.worst_at(self.cursor)
        number = grid.figure_at(*position)
        outlier_note = "  ! far above the rest" if (number.number or 0.0) > grid.fence else ""
        shared_note = page.shared(self.cursor)
        return [
            Segment(f"{self.describe_position(*position)}: "),
            Segment(number.text, _BOLD),
            Segment(outlier_note),
            Segment(f"  {shared_note}" if shared_note else "", pen.muted),
        ]

    def _draw_scale_line(self, grid: HeatGrid, pen: Pen) -> list[Segment]:
        if not grid.is_known:
            return [Segment(grid.help, pen.muted)]
        resolution = f"; clocks to {grid.floor.text}" if grid.floor and grid.floor.number is not None else ""
        low, high = f" {grid.least.text} ", f" {grid.most.text}"
        levels = [Segment(_get_glyph(level, pen), _make_style(level, pen)) for level in range(len(HEAT))]
        scale = [Segment(grid.title, _BOLD), Segment(low), *levels, Segment(high)]
        return [*scale, Segment(f"  {grid.help}{resolution}", pen.muted)]

    def describe_position(self, row: int, column: int) -> str:
        """Return the rank and step at a grid position, as text."""
        assert self.grid is not None
        step = self.grid.steps[column]
        return f"rank {self.grid.ranks[row]}" + (f" step {step}" if step is not None else "")

    def move_to(self, cursor: Cursor) -> None:
        """Move the cursor."""
        self._requested_cursor = cursor
        self._redraw()

    def _redraw(self, *, layout: bool = False) -> None:
        self._page = None
        self.refresh(layout=layout)


class PageHeatMap(Static):
    """Draws the heat map of a page: the mesh of a job, or the slowdown of its workers."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id)
        self._block: HeatMap | None = None

    def show(self, block: HeatMap | None) -> None:
        """Show a map; None hides the widget."""
        self._block, self.display = block, block is not None
        self._draw()

    def on_resize(self) -> None:
        """Redraw, because another number of columns may fit."""
        self._draw()

    def _draw(self) -> None:
        block, pen = self._block, Pen.for_widget(self)
        if block is None:
            return
        text = Text(f"{block.title}  ", style="bold").append(block.unit, pen.muted)
        for line in lay_out_heat_map(block, self.size.width or self.app.size.width):
            text.append("\n")
            for piece, level in line:
                text.append(piece, pen.muted if level is None else _make_style(level, pen))
        for note in block.notes:
            text.append(f"\n{INDENT}{note}", pen.muted)
        self.update(text)


class RankHeatMap(HeatView, can_focus=True):
    """Heat map with key and mouse control."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.RANKS)]

    class Chosen(Message):
        """A cell was selected with ``enter``: the rank and step of its number."""

        def __init__(self, rank: int, step: int | None) -> None:
            super().__init__()
            self.rank, self.step = rank, step

    class NumberRequested(Message):
        """Request to open the focused number."""

        def __init__(self, number: Value, title: str) -> None:
            super().__init__()
            self.number, self.number_title = number, title

    def action_move(self, down: int, right: int) -> None:
        """Move the cursor by cells."""
        if self.grid is not None:
            self.move_to(self.get_page().moved(self.cursor, down, right))

    def action_choose(self) -> None:
        """Choose the rank and step of the focused number."""
        position = self.focused_cell()
        if position and self.grid:
            self.post_message(self.Chosen(self.grid.ranks[position[0]], self.grid.steps[position[1]]))

    def action_number(self) -> None:
        """Request to open the focused number."""
        position = self.focused_cell()
        if position and self.grid:
            title = f"{self.grid.title}, {self.describe_position(*position)}"
            self.post_message(self.NumberRequested(self.grid.figure_at(*position), title))

    def action_fold(self) -> None:
        """Toggle between fitting all ranks and steps and giving each its own row and column."""
        position = self.focused_cell()
        if position:
            self.folded = not self.folded
            self.move_to(Cursor(row=position[0], column=position[1]))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked cell; a click on the focused cell chooses it."""
        offset = event.get_content_offset(self)
        clicked = self.get_page().at(offset.x, offset.y) if self.grid and offset else None
        if clicked is None:
            return
        page, current = self.get_page(), self.cursor
        is_same_cell = (page.row_of(clicked), page.column_of(clicked)) == (
            page.row_of(current),
            page.column_of(current),
        )
        if is_same_cell:
            self.action_choose()
        else:
            self.move_to(clicked)


def draw_cell(level: int, pen: Pen, *, far: bool, width: int, focused: bool, text: str = "") -> list[Segment]:
    """Draw one cell: its number if given, ``?`` if unknown, ``!`` for outliers, in brackets if focused.

    A focused cell that is too narrow for brackets, or has no colour, is shown in reverse.
    """
    gap = 1 if width >= _MIN_GAP_WIDTH else 0
    fill = width - gap
    has_text = bool(text) and level >= 0
    if has_text:
        text = f"{text} {_OUTLIER}" if far else text
        text = text.center(fill)
    else:
        text = _get_glyph(level, pen) * fill
    if far and not has_text:
        middle = (fill - 1) // 2
        text = text[:middle] + _OUTLIER + text[middle + 1 :]
    is_framed = focused and fill >= _MIN_FRAME_WIDTH
    if is_framed:
        text = f"[{text[1:-1]}]"
    is_plain = pen.look is Look.MONO or level < 0
    style = _make_style(level, pen, bold=focused, reverse=focused and (is_plain or not is_framed))
    return [Segment(text, style), *([Segment(" ")] if gap else [])]


def _get_glyph(level: int, pen: Pen) -> str:
    if level < 0:
        return _UNKNOWN
    if pen.look is not Look.MONO and not pen.ascii_only:
        return " "
    glyph = HEAT_GLYPHS[level]
    return "." if pen.ascii_only and glyph == _DOT else glyph


def _make_style(level: int, pen: Pen, *, bold: bool = False, reverse: bool = False) -> Style:
    if pen.look is Look.MONO or level < 0:
        return Style(bold=bold, reverse=reverse)
    text_colour = "#000000" if level >= _FIRST_BRIGHT_LEVEL else "#FFFFFF"
    return Style(color=text_colour, bgcolor=HEAT[level], bold=bold, reverse=reverse)
