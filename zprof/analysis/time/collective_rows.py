"""Group rows of the collectives table by text column, rank group or instance.

Group totals are averaged over the group's own loaded ranks: averaged over all ranks, a group of 2 of 8 ranks
would appear to run only a quarter of its collectives.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zprof.analysis.columns import Columns, Floats, Groups, Mask
from zprof.analysis.intervals import Int64s
from zprof.model.collectives import FULL_SYNC

_T = TypeVar("_T", bound=np.generic)
#: A text with more digits is not a rank.
_MAX_DIGITS = 9


def mark_full_syncs(rows: Columns) -> Mask:
    """Mark the rows of kinds that no rank can leave before all have entered."""
    return rows.texts("kind").equals(*FULL_SYNC)


def select_kind(rows: Columns, *kinds: str) -> Columns:
    """Return the rows of these kinds of collectives."""
    return rows.at(rows.texts("kind").equals(*kinds))


class Instances:
    """Rows grouped by instance.

    ``rows``: rows with an instance, sorted by it. ``index``: the index of the instance of each of ``rows``.
    ``first_rows``: the position in ``rows`` of each instance's first row.
    """

    def __init__(self, instance: Int64s) -> None:
        known = np.flatnonzero(instance >= 0)
        groups = Groups(instance[known])
        self.rows: Int64s = known[groups.order]
        self.first_rows: Int64s = groups.starts
        #: Number of rows of each instance.
        self.counts: Int64s = groups.sizes
        self.index: Int64s = np.repeat(np.arange(len(groups)), self.counts)
        self.ids: Int64s = instance[self.rows[self.first_rows]]
        self._size = len(instance)

    def reduce(self, operation: np.ufunc, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return one value per instance from one per row: ``np.maximum``, ``np.minimum``, ``np.add``, ..."""
        if not len(self.first_rows):
            return values[:0]
        return operation.reduceat(values[self.rows], self.first_rows)

    def broadcast(self, values: npt.NDArray[_T], default: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return one value per row from one per instance; rows without an instance keep their ``default``."""
        out = default.copy()
        out[self.rows] = values[self.index]
        return out

    def find_largest_rows(self, values: Int64s) -> Int64s:
        """Return the row with the largest value of each instance; ties go to the later row."""
        order = np.lexsort((values[self.rows], self.index))
        last = np.append(self.first_rows[1:], len(self.rows)) - 1 if len(self.first_rows) else self.first_rows
        return self.rows[order[last]]

    def median_of_others(self, values: Int64s | Floats) -> Floats:
        """Return for each row the median over the other rows of its instance; NaN if there are none."""
        out = np.full(self._size, np.nan)
        row_values = values[self.rows].astype(np.float64)
        order = np.lexsort((row_values, self.index))
        ordered, count = row_values[order], self.counts[self.index]
        first = self.first_rows[self.index]
        position = np.arange(len(order)) - first
        # indices of the medians among the other n - 1 rows; skip the row itself
        middles = [(count - 2) // 2, (count - 1) // 2]
        medians = [
            ordered[first + np.clip(middle + (middle >= position), 0, np.maximum(count - 1, 0))]
            for middle in middles
        ]
        out[self.rows[order]] = np.where(count > 1, (medians[0] + medians[1]) / 2, np.nan)
        return out


class RowFinder:
    """Index for finding the row of a rank in an instance."""

    def __init__(self, instance: Int64s, rank: Int64s) -> None:
        self._width = int(rank.max(initial=0)) + 1
        key = np.where(instance >= 0, instance * self._width + rank, -1)
        self._order = np.argsort(key, kind="stable")
        self._keys = key[self._order]

    def find(self, instance: Int64s, rank: Int64s) -> Int64s:
        """Return row numbers; -1 if the rank has no row in the instance."""
        possible = (instance >= 0) & (rank >= 0) & (rank < self._width)
        key = np.where(possible, instance * self._width + np.where(possible, rank, 0), -1)
        if not len(self._keys):
            return np.full(len(key), -1, dtype=np.int64)
        index = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        is_match = possible & (self._keys[index] == key)
        return np.where(is_match, self._order[index], -1)


def group_rows_by_text(
    rows: Columns, by: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], Columns]]:
    """Yield (texts, rows) per distinct combination of the text columns ``by``; rows have only ``columns``."""
    keys = [rows.texts(name) for name in by]
    selected = rows.pick(dict.fromkeys(columns))
    for places in Groups(*keys).split():
        yield tuple(key[places[0]] for key in keys), selected.at(places)


def parse_group_ranks(group: str) -> frozenset[int]:
    """Return the ranks of a group "0,1" or "0,1#description"; empty if they are unknown."""
    words = group.split("#", 1)[0].split(",")
    if not all(word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS for word in words):
        return frozenset()
    return frozenset(int(word) for word in words)


class StepCounts(Struct, frozen=True, kw_only=True):
    """Number of steps in the window, by loaded rank."""

    by_rank: Mapping[int, int]

    @property
    def per_rank(self) -> int:
        """Steps per rank: the maximum over ranks, at least 1."""
        return max(1, max(self.by_rank.values(), default=1))

    def sum_for_group(self, group: str, rows: Columns) -> int:
        """Return the sum of steps over the loaded ranks of a group, at least 1.

        If the ranks of the group are unknown, use the ranks that have rows.
        """
        ranks = parse_group_ranks(group) or set(rows.ints("rank").tolist())
        return max(1, sum(self.by_rank.get(rank, 0) for rank in ranks))
