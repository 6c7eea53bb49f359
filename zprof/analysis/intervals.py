"""Compute unions, intersections and differences of sets of time intervals.

A set is an int64 array of shape (n, 2) with rows ``[start, end)``. Input rows may overlap, be unsorted or be
empty. Results are sorted and disjoint, without empty or touching rows. All operations are O(n log n).
"""

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Intervals = npt.NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)
EMPTY.setflags(write=False)
#: An empty set of instants or other integers.
NO_INTS: Int64s = np.empty(0, dtype=np.int64)
NO_INTS.setflags(write=False)
_FIRST_NS, _LAST_NS = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def intervals(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Build a set from a column of starts and a column of ends."""
    low, high = (np.asarray(column, dtype=np.int64).ravel() for column in (starts, ends))
    if not len(low):
        return EMPTY
    rows = np.empty((len(low), 2), dtype=np.int64)
    rows[:, 0] = low
    rows[:, 1] = high
    return rows


def union(*sets: Intervals) -> Intervals:
    """Return the union of sets."""
    filled = [rows for rows in sets if len(rows)]
    if not filled:
        return EMPTY
    rows = filled[0] if len(filled) == 1 else np.concatenate(filled)
    edges = rows.ravel()
    if (edges[1:] > edges[:-1]).all():
        return rows  # most inputs are sorted and disjoint already
    rows = rows[rows[:, 1] > rows[:, 0]]
    if not len(rows):
        return EMPTY
    if not (rows[1:, 0] >= rows[:-1, 0]).all():  # most inputs are sorted already
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
    max_end = np.maximum.accumulate(rows[:, 1])
    is_first = np.empty(len(rows), dtype=np.bool_)
    is_first[0] = True
    np.greater(rows[1:, 0], max_end[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    return intervals(rows[first, 0], max_end[np.append(first[1:], len(rows)) - 1])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the intersection of two sets."""
    a, b = union(a), union(b)
    return _overlap(a, b[:, 0], b[:, 1]) if len(a) and len(b) else EMPTY


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return ``a`` without ``b``."""
    a, b = union(a), union(b)
    if not len(a) or not len(b):
        return a
    free_from = np.concatenate(([_FIRST_NS], b[:, 1]))
    free_until = np.concatenate((b[:, 0], [_LAST_NS]))
    return _overlap(a, free_from, free_until)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """Return the part of ``a`` inside ``[start, end)``."""
    return union(np.clip(a, start, max(start, end)))


def measure(a: Intervals) -> int:
    """Return the total length, counting overlaps once."""
    return int(np.diff(union(a), axis=1).sum())


def covered(a: Intervals, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Int64s:
    """Return the length of ``a`` inside each window ``[start, end)``; 0 for a reversed window."""
    merged = union(a)
    low = np.asarray(starts, dtype=np.int64)
    high = np.maximum(low, np.asarray(ends, dtype=np.int64))
    if not len(merged) or not high.size:
        return np.zeros(high.shape, dtype=np.int64)
    begin, end = np.ascontiguousarray(merged.T)
    length_before = np.empty(len(begin) + 1, dtype=np.int64)
    length_before[0] = 0
    np.cumsum(end - begin, out=length_before[1:])

    def measure_before(points: Int64s) -> Int64s:
        index = np.searchsorted(begin, points, side="right")
        beyond = np.maximum(0, end[np.maximum(index - 1, 0)] - points)
        return length_before[index] - np.where(index > 0, beyond, 0)

    return measure_before(high) - measure_before(low)


def _overlap(a: Intervals, starts: Int64s, ends: Int64s) -> Intervals:
    """Return the intersection of a merged set with a set given by starts and ends; neither is empty."""
    first = np.searchsorted(ends, a[:, 0], side="right")
    count = np.searchsorted(starts, a[:, 1], side="left") - first
    row = np.repeat(np.arange(len(a)), count)
    # positions first, first + 1, ... of the rows of the other set that overlap each row of ``a``
    other = np.arange(len(row)) + np.repeat(first - np.cumsum(count) + count, count)
    if not len(row):
        return EMPTY
    return intervals(np.maximum(a[row, 0], starts[other]), np.minimum(a[row, 1], ends[other]))
