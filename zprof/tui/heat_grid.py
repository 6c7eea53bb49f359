"""Model a heat map of ranks and steps without drawing it: grid, visible page, axis labels.

A cell that covers several ranks and steps shows their worst value. Their mean would hide a single late rank
among a thousand.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.model.cursor import follow, read
from zprof.model.quantities import EVERY, Bound, Path, Value, find_unit
from zprof.model.report import Report
from zprof.reports.pages.ranks import compute_fence
from zprof.tui.session import LoadedRun
from zprof.tui.theme import HEAT

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]


class Cursor(Struct, frozen=True, kw_only=True):
    """A position in a grid: row and column."""

    row: int = 0
    column: int = 0


class HeatGrid(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """One metric of all ranks and steps.

    ``values``: shape (ranks, steps), NaN if unknown. ``places``: indices into the report's list, -1 if
    unknown. ``leaf``: path of the number, with ``EVERY`` for the index. A step of None stands for the entire
    run. ``floor``: smallest significant difference. ``bounds``: ranks with bounds instead of values.
    """

    title: str
    help: str
    leaf: Path
    ranks: tuple[int, ...]
    steps: tuple[int | None, ...]
    values: Floats
    places: Int64s
    report: Report
    unknown: str = ""
    floor: Value | None = None
    bounds: Mapping[int, Bound] = field(default_factory=dict)

    @cached_property
    def is_known(self) -> bool:
        """Return True if any number is known."""
        return bool(np.isfinite(self.values).any())

    def figure_at(self, row: int, column: int) -> Value:
        """Return the figure at a row and column of the grid."""
        index = int(self.places[row, column])
        if index < 0:
            return Value(number=None, unit=find_unit(self.leaf.name), leaves=(Path(self.leaf.parts[:2]),))
        value = read(follow(self.report, self.leaf.at(index)))
        return replace(value, bound=self.bounds.get(self.ranks[row], value.bound))

    @cached_property
    def least(self) -> Value:
        """Return the smallest known number."""
        return self.figure_at(*_find_extremum(np.nanargmin, self.values))

    @cached_property
    def most(self) -> Value:
        """Return the largest known number."""
        return self.figure_at(*_find_extremum(np.nanargmax, self.values))

    @cached_property
    def fence(self) -> float:
        """Return the value above which a known number is an outlier."""
        min_difference = self.floor.number if self.floor and self.floor.number else 0.0
        return compute_fence(self.values[np.isfinite(self.values)].tolist(), min_difference)

    def find_outlier(self) -> Cursor | None:
        """Return the position of the largest number if it is an outlier."""
        position = _find_extremum(np.nanargmax, self.values) if self.is_known else None
        if position is None or self.values[position] <= self.fence:
            return None
        return Cursor(row=position[0], column=position[1])


def _find_extremum(find: Any, values: Floats) -> tuple[int, int]:
    row, column = np.unravel_index(find(values), values.shape)
    return int(row), int(column)


def split_axis(count: int, max_cells: int, at: int, *, folded: bool) -> Int64s:
    """Return the edges that divide `count` entries among at most ``max_cells`` cells.

    If folded, all entries are divided as evenly as possible. Otherwise each entry has its own cell, and the
    edges are those of the page that contains ``at``.
    """
    max_cells = max(1, max_cells)
    if count <= max_cells:
        return np.arange(count + 1)
    if folded:
        return np.arange(max_cells + 1) * count // max_cells
    first = min(at // max_cells * max_cells, count - max_cells)
    return np.arange(first, first + max_cells + 1)


def find_cell(edges: Int64s, at: int) -> int:
    """Return the cell that contains entry ``at``."""
    return int(np.searchsorted(edges, at, side="right")) - 1


def reduce_to_worst(values: Floats, rows: Int64s, columns: Int64s) -> Floats:
    """Return the largest known number per cell between the edges; NaN for a cell without known numbers."""
    block = values[rows[0] : rows[-1], columns[0] : columns[-1]]
    row_maxima = np.fmax.reduceat(block, rows[:-1] - rows[0], axis=0)
    return np.fmax.reduceat(row_maxima, columns[:-1] - columns[0], axis=1)


def find_worst(values: Floats, rows: Int64s, columns: Int64s, row: int, column: int) -> tuple[int, int]:
    """Return the (row, column) in the grid of a cell's largest known number, or else of its first entry."""
    top, left = int(rows[row]), int(columns[column])
    block = values[top : rows[row + 1], left : columns[column + 1]]
    if not np.isfinite(block).any():
        return top, left
    down, right = _find_extremum(np.nanargmax, block)
    return top + down, left + right


def quantize(values: Floats, low: float, high: float, count: int) -> Int64s:
    """Return each number's level from 0 (low) to ``count - 1`` (high); -1 if unknown."""
    extent = high - low
    known = np.isfinite(values)
    share = (np.where(known, values, low) - low) / extent if extent > 0 else np.zeros(values.shape)
    levels: Int64s = np.clip(np.floor(share * count), 0, count - 1).astype(np.int64)
    return np.where(known, levels, -1)


#: Width of a cell with its number, and the most for a cell without.
NUMBER_CELL_WIDTH, _MAX_CELL_WIDTH = 14, 6


class HeatPage(Struct, frozen=True, kw_only=True, eq=False):
    """The visible page: ranks and steps per cell, cell width, colour levels and marks.

    ``label``: terminal columns before the first cell. ``far``: True for outliers.
    """

    grid: HeatGrid
    rows: Int64s
    columns: Int64s
    label: int
    cell: int
    levels: list[list[int]]
    far: list[list[bool]]

    def row_of(self, cursor: Cursor) -> int:
        """Return the row of the page that contains the cursor."""
        return find_cell(self.rows, cursor.row)

    def column_of(self, cursor: Cursor) -> int:
        """Return the column of the page that contains the cursor."""
        return find_cell(self.columns, cursor.column)

    def worst_at(self, cursor: Cursor) -> tuple[int, int]:
        """Return the (row, column) in the grid of the number shown under the cursor."""
        row, column = self.row_of(cursor), self.column_of(cursor)
        return find_worst(self.grid.values, self.rows, self.columns, row, column)

    def moved(self, cursor: Cursor, down: int, right: int) -> Cursor:
        """Return the cursor moved by cells; past the edge of a page it enters the next page."""
        return Cursor(
            row=_move_along(self.rows, cursor.row, down, len(self.grid.ranks)),
            column=_move_along(self.columns, cursor.column, right, len(self.grid.steps)),
        )

    def at(self, x: int, y: int) -> Cursor | None:
        """Return the cell at a column and line of the widget, or None."""
        row, column = y - 1, (x - self.label) // self.cell
        is_inside = 0 <= row < len(self.rows) - 1 and 0 <= column < len(self.columns) - 1
        return Cursor(row=int(self.rows[row]), column=int(self.columns[column])) if is_inside else None

    def cell_text(self, row: int, column: int) -> str:
        """Return the worst number of a cell of the page if cells are wide enough for numbers, else ""."""
        if self.cell < NUMBER_CELL_WIDTH:
            return ""
        return self.grid.figure_at(*find_worst(self.grid.values, self.rows, self.columns, row, column)).text

    def row_name(self, row: int) -> str:
        """Return the label of a row: its ranks."""
        return format_row_name(self.grid, self.rows, row)

    def header(self, cursor: Cursor) -> tuple[str, tuple[int, int]]:
        """Return the line of step labels, and the extent of the cursor's label."""
        steps = [self.grid.steps[column] for column in self.columns[:-1]]
        names = ["run" if step is None else str(step) for step in steps]
        # Format as many column labels as fit, always including the cursor's, and return its extent.
        at = self.column_of(cursor)
        line = [" "] * (len(names) * self.cell + max(map(len, names)))
        extents: list[tuple[int, int]] = []
        for index in [at, *(index for index in range(len(names)) if index != at)]:
            start, end = index * self.cell, index * self.cell + len(names[index])
            if all(end < low or start > high for low, high in extents):
                line[start:end] = names[index]
                extents.append((start, end))
        return "".join(line).rstrip(), extents[0]

    def shared(self, cursor: Cursor) -> str:
        """Format the ranks and steps that share the cursor's cell; empty for a single rank and step."""
        row, column = self.row_of(cursor), self.column_of(cursor)
        ranks = self.grid.ranks[self.rows[row] : self.rows[row + 1]]
        steps = self.grid.steps[self.columns[column] : self.columns[column + 1]]
        parts = [f"ranks {ranks[0]}-{ranks[-1]}"] if len(ranks) > 1 else []
        parts += [f"steps {steps[0]}-{steps[-1]}"] if len(steps) > 1 else []
        return f"maximum of {', '.join(parts)}" if parts else ""


def build_heat_page(grid: HeatGrid, cursor: Cursor, width: int, height: int, *, folded: bool) -> HeatPage:
    """Return the page that contains the cursor, for a width and height in terminal cells."""
    rows = split_axis(len(grid.ranks), height, cursor.row, folded=folded)
    names = [format_row_name(grid, rows, row) for row in range(len(rows) - 1)]
    label = max(len(name) for name in (*names, f"r{grid.ranks[-1]}")) + 1
    max_cells = max(1, width - label)
    cell = max_cells // len(grid.steps)
    cell = NUMBER_CELL_WIDTH if cell >= NUMBER_CELL_WIDTH else max(1, min(_MAX_CELL_WIDTH, cell))
    columns = split_axis(len(grid.steps), max_cells // cell, cursor.column, folded=folded)
    worst = reduce_to_worst(grid.values, rows, columns)
    limits = (grid.least.number or 0.0, grid.most.number or 0.0) if grid.is_known else (0.0, 0.0)
    return HeatPage(
        grid=grid,
        rows=rows,
        columns=columns,
        label=label,
        cell=cell,
        levels=quantize(worst, *limits, len(HEAT)).tolist(),
        far=(worst > grid.fence).tolist(),
    )


def format_row_name(grid: HeatGrid, rows: Int64s, row: int) -> str:
    """Return the label of the row between these edges: its ranks."""
    first, last = grid.ranks[rows[row]], grid.ranks[rows[row + 1] - 1]
    return f"r{first}" if first == last else f"r{first}-{last}"


def _move_along(edges: Int64s, at: int, by: int, count: int) -> int:
    cell = find_cell(edges, at) + by
    if not by:
        return at
    if cell < 0:
        return max(0, int(edges[0]) - 1)
    return min(count - 1, int(edges[min(cell, len(edges) - 1)]))


_UNCERTAINTY = Path(("time", "alignment", "uncertainty_ns"))
_NOT_TIMED = "no step was timed"
_NOT_MATCHED = "no collective was recorded on all of its ranks, so lateness is unknown"
_NO_MEMORY = "no memory was recorded"


class RankMetric(StrEnum):
    """Metrics of the heat map, in the order in which ``m`` cycles through them."""

    LATENESS = "lateness"
    STEP_TIME = "step time"
    COMPUTE = "compute"
    EXPOSED_WAIT = "exposed wait"
    EXPOSED_TRANSFER = "exposed transfer"
    IDLE = "idle"
    PEAK_MEMORY = "peak memory"


_STEPS = ("time", "steps", EVERY)
#: Leaf, meaning, and reason if unknown, of each metric.
_SOURCES = {
    RankMetric.LATENESS: (
        Path(("time", "lateness", EVERY, "mean_ns")),
        "delay after the first rank",
        _NOT_MATCHED,
    ),
    RankMetric.STEP_TIME: (Path((*_STEPS, "wall_ns")), "wall time of the step", _NOT_TIMED),
    RankMetric.COMPUTE: (Path((*_STEPS, "compute_ns")), "time in which the rank computes", _NOT_TIMED),
    RankMetric.EXPOSED_WAIT: (
        Path((*_STEPS, "exposed_wait_ns")),
        "waiting for other ranks, not hidden by compute",
        _NOT_TIMED,
    ),
    RankMetric.EXPOSED_TRANSFER: (
        Path((*_STEPS, "exposed_transfer_ns")),
        "data moves, not hidden by compute",
        _NOT_TIMED,
    ),
    RankMetric.IDLE: (
        Path((*_STEPS, "idle_ns")),
        "neither running work nor waiting for a collective",
        _NOT_TIMED,
    ),
    RankMetric.PEAK_MEMORY: (
        Path(("memory", "per_rank", EVERY, "peak_bytes")),
        "peak of allocated memory",
        _NO_MEMORY,
    ),
}


class MetricGrids:
    """The heat map grids of a run, each built on first use."""

    def __init__(self, loaded: LoadedRun) -> None:
        report, self.loaded = loaded.report, loaded
        timed = {(entry.rank, entry.step) for entry in report.time.steps}
        timed |= {(entry.rank, entry.step) for entry in report.time.lateness}
        other_ranks = {*report.run.ranks_loaded, *(entry.rank for entry in report.memory.per_rank)}
        self.ranks = tuple(sorted(other_ranks | {rank for rank, _ in timed}))
        self.steps = tuple(sorted({step for _, step in timed}))
        self._grids: dict[RankMetric, HeatGrid] = {}

    def of(self, metric: RankMetric) -> HeatGrid:
        """Return the grid of a metric."""
        if metric not in self._grids:
            self._grids[metric] = self._make_grid(metric)
        return self._grids[metric]

    def first(self) -> RankMetric:
        """Return the first metric with known values."""
        return next((metric for metric in RankMetric if self.of(metric).is_known), RankMetric.LATENESS)

    def _make_grid(self, metric: RankMetric) -> HeatGrid:
        leaf, meaning, unknown = _SOURCES[metric]
        name = leaf.name
        by_rank = self.loaded.report.time.bounds_by_rank
        bounds = {rank: bounds[name] for rank, bounds in by_rank.items() if name in bounds}
        steps = self.steps if metric is not RankMetric.PEAK_MEMORY else ()
        entries: Sequence[Any] = self.loaded.report.time.steps
        if metric is RankMetric.PEAK_MEMORY:
            entries = self.loaded.report.memory.per_rank
        elif metric is RankMetric.LATENESS:
            entries = self.loaded.report.time.lateness
        values, places = self._fill_arrays(entries, name, steps)
        is_aligned = metric is RankMetric.LATENESS and self.loaded.report.time.alignment is not None
        uncertainty = read(follow(self.loaded.report, _UNCERTAINTY)) if is_aligned else None
        return HeatGrid(
            title=metric.value,
            help=meaning,
            leaf=leaf,
            ranks=self.ranks,
            steps=steps or (None,),
            values=values,
            places=places,
            report=self.loaded.report,
            unknown=unknown,
            floor=uncertainty,
            bounds=bounds,
        )

    def _fill_arrays(
        self, entries: Sequence[Any], name: str, steps: tuple[int, ...]
    ) -> tuple[np.ndarray[Any, np.dtype[np.float64]], Int64s]:
        shape = (len(self.ranks), max(1, len(steps)))
        values, places = np.full(shape, np.nan), np.full(shape, -1)
        if not entries:
            return values, places
        row = np.searchsorted(self.ranks, [entry.rank for entry in entries])
        column = np.searchsorted(steps, [entry.step for entry in entries]) if steps else np.zeros_like(row)
        values[row, column] = [getattr(entry, name) for entry in entries]
        places[row, column] = np.arange(len(entries))
        return values, places
