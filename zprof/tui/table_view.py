"""Table operations of screens: visible columns, search, sorting, the number under the cursor."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from zprof.base.formatting import printable
from zprof.model.quantities import Value
from zprof.reports.table import Bar, Cell, Mark, Marked, Opens, Row, Table, format_cell

#: Maximum rows that a table draws; if there are more, a note below gives the total.
MAX_ROWS = 100


def get_text(cell: Cell) -> str:
    """Return the text of a cell on one line, without terminal control characters."""
    if isinstance(cell, Marked) and cell.short:
        return printable(cell.short)
    return printable(cell.text if isinstance(cell, Value) else format_cell(cell))


def get_mark(cell: Cell) -> Mark:
    """Return the mark of a text cell; numbers and bars have no mark."""
    return cell.mark if isinstance(cell, Marked) else Mark.PLAIN


def get_bar_columns(bar: Bar, width: int) -> int:
    """Return the length of a bar's axis in a terminal of this width; it grows in wide terminals."""
    return bar.columns + max(0, width - 80) // 2


def find_boldest(lines: Sequence[Row], column: int) -> Row | None:
    """Return the line with the longest bar in a column, without totals."""
    lengths = [
        (sum(end - start for _, start, end in cell.segments), line)
        for line in lines
        if isinstance(cell := line.cells[column], Bar) and not line.total
    ]
    return max(lengths, key=lambda each: each[0], default=(0.0, None))[1]


def find_number(row: Row, cell: Cell) -> Value | None:
    """Return the number that ``enter`` on a cell explains, if any.

    This is the cell's own number, or the first number of the row if the row opens nothing.
    """
    if isinstance(cell, Value) and cell.leaves:
        return cell
    if row.opens is not Opens.NOTHING:
        return None
    return next((other for other in row.cells if isinstance(other, Value) and other.leaves), None)


def is_of_model(number: Value) -> bool:
    """Return True if the number comes from the what-if model; its predictions are estimates."""
    return bool(number.leaves) and number.leaves[0].starts_with("outlook")


@runtime_checkable
class TableSource(Protocol):
    """A widget that keys act on: its content as a table, and the line and cell under its cursor."""

    @property
    def table(self) -> Table | None:
        """The content as a table; None if nothing is shown yet."""

    def get_focused_line(self) -> tuple[Row, Cell] | None:
        """Return the line and cell under the cursor."""


def select_columns(table: Table, width: int) -> list[int]:
    """Return the indices of the visible columns of a table of this width.

    A name shared by all rows moves to the title.
    """
    return [
        index
        for index, column in enumerate(table.columns)
        if width >= column.from_width and not (column.lifted and table.shared)
    ]


def filter_lines(table: Table, text: str) -> Sequence[Row]:
    """Return the lines that contain the text, ignoring case; all lines for an empty text."""
    search_text = text.casefold()
    if not search_text:
        return table.rows
    return [
        line for line in table.rows if any(search_text in get_text(cell).casefold() for cell in line.cells)
    ]


def sort_lines(table: Table, lines: Sequence[Row], column: int, *, reverse: bool) -> list[Row]:
    """Return the lines sorted by a column: numbers by value, unknown numbers last, text alphabetically."""

    def key(row: Row) -> tuple[float, str]:
        cell = row.cells[column]
        if isinstance(cell, Value):
            return (cell.number if cell.number is not None else 0.0, "")
        return (0.0, get_text(cell).casefold())

    unknown = [line for line in lines if _is_unknown(line.cells[column])]
    known = [line for line in lines if not _is_unknown(line.cells[column])]
    return sorted(known, key=key, reverse=reverse) + unknown


def _is_unknown(cell: Cell) -> bool:
    return isinstance(cell, Value) and cell.number is None
