"""What of a heat map fits on the screen, and how its rows and columns are named."""

from dataclasses import dataclass

from zprof.tui.heat import HeatGrid, Int64s, cell_of, edges, levels, worst, worst_place
from zprof.tui.theme.palette import HEAT

_WIDEST_CELL = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A place on the axes of a grid."""

    row: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeatPage:
    """What is shown: which ranks and steps share each cell, how wide a cell is, levels and marks.

    ``label``: columns of the terminal before the first cell.  ``far``: far above the rest.
    """

    grid: HeatGrid
    rows: Int64s
    columns: Int64s
    label: int
    cell: int
    levels: list[list[int]]
    far: list[list[bool]]

    def row_of(self, cursor: Cursor) -> int:
        """The row in which the cursor is."""
        return cell_of(self.rows, cursor.row)

    def column_of(self, cursor: Cursor) -> int:
        """The column in which the cursor is."""
        return cell_of(self.columns, cursor.column)

    def worst_at(self, cursor: Cursor) -> tuple[int, int]:
        """Where the number of the cursor's cell stands: the worst where several share it."""
        row, column = self.row_of(cursor), self.column_of(cursor)
        return worst_place(self.grid.values, self.rows, self.columns, row, column)

    def moved(self, cursor: Cursor, down: int, right: int) -> Cursor:
        """The cursor so many cells further; over the edge of a page to the next one."""
        return Cursor(
            row=_moved(self.rows, cursor.row, down, len(self.grid.ranks)),
            column=_moved(self.columns, cursor.column, right, len(self.grid.steps)),
        )

    def at(self, x: int, y: int) -> Cursor | None:
        """The cell at this column and line of the terminal."""
        row, column = y - 1, (x - self.label) // self.cell
        inside = 0 <= row < len(self.rows) - 1 and 0 <= column < len(self.columns) - 1
        return Cursor(row=int(self.rows[row]), column=int(self.columns[column])) if inside else None

    def row_name(self, row: int) -> str:
        """The ranks of a row."""
        return row_name(self.grid, self.rows, row)

    def header(self, cursor: Cursor) -> tuple[str, tuple[int, int]]:
        """The steps above the columns, and where that of the cursor stands."""
        steps = [self.grid.steps[column] for column in self.columns[:-1]]
        names = ["run" if step is None else str(step) for step in steps]
        return header(names, self.cell, self.column_of(cursor))

    def shared(self, cursor: Cursor) -> str:
        """Of whom the number of the cursor's cell is the largest; empty where it is of one."""
        row, column = self.row_of(cursor), self.column_of(cursor)
        ranks = self.grid.ranks[self.rows[row] : self.rows[row + 1]]
        steps = self.grid.steps[self.columns[column] : self.columns[column + 1]]
        parts = [f"ranks {ranks[0]}-{ranks[-1]}"] if len(ranks) > 1 else []
        parts += [f"steps {steps[0]}-{steps[-1]}"] if len(steps) > 1 else []
        return f"the most of {', '.join(parts)}" if parts else ""


def heat_page(grid: HeatGrid, cursor: Cursor, width: int, height: int, *, folded: bool) -> HeatPage:
    """The page with the cursor on it, in so many columns and rows of the terminal."""
    rows = edges(len(grid.ranks), height, cursor.row, folded=folded)
    names = [row_name(grid, rows, row) for row in range(len(rows) - 1)]
    label = max(len(name) for name in (*names, f"r{grid.ranks[-1]}")) + 1
    room = max(1, width - label)
    cell = max(1, min(_WIDEST_CELL, room // len(grid.steps)))
    columns = edges(len(grid.steps), room // cell, cursor.column, folded=folded)
    shown = worst(grid.values, rows, columns)
    ends = (grid.least.value or 0.0, grid.most.value or 0.0) if grid.is_known else (0.0, 0.0)
    return HeatPage(
        grid=grid,
        rows=rows,
        columns=columns,
        label=label,
        cell=cell,
        levels=levels(shown, *ends, len(HEAT)).tolist(),
        far=(shown > grid.fence).tolist(),
    )


def row_name(grid: HeatGrid, rows: Int64s, row: int) -> str:
    """The ranks of a row between these edges."""
    first, last = grid.ranks[rows[row]], grid.ranks[rows[row + 1] - 1]
    return f"r{first}" if first == last else f"r{first}-{last}"


def header(names: list[str], cell: int, at: int) -> tuple[str, tuple[int, int]]:
    """Names above their cells, as many as have room, that of the cursor in any case; and where it stands."""
    line = [" "] * (len(names) * cell + max(map(len, names)))
    taken: list[tuple[int, int]] = []
    for place in [at, *(place for place in range(len(names)) if place != at)]:
        begin, end = place * cell, place * cell + len(names[place])
        if all(end < low or begin > high for low, high in taken):
            line[begin:end] = names[place]
            taken.append((begin, end))
    return "".join(line).rstrip(), taken[0]


def _moved(edges: Int64s, at: int, by: int, count: int) -> int:
    cell = cell_of(edges, at) + by
    if not by:
        return at
    if cell < 0:
        return max(0, int(edges[0]) - 1)
    return min(count - 1, int(edges[min(cell, len(edges) - 1)]))
