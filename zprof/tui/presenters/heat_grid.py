"""A heat map of ranks and steps, independent of how it is drawn.

The grid, what of it fits on a page, row and column names.

A cell that stands for several ranks and steps shows the worst of them, never their mean, in which a single
late rank of a thousand would vanish.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from zprof.tui.figures import EXACT, Figure, Unit, make_bound_figure
from zprof.tui.theme import HEAT

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
_MIN_KNOWN = 8
_FENCE_FACTOR = 3.0
_MIN_FENCE_RATIO = 0.02


@dataclass(frozen=True, kw_only=True, eq=False)
class HeatGrid:
    """One metric of all ranks and steps.

    ``values``: a row a rank, a column a step, NaN where unknown; ``places``: where in the report's list
    they stand, so that ``leaf`` with it in the braces is the number's path.  A step that is None is all of
    the run.  ``floor``: below which a difference means nothing.
    ``bounds``: by rank, the sign of its numbers, of which a bound only is known.
    """

    title: str
    says: str
    leaf: str
    unit: Unit
    ranks: tuple[int, ...]
    steps: tuple[int | None, ...]
    values: Floats
    places: Int64s
    tree: Mapping[str, Any] = field(repr=False)
    unknown: str = ""
    floor: Figure | None = None
    bounds: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def is_known(self) -> bool:
        """Whether any number of it is known."""
        return bool(np.isfinite(self.values).any())

    def figure_at(self, row: int, column: int) -> Figure:
        """The number of a rank and step, by their places on the axes."""
        place = int(self.places[row, column])
        if place < 0:
            return Figure(value=None, unit=self.unit, leaves=(self.leaf.partition("[")[0],))
        sign = self.bounds.get(self.ranks[row], EXACT)
        return make_bound_figure(self.tree, self.unit, self.leaf.format(place), sign=sign)

    @cached_property
    def least(self) -> Figure:
        """The least of all that are known."""
        return self.figure_at(*_find_place(np.nanargmin, self.values))

    @cached_property
    def most(self) -> Figure:
        """The largest of all."""
        return self.figure_at(*_find_place(np.nanargmax, self.values))

    @cached_property
    def fence(self) -> float:
        """Above this a number is far above the rest: three times the middle half's breadth beyond it.

        Nothing is where there are too few to tell.
        """
        known = self.values[np.isfinite(self.values)]
        if len(known) < _MIN_KNOWN:
            return np.inf
        low, high = np.percentile(known, (25, 75))
        floor = self.floor.value if self.floor and self.floor.value else 0.0
        return float(high + max(_FENCE_FACTOR * (high - low), _MIN_FENCE_RATIO * abs(high), floor))


def _find_place(find: Any, values: Floats) -> tuple[int, int]:
    row, column = np.unravel_index(find(values), values.shape)
    return int(row), int(column)


def split_axis(count: int, room: int, at: int, *, folded: bool) -> Int64s:
    """Which of so many share each of at most ``room`` places: from an edge to before the next.

    Folded, all are there, as evenly as can be.  Else each has its own place, of the page with ``at`` on it.
    """
    room = max(1, room)
    if count <= room:
        return np.arange(count + 1)
    if folded:
        return np.arange(room + 1) * count // room
    first = min(at // room * room, count - room)
    return np.arange(first, first + room + 1)


def find_cell(edges: Int64s, at: int) -> int:
    """In which place ``at`` is."""
    return int(np.searchsorted(edges, at, side="right")) - 1


def reduce_to_worst(values: Floats, rows: Int64s, columns: Int64s) -> Floats:
    """The largest known number of each cell; NaN where none is.  Cells between the edges only."""
    block = values[rows[0] : rows[-1], columns[0] : columns[-1]]
    of_rows = np.fmax.reduceat(block, rows[:-1] - rows[0], axis=0)
    largest: Floats = np.fmax.reduceat(of_rows, columns[:-1] - columns[0], axis=1)
    return largest


def find_worst(values: Floats, rows: Int64s, columns: Int64s, row: int, column: int) -> tuple[int, int]:
    """Where the largest known number of a cell stands in the whole grid; its first place without one."""
    top, left = int(rows[row]), int(columns[column])
    block = values[top : rows[row + 1], left : columns[column + 1]]
    if not np.isfinite(block).any():
        return top, left
    down, right = _find_place(np.nanargmax, block)
    return top + down, left + right


def quantize(values: Floats, low: float, high: float, count: int) -> Int64s:
    """Each number's step of the scale from low to high, 0 to ``count - 1``; -1 where unknown."""
    breadth = high - low
    known = np.isfinite(values)
    share = (np.where(known, values, low) - low) / breadth if breadth > 0 else np.zeros(values.shape)
    found: Int64s = np.clip(np.floor(share * count), 0, count - 1).astype(np.int64)
    return np.where(known, found, -1)


_MAX_CELL_WIDTH = 6


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
        return find_cell(self.rows, cursor.row)

    def column_of(self, cursor: Cursor) -> int:
        """The column in which the cursor is."""
        return find_cell(self.columns, cursor.column)

    def worst_at(self, cursor: Cursor) -> tuple[int, int]:
        """Where the number of the cursor's cell stands: the worst where several share it."""
        row, column = self.row_of(cursor), self.column_of(cursor)
        return find_worst(self.grid.values, self.rows, self.columns, row, column)

    def moved(self, cursor: Cursor, down: int, right: int) -> Cursor:
        """The cursor so many cells further; over the edge of a page to the next one."""
        return Cursor(
            row=_move_along(self.rows, cursor.row, down, len(self.grid.ranks)),
            column=_move_along(self.columns, cursor.column, right, len(self.grid.steps)),
        )

    def at(self, x: int, y: int) -> Cursor | None:
        """The cell at this column and line of the terminal."""
        row, column = y - 1, (x - self.label) // self.cell
        inside = 0 <= row < len(self.rows) - 1 and 0 <= column < len(self.columns) - 1
        return Cursor(row=int(self.rows[row]), column=int(self.columns[column])) if inside else None

    def row_name(self, row: int) -> str:
        """The ranks of a row."""
        return format_row_name(self.grid, self.rows, row)

    def header(self, cursor: Cursor) -> tuple[str, tuple[int, int]]:
        """The steps above the columns, and where that of the cursor stands."""
        steps = [self.grid.steps[column] for column in self.columns[:-1]]
        names = ["run" if step is None else str(step) for step in steps]
        return format_header(names, self.cell, self.column_of(cursor))

    def shared(self, cursor: Cursor) -> str:
        """Of whom the number of the cursor's cell is the largest; empty where it is of one."""
        row, column = self.row_of(cursor), self.column_of(cursor)
        ranks = self.grid.ranks[self.rows[row] : self.rows[row + 1]]
        steps = self.grid.steps[self.columns[column] : self.columns[column + 1]]
        parts = [f"ranks {ranks[0]}-{ranks[-1]}"] if len(ranks) > 1 else []
        parts += [f"steps {steps[0]}-{steps[-1]}"] if len(steps) > 1 else []
        return f"the most of {', '.join(parts)}" if parts else ""


def build_heat_page(grid: HeatGrid, cursor: Cursor, width: int, height: int, *, folded: bool) -> HeatPage:
    """The page with the cursor on it, in so many columns and rows of the terminal."""
    rows = split_axis(len(grid.ranks), height, cursor.row, folded=folded)
    names = [format_row_name(grid, rows, row) for row in range(len(rows) - 1)]
    label = max(len(name) for name in (*names, f"r{grid.ranks[-1]}")) + 1
    room = max(1, width - label)
    cell = max(1, min(_MAX_CELL_WIDTH, room // len(grid.steps)))
    columns = split_axis(len(grid.steps), room // cell, cursor.column, folded=folded)
    shown = reduce_to_worst(grid.values, rows, columns)
    ends = (grid.least.value or 0.0, grid.most.value or 0.0) if grid.is_known else (0.0, 0.0)
    return HeatPage(
        grid=grid,
        rows=rows,
        columns=columns,
        label=label,
        cell=cell,
        levels=quantize(shown, *ends, len(HEAT)).tolist(),
        far=(shown > grid.fence).tolist(),
    )


def format_row_name(grid: HeatGrid, rows: Int64s, row: int) -> str:
    """The ranks of a row between these edges."""
    first, last = grid.ranks[rows[row]], grid.ranks[rows[row + 1] - 1]
    return f"r{first}" if first == last else f"r{first}-{last}"


def format_header(names: list[str], cell: int, at: int) -> tuple[str, tuple[int, int]]:
    """Names above their cells, as many as have room, that of the cursor in any case; and where it stands."""
    line = [" "] * (len(names) * cell + max(map(len, names)))
    taken: list[tuple[int, int]] = []
    for place in [at, *(place for place in range(len(names)) if place != at)]:
        begin, end = place * cell, place * cell + len(names[place])
        if all(end < low or begin > high for low, high in taken):
            line[begin:end] = names[place]
            taken.append((begin, end))
    return "".join(line).rstrip(), taken[0]


def _move_along(edges: Int64s, at: int, by: int, count: int) -> int:
    cell = find_cell(edges, at) + by
    if not by:
        return at
    if cell < 0:
        return max(0, int(edges[0]) - 1)
    return min(count - 1, int(edges[min(cell, len(edges) - 1)]))
