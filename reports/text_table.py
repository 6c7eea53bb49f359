"""Tables in the columns of a terminal.

A table that is too wide gets narrower step by step: heads wrap, gaps shrink, long cells wrap, and at last the
columns are drawn in two tables, one below the other.  Nothing is cut.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zprof.model.formatting import display_width, printable, shorten
from zprof.reports.layout import INDENT, get_page_width, render_bar, render_heading, wrap
from zprof.reports.page import Bar, Cell, Column, Kind, Row, Table

#: The least width of a column of words and of the names, and the most of a cell of numbers before it wraps.
_MIN_WORDS, _MIN_NAME = 12, 12
#: Words up to this length are not broken, if there is room elsewhere.
_MAX_WORD = 24
_MAX_NUMBER = 20
#: Longer texts come from nobody who means well.
_MAX_CELL, _MAX_LINES = 400, 12
_BAR = 24
#: Units that the cells themselves have, or that need none.
_SILENT_UNITS = frozenset({"", "%", "ratio", "count", "bytes", "bytes/s", "time", "median"})


@dataclass(frozen=True, slots=True)
class _Grid:
    """What is drawn: columns of ready text, and for each if it stands to the left and its least width."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[bool, ...]
    min_width: tuple[int, ...]


def render_table(table: Table) -> list[str]:
    """Return heading, rows and notes of a table."""
    rows = select_rows(table, table.max_text_rows)
    columns = [at for at, column in enumerate(table.columns) if not column.wide and _has_cells(rows, at)]
    lifted = [at for at in columns if table.columns[at].lifted]
    places = [_place(table.columns, row, lifted) for row in rows]
    is_shared = len(set(places)) == 1
    said = [format_table_note(table), places[0] if is_shared else ""]
    lines = render_heading(printable(table.title).upper(), ", ".join(filter(None, said)))
    grid = _grid(table, rows, [at for at in columns if at not in lifted])
    below = [row.below for row in rows] if table.below else []
    lines += _laid_out(grid, [] if is_shared else places, below)
    for note in table.notes:
        lines += wrap(printable(note), first=f"{INDENT}* ")
    return [*lines, *(wrap(left) if (left := format_omission(len(rows), table.total, table.what)) else [])]


def format_table_note(table: Table) -> str:
    """Return what the numbers of a table are: ``ms per step, mean of the ranks``."""
    note = printable(table.note)
    if note.startswith(("per ", "in ")):
        return f"{table.unit} {note}".strip()
    return ", ".join(filter(None, (table.unit, note)))


def _has_cells(rows: Sequence[Row], at: int) -> bool:
    """Return if a column says anything in these rows; the first names them."""
    return at == 0 or any(row.cells[at] != "" for row in rows)


def select_rows(table: Table, most: int) -> list[Row]:
    """Return at most ``most`` rows in their order: the most important ones."""
    if len(table.rows) <= most:
        return list(table.rows)
    kept = sorted((table.order or range(len(table.rows)))[:most])
    return [table.rows[at] for at in kept]


def format_omission(shown: int, total: int | None, what: str) -> str:
    """Return what a table leaves out and where all of it is; empty if it is whole."""
    if total is None or shown >= total:
        return ""
    return f"{shown:,} of {total:,} {what}; all: -f json"


def get_column_unit(column: Column, table: Table) -> str:
    """Return the unit that the head of a column must say."""
    unit = column.unit
    return "" if unit in _SILENT_UNITS or unit == table.unit or unit in table.note else unit


def _place(columns: Sequence[Column], row: Row, lifted: Sequence[int]) -> str:
    return ", ".join(f"{columns[at].title} {printable(row.cells[at])}" for at in lifted)


def _grid(table: Table, rows: Sequence[Row], shown: Sequence[int]) -> _Grid:
    """Return ready text; a table that is drawn sideways has its rows as columns."""
    columns = [table.columns[at] for at in shown]
    cells = [tuple(_text(row.cells[at]) for at in shown) for row in rows]
    names = [_row_name(row) for row in rows]
    heads = [_head(column, table) for column in columns]
    if not table.sideways:
        return _Grid(
            heads=tuple(heads),
            rows=tuple((name, *row[1:]) for name, row in zip(names, cells, strict=True)),
            left=tuple(at == 0 or column.kind is not Kind.NUMBER for at, column in enumerate(columns)),
            min_width=tuple(column.min_width for column in columns),
        )
    return _Grid(
        heads=("", *names),
        rows=tuple((heads[at], *(row[at] for row in cells)) for at in range(1, len(heads))),
        left=(True, *(False for _ in names)),
        min_width=(0,) * (len(names) + 1),
    )


def _row_name(row: Row) -> str:
    name = printable(row.short) if row.short else _text(row.cells[0])
    return f"= {name}" if row.total and not name.startswith("=") else name


def _text(cell: Cell) -> str:
    return render_bar(cell.share, _BAR) if isinstance(cell, Bar) else shorten(printable(cell), _MAX_CELL)


def _head(column: Column, table: Table) -> str:
    if column.kind is Kind.BAR:
        return ""
    unit = get_column_unit(column, table)
    return printable(f"{column.title} {unit}" if unit else column.title)


def _laid_out(grid: _Grid, places: Sequence[str], below: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a grid, in two tables if one has no room."""
    for gap, is_wrapped in ((2, False), (2, True), (1, True)):
        widths = _widths(grid, gap, wrap_heads=is_wrapped)
        if widths is not None:
            return list(_drawn(grid, widths, gap, places, below))
    count = len(grid.heads)
    if count <= 2:
        min_width = get_page_width() - len(INDENT) - _MIN_NAME - 1
        return list(_drawn(grid, [_MIN_NAME, *[min_width] * (count - 1)], 1, places, below))
    half = (count + 1) // 2
    first, second = range(1, half), range(half, count)
    return [*_laid_out(_part(grid, first), places, []), *_laid_out(_part(grid, second), places, below)]


def _part(grid: _Grid, columns: Sequence[int]) -> _Grid:
    kept = (0, *columns)
    return _Grid(
        heads=tuple(grid.heads[at] for at in kept),
        rows=tuple(tuple(row[at] for at in kept) for row in grid.rows),
        left=tuple(grid.left[at] for at in kept),
        min_width=tuple(grid.min_width[at] for at in kept),
    )


def _widths(grid: _Grid, gap: int, *, wrap_heads: bool) -> list[int] | None:
    """Return the width of each column; None if there is no room."""
    wanted = []
    for at in range(len(grid.heads)):
        cells = max((display_width(row[at]) for row in grid.rows), default=0)
        if not grid.left[at]:
            cells = min(cells, _MAX_NUMBER)
        head = _longest_word(grid.heads[at]) if wrap_heads else display_width(grid.heads[at])
        wanted.append(max(cells, head, 0 if wrap_heads else grid.min_width[at]))
    spare = get_page_width() - len(INDENT) - sum(wanted) - gap * (len(wanted) - 1)
    if not wrap_heads or spare >= 0:
        return wanted if spare >= 0 else None
    for at in sorted((at for at in range(1, len(wanted)) if grid.left[at]), key=lambda at: -wanted[at]):
        words = max((_longest_word(row[at]) for row in grid.rows), default=0)
        least = max(_MIN_WORDS, _longest_word(grid.heads[at]), min(words, _MAX_WORD))
        given = min(-spare, max(0, wanted[at] - least))
        wanted[at] -= given
        spare += given
        if spare >= 0:
            return wanted
    wanted[0] += spare
    return wanted if wanted[0] >= _MIN_NAME else None


def _longest_word(text: str) -> int:
    return max(map(display_width, text.split(" ")))


def _drawn(
    grid: _Grid, widths: Sequence[int], gap: int, places: Sequence[str], below: Sequence[Sequence[str]]
) -> Iterator[str]:
    if any(grid.heads):
        yield from _line(grid.heads, widths, grid.left, gap, is_head=True)
    place = ""
    for at, row in enumerate(grid.rows):
        if places and places[at] != place:
            place = places[at]
            yield from wrap(place)
        yield from _line(row, widths, grid.left, gap)
        for text in below[at] if below else ():
            yield from wrap(printable(text), first=INDENT * 3)


def _line(
    cells: Sequence[str], widths: Sequence[int], left: Sequence[bool], gap: int, *, is_head: bool = False
) -> Iterator[str]:
    """Yield a row; cells without room go on below, and a name that is too long has lines of its own."""
    name, *rest = cells
    if display_width(name) > widths[0] and not is_head:
        yield from wrap(name)
        name = ""
    columns = [_cell_lines(cell, width) for cell, width in zip((name, *rest), widths, strict=True)]
    height = max(map(len, columns))
    for place in range(height):
        line = ""
        for at, (lines, width) in enumerate(zip(columns, widths, strict=True)):
            at_line = place - (height - len(lines)) if is_head else place  # heads stand at the bottom
            text = lines[at_line] if 0 <= at_line < len(lines) else ""
            space = " " * (width - display_width(text))
            line += (" " * gap if at else "") + (text + space if left[at] else space + text)
        yield f"{INDENT}{line}".rstrip()


def _cell_lines(cell: str, width: int) -> list[str]:
    if display_width(cell) <= width:
        return [cell]
    lines = wrap(cell, first="", width=width)
    return lines if len(lines) <= _MAX_LINES else [*lines[: _MAX_LINES - 1], "…"]
