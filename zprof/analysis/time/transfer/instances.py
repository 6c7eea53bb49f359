"""Reductions over the rows of one collective: all ranks' rows of an instance, as numpy segments."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from zprof.analysis.intervals import Int64s

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_T = TypeVar("_T", bound=np.generic)


class Instances:
    """Rows by instance.  ``rows``: those that have one, instance by instance; ``number`` its segment."""

    def __init__(self, instance: Int64s) -> None:
        known = np.flatnonzero(instance >= 0)
        self.rows: Int64s = known[np.argsort(instance[known], kind="stable")]
        ordered = instance[self.rows]
        starts = np.concatenate(([True], ordered[1:] != ordered[:-1])) if len(ordered) else ordered > 0
        self.first: Int64s = np.flatnonzero(starts)
        self.number: Int64s = np.cumsum(starts).astype(np.int64) - 1
        self.ids: Int64s = ordered[self.first]
        self._size = len(instance)

    @property
    def counts(self) -> Int64s:
        """Rows of each instance."""
        return np.diff(np.append(self.first, len(self.rows)))

    def reduce(self, operation: np.ufunc, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """One value an instance from one a row: ``np.maximum``, ``np.minimum``, ``np.add``, ..."""
        if not len(self.first):
            return values[:0]
        reduced: npt.NDArray[_T] = operation.reduceat(values[self.rows], self.first)
        return reduced

    def spread(self, values: npt.NDArray[_T], alone: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """One value a row from one an instance; rows without one keep what ``alone`` says."""
        out = alone.copy()
        out[self.rows] = values[self.number]
        return out

    def largest(self, values: Int64s) -> Int64s:
        """The row with the largest value of each instance; the later row of two that are equal."""
        order = np.lexsort((values[self.rows], self.number))
        last = np.append(self.first[1:], len(self.rows)) - 1 if len(self.first) else self.first
        return self.rows[order[last]]

    def median_of_others(self, values: Int64s | Floats) -> Floats:
        """For each row the median over the other rows of its instance; NaN where there are none."""
        out = np.full(self._size, np.nan)
        mine = values[self.rows].astype(np.float64)
        order = np.lexsort((mine, self.number))
        ordered, count = mine[order], self.counts[self.number]
        first = self.first[self.number]
        place = np.arange(len(order)) - first
        # of n - 1 others the middle ones stand at these places; those behind me stand one further
        middles = [(count - 2) // 2, (count - 1) // 2]
        found = [
            ordered[first + np.clip(middle + (middle >= place), 0, np.maximum(count - 1, 0))]
            for middle in middles
        ]
        out[self.rows[order]] = np.where(count > 1, (found[0] + found[1]) / 2, np.nan)
        return out


class RowFinder:
    """Finds the row of a rank in an instance."""

    def __init__(self, instance: Int64s, rank: Int64s) -> None:
        self._width = int(rank.max(initial=0)) + 1
        key = np.where(instance >= 0, instance * self._width + rank, -1)
        self._order = np.argsort(key, kind="stable")
        self._keys = key[self._order]

    def find(self, instance: Int64s, rank: Int64s) -> Int64s:
        """Row numbers; -1 where the rank has no row in the instance."""
        possible = (instance >= 0) & (rank >= 0) & (rank < self._width)
        wanted = np.where(possible, instance * self._width + np.where(possible, rank, 0), -1)
        if not len(self._keys):
            return np.full(len(wanted), -1, dtype=np.int64)
        index = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        found = possible & (self._keys[index] == wanted)
        return np.where(found, self._order[index], -1)
