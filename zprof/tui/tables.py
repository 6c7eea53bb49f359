"""Tables of cells, independent of how they are drawn: columns, lines, marks, row targets.

Also sorts and filters lines.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol, overload, runtime_checkable

from msgspec import Struct

from zprof.model.formatting import printable
from zprof.model.quantities import Value

#: MAX_ROWS: rows that a table draws. MAX_LINES: lines of a page's table that can be searched and sorted. A
#: note below the table gives the total if there are more.
MAX_ROWS, MAX_LINES = 100, 2000


class Mark(StrEnum):
    """Meaning of a cell, which picks its colour; the text conveys the same without colour."""

    PLAIN = "plain"
    MUTED = "muted"
    GOOD = "good"
    BAD = "bad"
    DOUBTFUL = "doubtful"
    TITLE = "title"
    PREDICTED = "predicted"


class Opens(StrEnum):
    """Target of ``enter`` on a row if the cell is not a figure."""

    NOTHING = "nothing"
    FINDING = "finding"
    COLLECTIVE = "collective"
    RANK = "rank"
    STEP = "step"
    ALLOCATION = "allocation"
    FORMULA = "formula"
    GAP = "gap"
    COMPARED = "compared"
    LEDGER = "ledger"
    WAIT = "wait"
    STANDING = "standing"


class TextCell(Struct, frozen=True):
    """Text in a cell; the only place where names from a run are made printable."""

    raw: str
    mark: Mark = Mark.PLAIN

    @property
    def text(self) -> str:
        """The text on one line, without terminal control characters."""
        return printable(self.raw)


class BarCell(TextCell, frozen=True):
    """Segments of a bar drawn to scale: (kind of time, start, end), with ends as fractions of the line.

    ``columns``: length of the full line in a terminal of 80 columns; it grows with wider terminals. ``raw``:
    the text used for search and copy.
    """

    segments: tuple[tuple[str, float, float], ...] = ()
    columns: int = 16

    def columns_at(self, width: int) -> int:
        """Return the length of the line in a terminal of this width."""
        return self.columns + max(0, width - 80) // 2


Cell = TextCell | Value


class ScreenColumn(Struct, frozen=True, kw_only=True):
    """A column: its title, its help text, and the table width below which it is hidden.

        ``from_width``: minimum width of the table, in columns, to show it. ``rest``: its texts are shortened
    its texts are shortened if a line is too long.
    """

    title: str
    says: str = ""
    numeric: bool = False
    from_width: int = 0
    rest: bool = False


def numeric_column(title: str, says: str = "", *, from_width: int = 0) -> ScreenColumn:
    """Return a column of numbers."""
    return ScreenColumn(title=title, says=says, numeric=True, from_width=from_width)


class ScreenLine(Struct, frozen=True, kw_only=True):
    """A row: a key unique in its table, its cells, and what it opens.

    ``target``: index into the report's list (findings, collectives, gaps, ...), or the rank or step.
    """

    key: str
    cells: tuple[Cell, ...]
    opens: Opens = Opens.NOTHING
    target: int = -1
    mark: Mark = Mark.PLAIN


class ScreenTable(Struct, frozen=True, kw_only=True):
    """A table of a page. ``help``: text for ``?``. ``note``: text below the table."""

    name: str
    title: str
    columns: tuple[ScreenColumn, ...]
    lines: Sequence[ScreenLine] = ()
    help: str = ""
    note: str = ""

    def figures(self) -> list[Value]:
        """Return all numbers of the table."""
        return [cell for line in self.lines for cell in line.cells if isinstance(cell, Value)]


def find_number(line: ScreenLine, cell: Cell) -> Value | None:
    """Return the number that ``enter`` on a cell explains, if any.

    That is the cell's own number, else the first number of the row if the row opens nothing.
    """
    if isinstance(cell, Value) and cell.leaves:
        return cell
    if line.opens is not Opens.NOTHING:
        return None
    return next((other for other in line.cells if isinstance(other, Value) and other.leaves), None)


@runtime_checkable
class TableSource(Protocol):
    """A widget that keys can act on: its content as a table, and the line and cell under its cursor."""

    @property
    def table(self) -> ScreenTable | None:
        """The content as a table; None if nothing is shown yet."""

    def get_focused_line(self) -> tuple[ScreenLine, Cell] | None:
        """Return the line and cell under the cursor."""


def select_columns(table: ScreenTable, width: int) -> list[int]:
    """Return the indices of the columns that a table of this width shows."""
    return [index for index, column in enumerate(table.columns) if width >= column.from_width]


def filter_lines(table: ScreenTable, text: str) -> Sequence[ScreenLine]:
    """Return the lines that contain the text, ignoring case; all lines for an empty text."""
    search_text = text.casefold()
    if not search_text:
        return table.lines
    return [line for line in table.lines if any(search_text in cell.text.casefold() for cell in line.cells)]


def sort_lines(
    table: ScreenTable, lines: Sequence[ScreenLine], column: int, *, reverse: bool
) -> list[ScreenLine]:
    """Return the lines sorted by a column: numbers by value with unknown ones last, texts alphabetically."""

    def key(line: ScreenLine) -> tuple[float, str]:
        cell = line.cells[column]
        if isinstance(cell, Value):
            return (cell.number if cell.number is not None else 0.0, "")
        return (0.0, cell.text.casefold())

    unknown = [line for line in lines if _is_unknown(line.cells[column])]
    known = [line for line in lines if not _is_unknown(line.cells[column])]
    return sorted(known, key=key, reverse=reverse) + unknown


def _is_unknown(cell: Cell) -> bool:
    return isinstance(cell, Value) and cell.number is None


class LazyLines(Sequence[ScreenLine]):
    """A sequence of `count` lines, each built on first access."""

    def __init__(self, count: int, make: Callable[[int], ScreenLine]) -> None:
        self._make = make
        self._lines: list[ScreenLine | None] = [None] * count

    @property
    def built_count(self) -> int:
        """Number of lines built so far."""
        return sum(line is not None for line in self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> ScreenLine: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ScreenLine]: ...
    def __getitem__(self, index: int | slice) -> ScreenLine | Sequence[ScreenLine]:
        """Return the line at an index, or the lines of a slice."""
        if isinstance(index, slice):
            return [self._get_line(position) for position in range(*index.indices(len(self)))]
        return self._get_line(range(len(self))[index])

    def _get_line(self, index: int) -> ScreenLine:
        line = self._lines[index]
        if line is None:
            line = self._lines[index] = self._make(index)
        return line


def format_truncation(shown: int, count: int, which: str) -> str:
    """Return a note that a table shows only part of its rows, or "" if it shows all."""
    return f"the {shown} {which} of {count}  " if count > shown else ""
