"""A grid of numbers by rank and step as a heat map shows it, apart from how it is drawn.

A cell stands for one rank and step, or for several where they have to share it: then for the worst of them,
never for their mean, in which a single late rank of a thousand would vanish.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from zprof.tui.figures import Figure, Unit
from zprof.tui.pages.bounds import EXACT, bound_figure

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
_FEWEST = 8
_FENCE = 3.0
_LEAST = 0.02


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
        return bound_figure(self.tree, self.unit, self.leaf.format(place), sign=sign)

    @cached_property
    def least(self) -> Figure:
        """The least of all that are known."""
        return self.figure_at(*_place(np.nanargmin, self.values))

    @cached_property
    def most(self) -> Figure:
        """The largest of all."""
        return self.figure_at(*_place(np.nanargmax, self.values))

    @cached_property
    def fence(self) -> float:
        """Above this a number is far above the rest: three times the middle half's breadth beyond it.

        Nothing is where there are too few to tell.
        """
        known = self.values[np.isfinite(self.values)]
        if len(known) < _FEWEST:
            return np.inf
        low, high = np.percentile(known, (25, 75))
        floor = self.floor.value if self.floor and self.floor.value else 0.0
        return float(high + max(_FENCE * (high - low), _LEAST * abs(high), floor))


def _place(find: Any, values: Floats) -> tuple[int, int]:
    row, column = np.unravel_index(find(values), values.shape)
    return int(row), int(column)


def edges(count: int, room: int, at: int, *, folded: bool) -> Int64s:
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


def cell_of(edges: Int64s, at: int) -> int:
    """In which place ``at`` is."""
    return int(np.searchsorted(edges, at, side="right")) - 1


def worst(values: Floats, rows: Int64s, columns: Int64s) -> Floats:
    """The largest known number of each cell; NaN where none is.  Cells between the edges only."""
    block = values[rows[0] : rows[-1], columns[0] : columns[-1]]
    of_rows = np.fmax.reduceat(block, rows[:-1] - rows[0], axis=0)
    largest: Floats = np.fmax.reduceat(of_rows, columns[:-1] - columns[0], axis=1)
    return largest


def worst_place(values: Floats, rows: Int64s, columns: Int64s, row: int, column: int) -> tuple[int, int]:
    """Where the largest known number of a cell stands in the whole grid; its first place without one."""
    top, left = int(rows[row]), int(columns[column])
    block = values[top : rows[row + 1], left : columns[column + 1]]
    if not np.isfinite(block).any():
        return top, left
    down, right = _place(np.nanargmax, block)
    return top + down, left + right


def levels(values: Floats, low: float, high: float, count: int) -> Int64s:
    """Each number's step of the scale from low to high, 0 to ``count - 1``; -1 where unknown."""
    breadth = high - low
    known = np.isfinite(values)
    share = (np.where(known, values, low) - low) / breadth if breadth > 0 else np.zeros(values.shape)
    found: Int64s = np.clip(np.floor(share * count), 0, count - 1).astype(np.int64)
    return np.where(known, found, -1)
