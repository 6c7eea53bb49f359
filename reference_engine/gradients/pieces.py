"""How a flat gradient is cut where buffers have a constant size (CB: arXiv 1910.02054, section 6.2).

A piece is the same elements of every shard, so that one reduce-scatter of it gives each rank that part of
its own shard:

    |  shard 0  |  shard 1  |  ...           buffer: ranks x (last - first) elements
        |cut|       |cut|                    cut: [first, last) of each shard
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from zprof.reference_engine.units.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Elements [first, last)."""

    first: int
    last: int

    @property
    def elements(self) -> int:
        """How many."""
        return self.last - self.first

    @property
    def slice(self) -> slice:
        """To index with."""
        return slice(self.first, self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Elements that lie side by side in a piece's buffer and in one parameter; None is padding."""

    buffer: Cut
    parameter: int | None
    elements: Cut


def buffer_elements(limit: int, *, ranks: int, alignment: int) -> int:
    """Elements of a constant-size buffer: at most ``limit``, in whole aligned parts for every rank.

    Raises:
        ValueError: ``limit`` is too small for one.
    """
    block = ranks * alignment
    if limit < block:
        raise ValueError(f"constant_buffers is {limit} elements; make it {block} (ranks x alignment) or more")
    return limit // block * block


def cuts(elements: int, most: int) -> tuple[Cut, ...]:
    """[0, elements) one after the other, each at most ``most`` long."""
    return tuple(Cut(first=first, last=min(first + most, elements)) for first in range(0, elements, most))


def runs(layout: Layout, cut: Cut) -> tuple[Run, ...]:
    """What a buffer for elements ``cut`` of every shard holds, in its order and without a hole."""
    found: list[Run] = []
    for rank in range(layout.ranks):
        start = layout.shard(rank).start + cut.first
        for parameter, first, last in _between(layout, start, start + cut.elements):
            place = rank * cut.elements + first - start
            offset = first if parameter is None else layout.slots[parameter].offset
            found.append(
                Run(
                    buffer=Cut(first=place, last=place + last - first),
                    parameter=parameter,
                    elements=Cut(first=first - offset, last=last - offset),
                )
            )
    return tuple(found)


def _between(layout: Layout, start: int, stop: int) -> Iterator[tuple[int | None, int, int]]:
    """Parameters, and padding, in flat elements [start, stop): which one, from where, to where."""
    begin = bisect_right([slot.offset + slot.numel for slot in layout.slots], start)
    for index in range(begin, len(layout.slots)):
        slot = layout.slots[index]
        first, last = max(slot.offset, start), min(slot.offset + slot.numel, stop)
        if slot.offset >= stop:
            break
        if first < last:
            yield index, first, last
    if stop > max(start, layout.numel):
        yield None, max(start, layout.numel), stop
