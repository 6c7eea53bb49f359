"""Render tables for a terminal.

A table that is too wide is narrowed step by step: headers wrap, column gaps shrink, long cells wrap, and
finally the columns are split into two tables, one below the other.  Nothing is cut.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from zprof.model.formatting import display_width, printable, shorten
from zprof.reports.layout import INDENT, get_page_width, render_bar, render_heading, wrap
from zprof.reports.table import Bar, Cell, Column, Kind, Row, Table, format_cell

#: Minimum width of a text column and of the name column; maximum width of a number before it wraps.
_MIN_WORDS, _MIN_NAME = 12, 12
#: Words up to this length are not broken if other columns can shrink.
_MAX_WORD = 24
_MAX_NUMBER = 20
#: Bounds for hostile input; real texts are shorter.
_MAX_CELL, _MAX_LINES = 400, 12
_BAR_WIDTH = 24
#: Units that are not printed in the header: the cells have them or do not need one.
_OMITTED_UNITS = frozenset({"", "%", "ratio", "count", "bytes", "bytes/s", "time", "median"})


class _Grid(Struct, frozen=True):
    """Formatted cells of a table; ``left``: the column is left-aligned; ``min_width``: its minimum width."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[bool, ...]
    min_width: tuple[int, ...]


def render_table(table: Table) -> list[str]:
    """Return the heading, rows and notes of a table."""
    rows = select_rows(table, table.max_text_rows)
    # Whether a column has a non-empty cell in these rows; the name column always counts.
    columns = [
        at
        for at in table.static_columns
        if not table.columns[at].wide and (at == 0 or any(row.cells[at] != "" for row in rows))
    ]
    lifted = [at for at in columns if table.columns[at].lifted]
    # The rows with those of one label together, each label where it comes first.
    labels = [_format_lifted(table.columns, row, lifted) for row in rows]
    groups: dict[str, list[Row]] = {}
    for row, label in zip(rows, labels, strict=True):
        groups.setdefault(label, []).append(row)
    rows = [row for group in groups.values() for row in group]
    group_labels = [_format_lifted(table.columns, row, lifted) for row in rows]
    has_one_label = len(set(group_labels)) == 1
    notes = [format_table_note(table), group_labels[0] if has_one_label else ""]
    lines = render_heading(printable(table.title).upper(), ", ".join(filter(None, notes)))
    grid = _build_grid(table, rows, [at for at in columns if at not in lifted])
    below = [row.below for row in rows] if table.below else []
    lines += _lay_out(grid, [] if has_one_label else group_labels, below)
    for note in table.notes:
        lines += wrap(printable(note), first=f"{INDENT}* ")
    return [*lines, *(wrap(left) if (left := format_omission(len(rows), table.total, table.noun)) else [])]


def format_table_note(table: Table) -> str:
    """Describe the numbers of a table, such as ``ms per step, mean of the ranks``."""
    note = printable(table.note)
    if note.startswith(("per ", "in ")):
        return f"{table.unit} {note}".strip()
    return ", ".join(filter(None, (table.unit, note)))


def select_rows(table: Table, max_rows: int) -> list[Row]:
    """Return the ``max_rows`` most important rows, in table order."""
    if len(table.rows) <= max_rows:
        return list(table.rows)
    indices = sorted((table.order or range(len(table.rows)))[:max_rows])
    return [table.rows[at] for at in indices]


def format_omission(shown: int, total: int | None, noun: str) -> str:
    """Return how many rows are shown and where to find all of them; empty if none is omitted."""
    if total is None or shown >= total:
        return ""
    return f"{shown:,} of {total:,} {noun}; all: -f json"


def get_column_unit(column: Column, table: Table) -> str:
    """Return the unit to print in a column header; empty if the table or the cells already have it."""
    unit = column.unit
    return "" if unit in _OMITTED_UNITS or unit == table.unit or unit in table.note else unit


def _format_lifted(columns: Sequence[Column], row: Row, lifted: Sequence[int]) -> str:
    return ", ".join(f"{columns[at].title} {printable(format_cell(row.cells[at]))}" for at in lifted)


def _build_grid(table: Table, rows: Sequence[Row], shown: Sequence[int]) -> _Grid:
    """Format all cells; a transposed table has its rows as columns."""
    columns = [table.columns[at] for at in shown]
    cells = [tuple(_format_cell(row.cells[at]) for at in shown) for row in rows]
    names = [_format_row_name(row) for row in rows]
    heads = [_format_header(column, table) for column in columns]
    if not table.transposed:
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


def _format_row_name(row: Row) -> str:
    name = printable(row.short) if row.short else _format_cell(row.cells[0])
    return f"= {name}" if row.total and not name.startswith("=") else name


def _format_cell(cell: Cell) -> str:
    if isinstance(cell, Bar):
        return render_bar(cell.share, _BAR_WIDTH)
    return shorten(printable(format_cell(cell)), _MAX_CELL)


def _format_header(column: Column, table: Table) -> str:
    if column.kind is Kind.BAR:
        return ""
    unit = get_column_unit(column, table)
    return printable(f"{column.title} {unit}" if unit else column.title)


def _lay_out(grid: _Grid, group_labels: Sequence[str], below: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a grid, split into two tables if one does not fit."""
    for gap, is_wrapped in ((2, False), (2, True), (1, True)):
        widths = _fit_widths(grid, gap, wrap_heads=is_wrapped)
        if widths is not None:
            return list(_draw_rows(grid, widths, gap, group_labels, below))
    count = len(grid.heads)
    if count <= 2:
        min_width = get_page_width() - len(INDENT) - _MIN_NAME - 1
        return list(_draw_rows(grid, [_MIN_NAME, *[min_width] * (count - 1)], 1, group_labels, below))
    half = (count + 1) // 2
    first, second = range(1, half), range(half, count)
    return [
        *_lay_out(_select_columns(grid, first), group_labels, []),
        *_lay_out(_select_columns(grid, second), group_labels, below),
    ]


def _select_columns(grid: _Grid, columns: Sequence[int]) -> _Grid:
    indices = (0, *columns)
    return _Grid(
        heads=tuple(grid.heads[at] for at in indices),
        rows=tuple(tuple(row[at] for at in indices) for row in grid.rows),
        left=tuple(grid.left[at] for at in indices),
        min_width=tuple(grid.min_width[at] for at in indices),
    )


def _fit_widths(grid: _Grid, gap: int, *, wrap_heads: bool) -> list[int] | None:
    """Return the width of each column, or None if the table does not fit."""
    widths = []
    for at in range(len(grid.heads)):
        cells = max((display_width(row[at]) for row in grid.rows), default=0)
        if not grid.left[at]:
            cells = min(cells, _MAX_NUMBER)
        head = _max_word_width(grid.heads[at]) if wrap_heads else display_width(grid.heads[at])
        widths.append(max(cells, head, 0 if wrap_heads else grid.min_width[at]))
    free_columns = get_page_width() - len(INDENT) - sum(widths) - gap * (len(widths) - 1)
    if not wrap_heads or free_columns >= 0:
        return widths if free_columns >= 0 else None
    for at in sorted((at for at in range(1, len(widths)) if grid.left[at]), key=lambda at: -widths[at]):
        words = max((_max_word_width(row[at]) for row in grid.rows), default=0)
        min_words = max(_MIN_WORDS, _max_word_width(grid.heads[at]), min(words, _MAX_WORD))
        reduction = min(-free_columns, max(0, widths[at] - min_words))
        widths[at] -= reduction
        free_columns += reduction
        if free_columns >= 0:
            return widths
    widths[0] += free_columns
    return widths if widths[0] >= _MIN_NAME else None


def _max_word_width(text: str) -> int:
    return max(map(display_width, text.split(" ")))


def _draw_rows(
    grid: _Grid, widths: Sequence[int], gap: int, group_labels: Sequence[str], below: Sequence[Sequence[str]]
) -> Iterator[str]:
    if any(grid.heads):
        yield from _draw_row(grid.heads, widths, grid.left, gap, is_head=True)
    place = ""
    for at, row in enumerate(grid.rows):
        if group_labels and group_labels[at] != place:
            place = group_labels[at]
            yield from wrap(place)
        yield from _draw_row(row, widths, grid.left, gap)
        for text in below[at] if below else ():
            yield from wrap(printable(text), first=INDENT * 3)


def _draw_row(
    cells: Sequence[str], widths: Sequence[int], left: Sequence[bool], gap: int, *, is_head: bool = False
) -> Iterator[str]:
    """Yield the lines of a row; long cells wrap, and a name that is too long gets lines of its own."""
    name, *rest = cells
    if display_width(name) > widths[0] and not is_head:
        yield from wrap(name)
        name = ""
    columns = [_wrap_cell(cell, width) for cell, width in zip((name, *rest), widths, strict=True)]
    height = max(map(len, columns))
    for place in range(height):
        line = ""
        for at, (lines, width) in enumerate(zip(columns, widths, strict=True)):
            at_line = place - (height - len(lines)) if is_head else place  # headers are bottom-aligned
            text = lines[at_line] if 0 <= at_line < len(lines) else ""
            space = " " * (width - display_width(text))
            line += (" " * gap if at else "") + (text + space if left[at] else space + text)
        yield f"{INDENT}{line}".rstrip()


def _wrap_cell(cell: str, width: int) -> list[str]:
    if display_width(cell) <= width:
        return [cell]
    lines = wrap(cell, first="", width=width)
    return lines if len(lines) <= _MAX_LINES else [*lines[: _MAX_LINES - 1], "…"]
