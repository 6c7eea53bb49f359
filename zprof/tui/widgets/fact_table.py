"""The table widget: each cell can be focused, sorted, searched, copied and opened.

If columns do not fit, texts are shortened, numbers never.
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

from zprof.model.formatting import printable, shorten
from zprof.tui.figures import Figure
from zprof.tui.keys import Where, bindings
from zprof.tui.tables import (
    MAX_ROWS,
    BarCell,
    Cell,
    Column,
    Line,
    Table,
    filter_lines,
    select_columns,
    sort_lines,
)
from zprof.tui.theme import get_look
from zprof.tui.widgets.text import render_bar, render_cell

#: Lines of a table without its rows: two of the border, one of titles.
_FRAME = 3
#: Rows drawn before the widget has a size; the table is redrawn once it has one.
_FIRST_ROWS = 50
_UP, _DOWN = "▲", "▼"


class FactTable(DataTable[object]):
    """Shows a :class:`~zprof.tui.tables.Table`, at most ``MAX_ROWS`` of its lines."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.TABLE)]

    class Opened(Message):
        """A cell was opened with ``enter``."""

        def __init__(self, table: Table, line: Line, cell: Cell) -> None:
            super().__init__()
            self.table, self.line, self.cell = table, line, cell

    class SearchAsked(Message):
        """``/`` was pressed in this table."""

        def __init__(self, table: "FactTable") -> None:
            super().__init__()
            self.asking = table

    class Redrawn(Message):
        """Other rows may be shown, so views of the focused row must update."""

        def __init__(self, table: "FactTable") -> None:
            super().__init__()
            self.drawn = table

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        """Create an empty table; ``classes="fill"`` takes all free height, else that of its rows."""
        super().__init__(id=id, classes=classes, cursor_type="cell", zebra_stripes=False)
        self.table: Table | None = None
        self.wanted = ""
        self._lines: Sequence[Line] = ()
        self._columns: list[int] = []
        self._sorted_by: int | None = None
        self._reverse = True
        self._drawn_for, self._is_whole = 0, True

    def show(self, table: Table) -> None:
        """Show a table; sort order and search are kept if it has the same name as before."""
        if self.table is None or self.table.name != table.name:
            self.wanted, self._sorted_by, self._reverse = "", None, True
        self.table = table
        self._draw()

    def search(self, text: str) -> None:
        """Show only lines that contain this text."""
        self.wanted = text
        self._draw()

    def focused_line(self) -> tuple[Line, Cell] | None:
        """Return the line and cell under the cursor; None in an empty table."""
        row, column = self.cursor_coordinate
        if not (0 <= row < len(self._lines) and 0 <= column < len(self._columns)):
            return None
        line = self._lines[row]
        return line, line.cells[self._columns[column]]

    def action_open(self) -> None:
        """Open the cell under the cursor."""
        focused = self.focused_line()
        if focused and self.table:
            self.post_message(self.Opened(self.table, *focused))

    def action_search(self) -> None:
        """Request a search text."""
        self.post_message(self.SearchAsked(self))

    def action_all_rows(self) -> None:
        """Clear the search; without one, leave the key to the table's parents."""
        if not self.wanted:
            raise SkipAction
        self.search("")

    def action_sort(self) -> None:
        """Sort by the next column; after the last one, restore the original order."""
        if not self._columns:
            return
        places = [None, *self._columns]
        at = places.index(self._sorted_by) if self._sorted_by in places else 0
        self._sorted_by = places[(at + 1) % len(places)]
        self._draw()

    def action_reverse(self) -> None:
        """Reverse the sort order."""
        self._reverse = not self._reverse
        self._draw()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to a clicked cell and open it; clicks on titles stay with the table."""
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
        place = self._columns[event.column_index]
        if self._sorted_by == place:
            self._reverse = not self._reverse
        self._sorted_by = place
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Redraw if the width changed or not all rows were drawn."""
        if self.table is not None and (self._drawn_for != self._width_of_it() or not self._is_whole):
            self._draw()

    def _update_dimensions(self, new_rows: Iterable[RowKey]) -> None:
        """Skip measuring cells, which takes 0.5 s: widths are set and rows have one line."""
        super()._update_dimensions(())

    def _width_of_it(self) -> int:
        """Return the width with frame; until laid out, the terminal's."""
        return self.outer_size.width or self.app.size.width

    def _draw(self) -> None:
        table = self.table
        if table is None:
            return
        at = self.cursor_coordinate
        lines = filter_lines(table, self.wanted)
        if self._sorted_by is not None:
            lines = sort_lines(table, lines, self._sorted_by, reverse=self._reverse)
        most, found = MAX_ROWS if self.size.width else _FIRST_ROWS, len(lines)
        self._lines = lines[:most]
        self._drawn_for, self._is_whole = self._width_of_it(), len(self._lines) == min(MAX_ROWS, found)
        self._columns = select_columns(table, self._drawn_for) if self._lines else []
        self.clear(columns=True)
        self._fill()
        if not self.has_class("fill"):
            self.styles.height = len(self._lines) + (_FRAME if self.show_header else 0)
        self.border_title = Text(
            printable(table.title + (f"  /{self.wanted} (esc: all)" if self.wanted else ""))
        )
        hidden = f"first {len(self._lines)} of {found} rows: / narrows" if found > len(self._lines) else ""
        note = table.note if self._lines else ""
        self.border_subtitle = Text(printable("  ".join(part for part in (note, hidden) if part)))
        if self._lines:
            self.move_cursor(
                row=min(at.row, len(self._lines) - 1), column=min(at.column, len(self._columns) - 1)
            )
        self.post_message(self.Redrawn(self))

    def _fill(self) -> None:
        """Add columns and rows, or the reason why there are none."""
        assert self.table is not None
        if not self._columns:
            self.add_column(Text(shorten(self._nothing(), max(1, self._width_limit() - PADDING))))
            return
        columns = [self.table.columns[place] for place in self._columns]
        titles = [self._title(place) for place in self._columns]
        rows = [[self._drawn(line, place) for place in self._columns] for line in self._lines]
        for title, width in zip(titles, self._widths(columns, titles, rows), strict=True):
            self.add_column(title, width=width)
        for line, row in zip(self._lines, rows, strict=True):
            self.add_row(*row, key=line.key)

    def _widths(
        self, columns: Sequence[Column], titles: Sequence[Text], rows: Sequence[Sequence[Text]]
    ) -> list[int]:
        return fit_columns(columns, titles, rows, self._width_limit())

    def _nothing(self) -> str:
        """Return why the table has no rows."""
        if self.wanted:
            return f"no row has {printable(self.wanted)!r}: esc shows all"
        return printable(self.table.note if self.table is not None else "") or "nothing"

    def _drawn(self, line: Line, place: int) -> Text:
        assert self.table is not None
        cell, look = line.cells[place], get_look(self.app)
        if isinstance(cell, BarCell):
            is_ascii = bool(getattr(self.app, "ascii_only", False))
            return render_bar(cell, cell.columns_at(self._drawn_for), look, ascii_only=is_ascii)
        return render_cell(cell, look, numeric=self.table.columns[place].numeric, row=line.mark)

    def _width_limit(self) -> int:
        """Return the columns for cells, without the frame and a vertical scroll bar."""
        return int(self._drawn_for - self.styles.gutter.width - (self.styles.overflow_y != "hidden"))

    def _title(self, place: int) -> Text:
        assert self.table is not None
        column = self.table.columns[place]
        mark = (_DOWN if self._reverse else _UP) if place == self._sorted_by else ""
        said = printable(f"{column.title} {mark}" if mark else column.title)
        return Text(said, justify="right" if column.numeric else "left")

    def shown_figures(self) -> list[Figure]:
        """Return the numbers in its rows and columns that are not filtered or hidden.

        Numbers that do not belong to this report (those of ``zprof compare``) drop out in ``in_report``.
        """
        cells = [line.cells[place] for line in self._lines for place in self._columns]
        return [found for cell in cells if isinstance(cell, Figure) for found in cell.in_report()]

    def go_to(self, key: str) -> None:
        """Move the cursor to the line with this key, if it is shown."""
        for row, line in enumerate(self._lines):
            if line.key == key:
                self.cursor_coordinate = Coordinate(row, self.cursor_coordinate.column)


#: Columns that a cell takes in addition to its text.
PADDING = 2
#: Minimum width of a text column, and of the column that takes the remaining space.
_MIN_TEXT, _MIN_REST = 14, 8


def fit_columns(
    columns: Sequence[Column], titles: Sequence[Text], rows: Sequence[Sequence[Text]], width_limit: int
) -> list[int]:
    """Return column widths that fit into ``width_limit``, and shorten the texts in the rows to them."""
    widths = [max(text.cell_len for text in cells) for cells in zip(titles, *rows, strict=True)]
    texts = [not column.numeric and bool(column.title) for column in columns]
    widths = shrink_widths(widths, texts, [column.rest for column in columns], width_limit)
    for row in rows:
        for text, width in zip(row, widths, strict=True):
            if text.cell_len > width:
                text.plain = shorten(text.plain, width)
    return widths


def shrink_widths(
    widths: Sequence[int], texts: Sequence[bool], rest: Sequence[bool], width_limit: int
) -> list[int]:
    """Return the widths shrunk to fit into ``width_limit`` with padding.

    ``rest`` columns shrink first, then the widest text columns; numbers keep their width.
    """
    fits = [
        min(width, width_limit) if text or last else width
        for width, text, last in zip(widths, texts, rest, strict=True)
    ]
    over = sum(fits) + PADDING * len(fits) - width_limit
    for places, least in ((_chosen_places(rest), _MIN_REST), (_chosen_places(texts), _MIN_TEXT)):
        over = _shrink(fits, places, least, over)
    return fits


def _chosen_places(chosen: Sequence[bool]) -> list[int]:
    return [place for place, is_one in enumerate(chosen) if is_one]


def _shrink(widths: list[int], places: Sequence[int], least: int, over: int) -> int:
    """Shrink the widest of these columns until all fit or reach ``least``; return the remaining excess."""
    while over > 0 and places:
        widest = max(places, key=lambda place: widths[place])
        if widths[widest] <= least:
            break
        widths[widest] -= 1
        over -= 1
    return over


#: Extra width of the last page, so that it can be scrolled to in a table without a vertical scroll bar.
_SCROLL_BAR = 1


class PagedTable(FactTable):
    """Table that scrolls horizontally by pages: it shows the page of the column under the cursor."""

    def _widths(
        self, columns: Sequence[Column], titles: Sequence[Text], rows: Sequence[Sequence[Text]]
    ) -> list[int]:
        return align_to_pages(super()._widths(columns, titles, rows), self._width_limit())

    def _scroll_cursor_into_view(self, animate: bool = False) -> None:
        """Scroll to the page of the cursor's column; all rows are always visible."""
        widths = [column.get_render_width(self) for column in self.ordered_columns]
        begin = [0, *accumulate(widths)][self.cursor_column]
        width_limit = max(1, self._width_limit())
        self.scroll_to(x=begin // width_limit * width_limit, animate=False)


def align_to_pages(widths: Sequence[int], width_limit: int) -> list[int]:
    """Return widths with which no column crosses a page boundary; each page's last column fills it."""
    found, used, last = list(widths), 0, 0
    for place, width in enumerate(widths):
        if used and used + width + PADDING > width_limit:
            found[place - 1] += max(0, width_limit - used)
            used, last = 0, _SCROLL_BAR
        used += width + PADDING
    if last:
        found[-1] += max(0, width_limit - used) + last
    return found
