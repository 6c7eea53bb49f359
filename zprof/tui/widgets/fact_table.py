"""A table widget with sorting, search, copy and drill-down.

If columns do not fit, text is shortened; numbers stay whole.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.actions import SkipAction
from textual.binding import BindingType
from textual.coordinate import Coordinate
from textual.message import Message
from textual.widgets import DataTable
from textual.widgets.data_table import RowKey

from zprof.base.formatting import display_width, printable, shorten
from zprof.model.quantities import Value
from zprof.reports.table import Bar, Cell, Column, Mark, Row, Table
from zprof.reports.text import format_table_note
from zprof.tui.keys import Where, bindings
from zprof.tui.table_view import (
    MAX_ROWS,
    filter_lines,
    find_boldest,
    get_bar_columns,
    get_text,
    select_columns,
    sort_lines,
)
from zprof.tui.theme import Pen, get_look
from zprof.tui.widgets.text import render_bar, render_cell

#: Lines taken by the border.
_BORDER = 2
#: Rows drawn before the widget has a size; the table is redrawn once the size is known.
_INITIAL_ROWS = 50
_UP, _DOWN = "▲", "▼"


class FactTable(DataTable[object]):
    """Shows at most ``MAX_ROWS`` rows of a :class:`~zprof.reports.table.Table`."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.TABLE)]

    class Opened(Message):
        """A cell was opened with ``enter``."""

        def __init__(self, table: Table, line: Row, cell: Cell) -> None:
            super().__init__()
            self.table, self.line, self.cell = table, line, cell

    class Redrawn(Message):
        """The visible rows may have changed, so views of the focused row must update."""

        def __init__(self, table: "FactTable") -> None:
            super().__init__()
            self.source = table

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        """Create an empty table as tall as its rows, or filling the free space with ``classes="fill"``."""
        super().__init__(id=id, classes=classes, cursor_type="cell", zebra_stripes=False)
        self.table: Table | None = None
        self.search_text = ""
        #: Number of rows that contain the search text.
        self.match_count = 0
        self._lines: Sequence[Row] = ()
        self._columns: list[int] = []
        self._sorted_by: int | None = None
        self._reverse = True
        self._drawn_width, self._is_complete = 0, True

    def show(self, table: Table) -> None:
        """Show a table; keep sort order and search if the table name is unchanged."""
        if self.table is None or self.table.name != table.name:
            self.search_text, self._sorted_by, self._reverse = "", None, True
        self.table = table
        self._draw()

    def search(self, text: str) -> None:
        """Show only lines that contain this text."""
        self.search_text = text
        self._draw()

    def get_focused_line(self) -> tuple[Row, Cell] | None:
        """Return the line and cell under the cursor; None in an empty table."""
        row, column = self.cursor_coordinate
        if not (0 <= row < len(self._lines) and 0 <= column < len(self._columns)):
            return None
        line = self._lines[row]
        return line, line.cells[self._columns[column]]

    def action_open(self) -> None:
        """Open the cell under the cursor."""
        focused = self.get_focused_line()
        if focused and self.table:
            self.post_message(self.Opened(self.table, *focused))

    def action_all_rows(self) -> None:
        """Clear the search; without a search, let parent widgets handle the key."""
        if not self.search_text:
            raise SkipAction
        self.search("")

    def action_sort(self) -> None:
        """Sort by the next column; after the last column, restore the original order."""
        if not self._columns:
            return
        columns = [None, *self._columns]
        index = columns.index(self._sorted_by) if self._sorted_by in columns else 0
        self._sorted_by = columns[(index + 1) % len(columns)]
        self._draw()

    def action_reverse(self) -> None:
        """Reverse the sort order."""
        self._reverse = not self._reverse
        self._draw()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to a clicked cell and open it; header clicks are handled by DataTable."""
        row, column = event.style.meta.get("row", -1), event.style.meta.get("column", -1)
        if row >= 0 and column >= 0:
            event.prevent_default().stop()
            self.cursor_coordinate = Coordinate(row, column)
            self.action_open()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the clicked column; a second click reverses the order."""
        event.stop()
        if not self._columns:
            return
        column = self._columns[event.column_index]
        if self._sorted_by == column:
            self._reverse = not self._reverse
        self._sorted_by = column
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Redraw if the width changed or not all rows were drawn."""
        if self.table is not None and (self._drawn_width != self._outer_width() or not self._is_complete):
            self._draw()

    def _update_dimensions(self, new_rows: Iterable[RowKey]) -> None:
        """Skip cell measurement (0.5 s); widths are fixed and rows are one line high."""
        super()._update_dimensions(())

    def _outer_width(self) -> int:
        """Return the width including the frame, or before layout the terminal width."""
        return self.outer_size.width or self.app.size.width

    def _draw(self) -> None:
        table = self.table
        if table is None:
            return
        cursor = self.cursor_coordinate
        lines = filter_lines(table, self.search_text)
        if self._sorted_by is not None:
            lines = sort_lines(table, lines, self._sorted_by, reverse=self._reverse)
        max_rows = MAX_ROWS if self.size.width else _INITIAL_ROWS
        match_count = self.match_count = len(lines)
        self._lines = lines[:max_rows]
        self._drawn_width, self._is_complete = (
            self._outer_width(),
            len(self._lines) == min(MAX_ROWS, match_count),
        )
        self._columns = select_columns(table, self._drawn_width) if self._lines else []
        self.clear(columns=True)
        self._fill()
        if not self.has_class("fill"):
            self.styles.height = len(self._lines) + (_BORDER + self.header_height if self.show_header else 0)
        search = f"  /{self.search_text} (esc to clear)" if self.search_text else ""
        self.border_title = Text(printable(", ".join(filter(None, (table.title, table.shared))) + search))
        found = match_count if self.search_text else max(match_count, table.total or 0)
        hidden = (
            f"showing {len(self._lines)} of {found} {table.noun}; / to filter"
            if match_count > len(self._lines)
            else ""
        )
        note = format_table_note(table) if self._lines else ""
        self.border_subtitle = Text(printable("  ".join(part for part in (note, hidden) if part)))
        if self._lines:
            self.move_cursor(
                row=min(cursor.row, len(self._lines) - 1), column=min(cursor.column, len(self._columns) - 1)
            )
        self.post_message(self.Redrawn(self))

    def _fill(self) -> None:
        """Add columns and rows, or the reason why the table is empty."""
        assert self.table is not None
        if not self._columns:
            reason = printable(self.table.note) or "nothing"
            if self.search_text:
                reason = f"no rows match {printable(self.search_text)!r}; esc to clear"
            self.add_column(Text(shorten(reason, max(1, self._width_limit() - PADDING))))
            return
        columns = [self.table.columns[index] for index in self._columns]
        titles = [self._render_title(column) for column in self._columns]
        rows = [[self._render_line_cell(line, column) for column in self._columns] for line in self._lines]
        widths = self._widths(columns, titles, rows)
        self.header_height = 1 + any("\n" in title.plain for title in titles)
        for title, width in zip(titles, widths, strict=True):
            self.add_column(title, width=width)
        for line, row in zip(self._lines, rows, strict=True):
            self.add_row(*row, key=line.key)

    def _widths(
        self, columns: Sequence[Column], titles: Sequence[Text], rows: Sequence[Sequence[Text]]
    ) -> list[int]:
        """Return column widths that fit into the width limit; shorten cell texts in place."""
        width_limit = self._width_limit()
        widths = [max(text.cell_len for text in cells) for cells in zip(titles, *rows, strict=True)]
        texts = [not column.is_number and bool(column.title) for column in columns]
        if sum(widths) + PADDING * len(widths) > width_limit:
            for at, (column, title) in enumerate(zip(columns, titles, strict=True)):
                if column.is_number:
                    widths[at] = wrap_header(title, [row[at].cell_len for row in rows])
        widths = shrink_widths(widths, texts, [column.takes_rest for column in columns], width_limit)
        for row in rows:
            for text, width in zip(row, widths, strict=True):
                if text.cell_len > width:
                    text.plain = shorten(text.plain, width)
        return widths

    def _render_line_cell(self, line: Row, column: int) -> Text:
        assert self.table is not None
        cell = line.cells[column]
        mark = Mark.TITLE if line.total else line.mark
        if line.total and column == 0:
            cell = f"= {get_text(cell)}"
        if isinstance(cell, Bar):
            columns, is_boldest = (
                get_bar_columns(cell, self._drawn_width),
                line is find_boldest(self._lines, column),
            )
            return render_bar(cell, columns, Pen.for_widget(self), is_boldest=is_boldest)
        return render_cell(cell, get_look(self.app), numeric=self.table.columns[column].is_number, row=mark)

    def _width_limit(self) -> int:
        """Return the columns available for cells, without frame and vertical scroll bar."""
        return int(self._drawn_width - self.styles.gutter.width - (self.styles.overflow_y != "hidden"))

    def _render_title(self, index: int) -> Text:
        assert self.table is not None
        column = self.table.columns[index]
        mark = (_DOWN if self._reverse else _UP) if index == self._sorted_by else ""
        title = column.short or column.title
        label = printable(f"{title} {mark}" if mark else title)
        return Text(label, justify="right" if column.is_number else "left")

    def shown_figures(self) -> list[Value]:
        """Return the visible numbers that are in the report's JSON or derived from it."""
        cells = [line.cells[column] for line in self._lines for column in self._columns]
        return [cell for cell in cells if isinstance(cell, Value) and cell.leaves]

    def go_to(self, key: str) -> None:
        """Move the cursor to the line with this key, if it is shown."""
        for row, line in enumerate(self._lines):
            if line.key == key:
                self.cursor_coordinate = Coordinate(row, self.cursor_coordinate.column)


#: Padding per cell, in columns.
PADDING = 2
#: Minimum width of a text column, and of the column that takes the remaining space.
_MIN_TEXT, _MIN_REST = 14, 8
#: Maximum width of a number column's header in a table that is too wide.
_MAX_HEADER = 12


def wrap_header(title: Text, cells: Sequence[int]) -> int:
    """Move the last word of a header to a second line if it is wider than its numbers; return the width."""
    width = max(cells, default=0)
    if title.cell_len > width:
        first, _, last = title.plain.rpartition(" ")
        lines = [first, last] if first else [title.plain]
        width = max(width, min(_MAX_HEADER, max(map(display_width, lines))))
        title.plain = "\n".join(shorten(line, width) for line in lines)
    return width


def shrink_widths(
    widths: Sequence[int], texts: Sequence[bool], rest: Sequence[bool], width_limit: int
) -> list[int]:
    """Return the widths shrunk to fit into ``width_limit`` with padding.

    ``rest`` columns shrink first, then the widest text columns; numbers keep their width.
    """
    fits = [
        min(width, width_limit) if is_text or is_rest else width
        for width, is_text, is_rest in zip(widths, texts, rest, strict=True)
    ]
    excess = sum(fits) + PADDING * len(fits) - width_limit
    for indices, min_width in (
        ([index for index, flag in enumerate(rest) if flag], _MIN_REST),
        ([index for index, flag in enumerate(texts) if flag], _MIN_TEXT),
    ):
        while excess > 0 and indices:
            widest = max(indices, key=fits.__getitem__)
            if fits[widest] <= min_width:
                break
            fits[widest] -= 1
            excess -= 1
    return fits


#: Extra width of the last page, needed to scroll to it in a table without a vertical scroll bar.
_SCROLL_BAR = 1


class PagedTable(FactTable):
    """Table that scrolls horizontally by pages, showing the page of the column under the cursor."""

    def _widths(
        self, columns: Sequence[Column], titles: Sequence[Text], rows: Sequence[Sequence[Text]]
    ) -> list[int]:
        """Return widths that keep columns within pages; the last column of each page fills it."""
        widths = super()._widths(columns, titles, rows)
        width_limit = self._width_limit()
        aligned, used, last = list(widths), 0, 0
        for index, width in enumerate(widths):
            if used and used + width + PADDING > width_limit:
                aligned[index - 1] += max(0, width_limit - used)
                used, last = 0, _SCROLL_BAR
            used += width + PADDING
        if last:
            aligned[-1] += max(0, width_limit - used) + last
        return aligned

    def _scroll_cursor_into_view(self, animate: bool = False) -> None:
        """Scroll to the page of the cursor's column; all rows are always visible."""
        widths = [column.get_render_width(self) for column in self.ordered_columns]
        start = [0, *accumulate(widths)][self.cursor_column]
        width_limit = max(1, self._width_limit())
        self.scroll_to(x=start // width_limit * width_limit, animate=False)
