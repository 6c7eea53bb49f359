"""Intervals of a flattened tensor as boxes of the tensor.

DCP knows rectangular chunks of an n-dimensional tensor, and a rank owns an interval of its elements in
row-major order.  An interval is at most 2n - 1 boxes, each of which is itself an interval:

    . . a a        a: what is left of the first row
    b b b b        b: whole rows
    b b b b
    c . . .        c: the beginning of the last row
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A chunk of a tensor whose elements are one interval of the flattened tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.sizes)


def boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """Elements [start, stop) of a flattened tensor as boxes, in order; an empty tensor is one empty box."""
    if math.prod(shape) == 0:
        yield Box(offsets=(0,) * len(shape), sizes=shape)
    elif not shape:
        yield Box(offsets=(), sizes=())
    else:
        yield from _rows(shape, start, stop)


def _rows(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    row = math.prod(shape[1:])
    if start % row:
        end = min(stop, -(-start // row) * row)
        yield from _within_row(shape, start, end)
        start = end
    if whole := (stop - start) // row:
        yield Box(
            offsets=(start // row, *(0 for _ in shape[1:])),
            sizes=(whole, *shape[1:]),
        )
        start += whole * row
    if start < stop:
        yield from _within_row(shape, start, stop)


def _within_row(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    index, first = divmod(start, math.prod(shape[1:]))
    for box in _rows(shape[1:], first, first + stop - start):
        yield Box(offsets=(index, *box.offsets), sizes=(1, *box.sizes))
