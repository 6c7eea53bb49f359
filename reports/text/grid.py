"""Tables of plans and predictions in 80 columns: narrower gaps, then fewer columns, where they need it."""

from collections.abc import Iterator, Sequence

from zprof.model.printable import display_width, printable, shorten
from zprof.reports.plan.grid import Grid, GridColumn
from zprof.reports.text.layout import INDENT, heading, page_width, wrap

_LEAST_NAME = 12
_CELL = 48


def grid_lines(grid: Grid) -> list[str]:
    """Heading, rows, notes."""
    said = ", ".join(part for part in (grid.unit, printable(grid.note)) if part)
    title = shorten(printable(grid.title).upper(), page_width() - 16)
    return [
        "",
        heading(title, said),
        *_parts(grid, range(len(grid.columns))),
        *(line for note in grid.notes for line in wrap(printable(note), first=f"{INDENT}* ")),
    ]


def _parts(grid: Grid, shown: Sequence[int]) -> list[str]:
    """All columns at once; or in two tables, one under the other."""
    names, cells = _texts(grid, shown)
    widths = [max(display_width(row[place]) for row in cells) for place in range(len(shown))]
    wanted = max(map(display_width, names))
    for gap in (2, 1):
        spare = _room() - sum(widths) - gap * len(widths)
        if spare >= wanted or (gap == 1 and spare >= min(wanted, _LEAST_NAME)):
            return list(_drawn(grid, shown, min(wanted, spare), widths, gap))
    if len(shown) == 1:
        return list(_drawn(grid, shown, _LEAST_NAME, [_room() - _LEAST_NAME - 1], 1))
    half = (len(shown) + 1) // 2
    return [*_parts(grid, shown[:half]), *_parts(grid, shown[half:])]


def _texts(grid: Grid, shown: Sequence[int]) -> tuple[list[str], list[list[str]]]:
    """Names, and cells of the columns that are shown, head first, made safe to print."""
    mark = {True: "= ", False: ""}
    names = [printable(grid.head), *(mark[r.total] + printable(r.short or r.name) for r in grid.rows)]
    heads = [_head(grid, grid.columns[place]) for place in shown]
    return names, [heads, *([shorten(printable(row.cells[p]), _CELL) for p in shown] for row in grid.rows)]


def _head(grid: Grid, column: GridColumn) -> str:
    """The unit only where cells and heading do not say it."""
    unit = "" if column.unit in ("", "%", "ratio", "count", grid.unit) else f" {column.unit}"
    return printable(f"{column.title}{unit}")


def _drawn(grid: Grid, shown: Sequence[int], name: int, widths: Sequence[int], gap: int) -> Iterator[str]:
    names, rows = _texts(grid, shown)
    words = [grid.columns[place].words for place in shown]
    for label, cells in zip(names, rows, strict=True):
        first = label
        if display_width(label) > name:  # a line of its own: a name says what the numbers are
            yield from wrap(label)
            first = ""
        line = INDENT + first + " " * (name - display_width(first))
        for cell, width, left in zip(cells, widths, words, strict=True):
            text = shorten(cell, width)
            space = " " * (width - display_width(text))
            line += " " * gap + (text + space if left else space + text)
        yield line.rstrip()


def _room() -> int:
    return page_width() - len(INDENT)
