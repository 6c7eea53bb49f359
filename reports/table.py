"""Tables for all outputs: columns, rows of cells, what a row opens, order and bars.

Text, Markdown, HTML and the terminal UI draw the same :class:`Table`; each ignores the fields it does not
need.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import overload

from msgspec import Struct

from zprof.model.quantities import Value, format_value

#: Maximum number of rows in a static output; the JSON has all rows.
MAX_ROWS = 200
#: Maximum number of rows in a list that a screen can search and sort.
MAX_LINES = 2000
#: Default maximum number of rows in text.
MAX_TEXT_ROWS = 24
#: Placeholder for an unknown number in a static output.
UNKNOWN = "-"


class Kind(StrEnum):
    """Cell content of a column."""

    NUMBER = "number"
    TEXT = "text"
    NAME = "name"
    BAR = "bar"


class Mark(StrEnum):
    """Meaning of a cell, which picks its colour; the text conveys it without colour."""

    PLAIN = "plain"
    MUTED = "muted"
    GOOD = "good"
    BAD = "bad"
    DOUBTFUL = "doubtful"
    TITLE = "title"
    PREDICTED = "predicted"


class Opens(StrEnum):
    """What ``enter`` on a row opens, if the cell under the cursor is not a number."""

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


class Column(Struct, frozen=True, kw_only=True):
    """Header of a column.

    ``help``: what the column contains.  ``wide``: omitted in text.  ``lifted``: text prints the value once,
    above the rows that share it.  ``min_width``: minimum width in text, to align consecutive tables.
    ``from_width``: minimum table width to show the column on a screen. ``takes_rest``: its text is shortened
    first if a screen row is too long. ``short``: shorter title for a screen. ``screen_only``: static outputs
    have its text elsewhere, as notes or below the rows.
    """

    title: str
    unit: str = ""
    kind: Kind = Kind.NUMBER
    help: str = ""
    wide: bool = False
    lifted: bool = False
    min_width: int = 0
    from_width: int = 0
    takes_rest: bool = False
    short: str = ""
    screen_only: bool = False

    @property
    def is_number(self) -> bool:
        """True for a column of right-aligned numbers."""
        return self.kind is Kind.NUMBER


class Bar(Struct, frozen=True, kw_only=True):
    """A bar in a cell: segments (colour, start, end) on an axis from 0 to 1, and the zero point of the axis.

    ``share``: bar length in text. ``columns``: axis length on a screen of 80 columns.
    """

    segments: tuple[tuple[str, float, float], ...]
    share: float = 0.0
    zero: float = 0.0
    columns: int = 16


class Marked(Struct, frozen=True):
    """Text with a mark. ``short``: shorter text for a screen."""

    text: str
    mark: Mark
    short: str = ""


Cell = str | Marked | Value | Bar


def format_cell(cell: Cell, unknown: str = UNKNOWN) -> str:
    """Return the unescaped text of a cell; empty for a bar."""
    if isinstance(cell, Value):
        return format_value(cell, unknown)
    if isinstance(cell, Bar):
        return ""
    return cell.text if isinstance(cell, Marked) else cell


class Row(Struct, frozen=True, kw_only=True):
    """A row; its first cell is the row name.

    ``key``: unique within its table on a screen. ``opens``, ``target``: what the row opens there, and the
    index in a report list (findings, collectives, gaps, ...), or the rank or step.  ``short``: shorter name
    for text; ``below``: lines printed below the row in text.
    """

    cells: tuple[Cell, ...]
    key: str = ""
    opens: Opens = Opens.NOTHING
    target: int = -1
    mark: Mark = Mark.PLAIN
    total: bool = False
    short: str = ""
    below: tuple[str, ...] = ()


class LazyRows(Sequence[Row]):
    """A sequence of ``count`` rows, each built on first access."""

    def __init__(self, count: int, make: Callable[[int], Row]) -> None:
        self._make = make
        self._rows: list[Row | None] = [None] * count

    @property
    def built_count(self) -> int:
        """Number of rows built so far."""
        return sum(row is not None for row in self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        """Return the row at an index, or the rows of a slice."""
        if isinstance(index, slice):
            return [self._get_row(position) for position in range(*index.indices(len(self)))]
        return self._get_row(range(len(self))[index])

    def _get_row(self, index: int) -> Row:
        row = self._rows[index]
        if row is None:
            row = self._rows[index] = self._make(index)
        return row


class Table(Struct, frozen=True, kw_only=True):
    """A table.

    ``name``: key on a screen; ``help``: what ``?`` shows there.  ``unit``: unit of all numbers; ``note``:
    meaning of the numbers.  ``max_text_rows``: maximum number of rows in text; Markdown shows twice as many.
    ``order``: row indices by importance, if different from the row order. ``shared``: text of the lifted
    columns, if equal in all rows.  ``total`` and ``noun``: number of rows before truncation, and what a row
    is.  ``transposed``: text and Markdown show the rows as columns. ``below``: title of the lines below the
    rows; HTML and Markdown show these lines in a column, joined by ``below_separator``.
    """

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Row] = ()
    name: str = ""
    help: str = ""
    unit: str = ""
    note: str = ""
    notes: tuple[str, ...] = ()
    max_text_rows: int = MAX_TEXT_ROWS
    order: tuple[int, ...] = ()
    shared: str = ""
    total: int | None = None
    noun: str = "rows"
    transposed: bool = False
    below: str = ""
    below_separator: str = " ← "

    @property
    def static_columns(self) -> tuple[int, ...]:
        """Return the indices of columns in static outputs."""
        return tuple(index for index, column in enumerate(self.columns) if not column.screen_only)

    def list_values(self) -> list[Value]:
        """Return all numbers of the table."""
        return [cell for row in self.rows for cell in row.cells if isinstance(cell, Value)]


def make_table(
    title: str,
    columns: tuple[Column, ...],
    rows: Sequence[Row | tuple[Cell, ...]],
    *,
    name: str = "",
    help: str = "",
    unit: str = "",
    note: str = "",
    notes: Sequence[str] = (),
    max_rows: int = MAX_ROWS,
    max_text_rows: int = MAX_TEXT_ROWS,
    order: Sequence[int] = (),
    total: int | None = None,
    noun: str = "rows",
    transposed: bool = False,
    below: str = "",
    below_separator: str = " ← ",
) -> Table | None:
    """Return a table of the first ``max_rows`` rows; None without rows."""
    if not rows:
        return None
    table_rows = [row if isinstance(row, Row) else Row(cells=row) for row in rows[:max_rows]]
    return Table(
        title=title,
        columns=columns,
        rows=tuple(table_rows),
        name=name,
        help=help,
        unit=unit,
        note=note,
        notes=tuple(notes),
        max_text_rows=max_text_rows,
        order=tuple(order),
        total=len(rows) if total is None else total,
        noun=noun,
        transposed=transposed,
        below=below,
        below_separator=below_separator,
    )


def make_number_columns(*titles: str, unit: str = "", wide: bool = False) -> tuple[Column, ...]:
    """Return number columns that share a unit."""
    return tuple(Column(title=title, unit=unit, wide=wide) for title in titles)


def make_name_column(title: str, *, lifted: bool = False) -> Column:
    """Return a column of names from a recording."""
    return Column(title=title, kind=Kind.NAME, lifted=lifted)


def make_text_column(title: str, unit: str = "") -> Column:
    """Return a column of text."""
    return Column(title=title, unit=unit, kind=Kind.TEXT)
