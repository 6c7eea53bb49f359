"""Group the rows of the table of collectives: by text, by the ranks of a group, by instance.

Sums of a group are means over its own loaded ranks; averaged over all ranks, a group of 2 of 8 would appear
to run a quarter of its collectives.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.intervals import Int64s

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_T = TypeVar("_T", bound=np.generic)


class Instances:
    """Rows grouped by instance; ``rows``: those that have one, in order; ``number``: its index."""

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
        """Number of rows of each instance."""
        return np.diff(np.append(self.first, len(self.rows)))

    def reduce(self, operation: np.ufunc, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return one value per instance from one per row: ``np.maximum``, ``np.minimum``, ``np.add``, ..."""
        if not len(self.first):
            return values[:0]
        reduced: npt.NDArray[_T] = operation.reduceat(values[self.rows], self.first)
        return reduced

    def spread(self, values: npt.NDArray[_T], alone: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return one value per row from one per instance; rows without an instance get that of ``alone``."""
        out = alone.copy()
        out[self.rows] = values[self.number]
        return out

    def largest(self, values: Int64s) -> Int64s:
        """Return the row with the largest value of each instance; the later row of two that are equal."""
        order = np.lexsort((values[self.rows], self.number))
        last = np.append(self.first[1:], len(self.rows)) - 1 if len(self.first) else self.first
        return self.rows[order[last]]

    def median_of_others(self, values: Int64s | Floats) -> Floats:
        """Return for each row the median over the other rows of its instance; NaN if there are none."""
        out = np.full(self._size, np.nan)
        mine = values[self.rows].astype(np.float64)
        order = np.lexsort((mine, self.number))
        ordered, count = mine[order], self.counts[self.number]
        first = self.first[self.number]
        place = np.arange(len(order)) - first
        # indices of the middle ones among the n - 1 others; those after this row are one further
        middles = [(count - 2) // 2, (count - 1) // 2]
        found = [
            ordered[first + np.clip(middle + (middle >= place), 0, np.maximum(count - 1, 0))]
            for middle in middles
        ]
        out[self.rows[order]] = np.where(count > 1, (found[0] + found[1]) / 2, np.nan)
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
        wanted = np.where(possible, instance * self._width + np.where(possible, rank, 0), -1)
        if not len(self._keys):
            return np.full(len(wanted), -1, dtype=np.int64)
        index = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        found = possible & (self._keys[index] == wanted)
        return np.where(found, self._order[index], -1)


def encode_texts(column: "pd.Series[str]") -> tuple[Int64s, list[str]]:
    """Return a number for each row, and the text of each number.

    Rows share the objects of their texts, so they are first distinguished by identity, and each object is
    compared as text only once.
    """
    texts = column.to_numpy(dtype=object)
    identity = np.fromiter(map(id, texts), np.int64, len(texts))
    _, first, same = np.unique(identity, return_index=True, return_inverse=True)
    numbers: dict[str, int] = {}
    of_object = [numbers.setdefault(str(text), len(numbers)) for text in texts[first]]
    return np.array(of_object, dtype=np.int64)[same.ravel()], list(numbers)


def group_by_texts(
    frame: pd.DataFrame, by: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """Yield the rows by the texts of some columns, with only ``columns``."""
    keys = [encode_texts(frame[name]) for name in by]
    number = np.zeros(len(frame), dtype=np.int64)
    for codes, texts in keys:
        number = number * (len(texts) + 1) + codes
    order = np.argsort(number, kind="stable")
    first = np.flatnonzero(np.diff(number[order], prepend=-1))
    kept = frame[[*dict.fromkeys(columns)]]
    for mine in np.split(order, first[1:]) if len(order) else []:
        yield tuple(texts[codes[mine[0]]] for codes, texts in keys), kept.iloc[mine]


#: A text with more digits is not a rank.
_MAX_DIGITS = 9


def parse_group_ranks(group: str) -> frozenset[int]:
    """Return the ranks of a group "0,1" or "0,1#description"; empty if they are unknown."""
    words = group.split("#", 1)[0].split(",")
    if not all(word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS for word in words):
        return frozenset()
    return frozenset(int(word) for word in words)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSteps:
    """Number of steps in the window, by loaded rank."""

    of_rank: Mapping[int, int]

    @property
    def each(self) -> int:
        """Steps per rank: the maximum over ranks, at least 1."""
        return max(1, max(self.of_rank.values(), default=1))

    def over(self, group: str, rows: pd.DataFrame) -> int:
        """Return the steps summed over the loaded ranks of a group, at least 1.

        If the group does not list its ranks, those that have rows are used.
        """
        ranks = parse_group_ranks(group) or set(rows["rank"].unique())
        return max(1, sum(self.of_rank.get(int(rank), 0) for rank in ranks))
