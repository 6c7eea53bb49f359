"""Compute unions, intersections and differences of sets of time intervals.

A set is an int64 array of shape (n, 2) with rows ``[start, end)``. Inputs may overlap, be unsorted or contain
empty rows. Results are sorted and disjoint, without empty or touching rows. All operations are O(n log n).
"""

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Intervals = npt.NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)
EMPTY.setflags(write=False)


def intervals(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Build a set from a column of starts and a column of ends."""
    columns = [np.asarray(column, dtype=np.int64).ravel() for column in (starts, ends)]
    return np.column_stack(columns) if len(columns[0]) else EMPTY


def union(*sets: Intervals) -> Intervals:
    """Return the union of the sets."""
    rows = sets[0] if len(sets) == 1 else np.concatenate(sets) if sets else EMPTY
    if (rows[:, 1] > rows[:, 0]).all() and (rows[1:, 0] > rows[:-1, 1]).all():
        return rows  # most inputs are disjoint already
    rows = rows[rows[:, 1] > rows[:, 0]]
    if not len(rows):
        return EMPTY
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    max_end = np.maximum.accumulate(rows[:, 1])
    first = np.flatnonzero(np.concatenate(([True], rows[1:, 0] > max_end[:-1])))
    last = np.concatenate((first[1:], [len(rows)])) - 1
    return np.column_stack((rows[first, 0], max_end[last]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the intersection of two sets."""
    return _combine(a, b, inside_b=True)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return ``a`` without ``b``."""
    return _combine(a, b, inside_b=False)


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
    return _length_before(merged, high) - _length_before(merged, low)


def _length_before(merged: Intervals, points: Int64s) -> Int64s:
    """Return the length of a merged set to the left of each point."""
    if not len(merged):
        return np.zeros(points.shape, dtype=np.int64)
    lengths = np.concatenate(([0], np.cumsum(merged[:, 1] - merged[:, 0])))
    index = np.searchsorted(merged[:, 0], points, side="right")
    beyond = np.maximum(0, merged[np.maximum(index - 1, 0), 1] - points)
    return lengths[index] - np.where(index > 0, beyond, 0)


def _combine(a: Intervals, b: Intervals, *, inside_b: bool) -> Intervals:
    a, b = union(a), union(b)
    points = np.sort(np.concatenate((a.ravel(), b.ravel())), kind="stable")  # two runs, merged in O(n)
    if len(points) < 2:
        return EMPTY
    keep = _inside(a, points[:-1]) & (_inside(b, points[:-1]) == inside_b)
    return union(np.column_stack((points[:-1], points[1:]))[keep])


def _inside(merged: Intervals, points: Int64s) -> npt.NDArray[np.bool_]:
    if not len(merged):
        return np.zeros(points.shape, dtype=np.bool_)
    index = np.searchsorted(merged[:, 0], points, side="right") - 1
    inside: npt.NDArray[np.bool_] = (index >= 0) & (points < merged[np.maximum(index, 0), 1])
    return inside
