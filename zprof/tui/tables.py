"""Tables of cells, independent of how they are drawn: columns, lines, marks, and what a row opens.

Sorting and searching are here, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, overload, runtime_checkable

from zprof.model.formatting import printable
from zprof.tui.figures import Figure

#: Rows that a table draws, the first of its order, and lines of a page's table that can be searched and
#: sorted: of more than either its notes say how many there are.
MAX_ROWS, MAX_LINES = 100, 2000


class Mark(StrEnum):
    """What a cell means, for its colour; its text says the same without any."""

    PLAIN = "plain"
    MUTED = "muted"
    GOOD = "good"
    BAD = "bad"
    DOUBTFUL = "doubtful"
    TITLE = "title"
    PREDICTED = "predicted"


class Opens(StrEnum):
    """What ``enter`` on a row leads to, where the cell is no figure."""

    NOTHING = "nothing"
    FINDING = "finding"
    COLLECTIVE = "collective"
    RANK = "rank"
    STEP = "step"
    ALLOCATION = "allocation"
    LAW = "law"
    GAP = "gap"
    COMPARED = "compared"


@dataclass(frozen=True, slots=True)
class TextCell:
    """Text in a cell: names from a run are made printable here, and nowhere else."""

    raw: str
    mark: Mark = Mark.PLAIN

    @property
    def text(self) -> str:
        """On one line, with nothing in it that steers a terminal."""
        return printable(self.raw)


@dataclass(frozen=True, slots=True)
class BarCell(TextCell):
    """A piece of a line, drawn to scale: kinds of time, each from one share of the line to another.

    ``columns``: how long the whole line is in a terminal of 80 columns; wide ones have more.  ``raw`` is what
    it says as text, for search and copies.
    """

    segments: tuple[tuple[str, float, float], ...] = ()
    columns: int = 16

    def columns_at(self, width: int) -> int:
        """Its length in a terminal of this width."""
        return self.columns + max(0, width - 80) // 2


Cell = TextCell | Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its title, what ``?`` says about it, and the width of the table below which it is left out.

    ``from_width``: the table's width in columns from which it is shown.  ``rest``: its texts are the first
    to be cut where a line is too long.
    """

    title: str
    says: str = ""
    numeric: bool = False
    from_width: int = 0
    rest: bool = False


def numeric_column(title: str, says: str = "", *, from_width: int = 0) -> Column:
    """A column of numbers."""
    return Column(title=title, says=says, numeric=True, from_width=from_width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row: a key that is its own in the table, its cells, and what it opens.

    ``target``: the place in the report's list (of findings, collectives, gaps ...), or the rank or step.
    """

    key: str
    cells: tuple[Cell, ...]
    opens: Opens = Opens.NOTHING
    target: int = -1
    mark: Mark = Mark.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of a page.  ``help``: what ``?`` says of it; ``note`` stands under it."""

    name: str
    title: str
    columns: tuple[Column, ...]
    lines: Sequence[Line] = ()
    help: str = ""
    note: str = ""

    def figures(self) -> list[Figure]:
        """All its numbers."""
        return [cell for line in self.lines for cell in line.cells if isinstance(cell, Figure)]


def find_number(line: Line, cell: Cell) -> Figure | None:
    """What ``enter`` on a cell explains: its number; of a row that leads nowhere, the row's first number."""
    if isinstance(cell, Figure) and cell.leaves:
        return cell
    if line.opens is not Opens.NOTHING:
        return None
    return next((one for one in line.cells if isinstance(one, Figure) and one.leaves), None)


@runtime_checkable
class TableSource(Protocol):
    """A widget that keys can act on: what it shows as a table, and the line and cell under its cursor."""

    @property
    def table(self) -> Table | None:
        """What is shown; None where nothing is yet."""

    def focused_line(self) -> tuple[Line, Cell] | None:
        """What is under the cursor."""


def select_columns(table: Table, width: int) -> list[int]:
    """Places of the columns that a table of this width shows."""
    return [place for place, column in enumerate(table.columns) if width >= column.from_width]


def filter_lines(table: Table, text: str) -> Sequence[Line]:
    """The lines in which the text stands, in any case of letters; all for no text."""
    wanted = text.casefold()
    if not wanted:
        return table.lines
    return [line for line in table.lines if any(wanted in cell.text.casefold() for cell in line.cells)]


def sort_lines(table: Table, lines: Sequence[Line], place: int, *, reverse: bool) -> list[Line]:
    """The lines by a column: numbers by value, unknown ones last, texts by letters."""

    def key(line: Line) -> tuple[float, str]:
        cell = line.cells[place]
        if isinstance(cell, Figure):
            return (cell.value if cell.value is not None else 0.0, "")
        return (0.0, cell.text.casefold())

    unknown = [line for line in lines if _is_unknown(line.cells[place])]
    known = [line for line in lines if not _is_unknown(line.cells[place])]
    return sorted(known, key=key, reverse=reverse) + unknown


def _is_unknown(cell: Cell) -> bool:
    return isinstance(cell, Figure) and cell.value is None


class LazyLines(Sequence[Line]):
    """So many lines, each made once, by its place."""

    def __init__(self, count: int, make: Callable[[int], Line]) -> None:
        self._make = make
        self._made: list[Line | None] = [None] * count

    @property
    def made(self) -> int:
        """How many are made by now."""
        return sum(line is not None for line in self._made)

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, at: int) -> Line: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Line]: ...
    def __getitem__(self, at: int | slice) -> Line | Sequence[Line]:
        """The line at a place, or the lines of a stretch."""
        if isinstance(at, slice):
            return [self._at(place) for place in range(*at.indices(len(self)))]
        return self._at(range(len(self))[at])

    def _at(self, place: int) -> Line:
        found = self._made[place]
        if found is None:
            found = self._made[place] = self._make(place)
        return found


def format_truncation(shown: int, count: int, which: str) -> str:
    """That a table has only some of what there is; nothing where it has all."""
    return f"the {shown} {which} of {count}  " if count > shown else ""
