"""Lay out a unit's parameters in one flat tensor, and find their elements in its shards and pieces.

Parameters are stored one after the other, padded with zeros to a multiple of ranks x alignment, so that all
shards have the same size:

    | p0 | p1 | p2 ... | padding |        rank r owns elements [r, r + 1) x padded / ranks

A parameter may span several shards.  The layout is the same for all stages.

With constant-size buffers (CB, arXiv 1910.02054, section 6.2) a flat gradient is reduced in pieces.  A piece
is the same range of elements in every shard, so that one reduce-scatter gives each rank that range of its own
shard:

    |   shard 0   |   shard 1   |  ...         buffer: ranks x (last - first) elements
        |piece|       |piece|                  piece: [first, last) of each shard
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


def build_layout(shapes: Iterable[tuple[str, Sequence[int]]], *, ranks: int, alignment: int) -> "FlatLayout":
    """Lay out named parameters of the given shapes, in order.

    Raises:
        ValueError: ``ranks`` or ``alignment`` is less than 1.
    """
    if ranks < 1 or alignment < 1:
        raise ValueError(f"ranks is {ranks} and alignment is {alignment}; both must be 1 or more")
    slots: list[ParameterSlot] = []
    offset = 0
    for name, shape in shapes:
        numel = math.prod(shape)
        slots.append(ParameterSlot(name=name, shape=tuple(shape), numel=numel, offset=offset))
        offset += numel
    multiple = ranks * alignment
    return FlatLayout(slots=tuple(slots), numel=offset, padded=-(-offset // multiple) * multiple, ranks=ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSlot:
    """Position of one parameter in the flat tensor; sizes in elements."""

    name: str
    shape: tuple[int, ...]
    numel: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPiece:
    """The part of one parameter in one shard; offsets and sizes in elements."""

    name: str
    parameter_offset: int
    shard_offset: int
    numel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatLayout:
    """FlatLayout of one unit's parameters.  ``numel`` is without padding, ``padded`` with it."""

    slots: tuple[ParameterSlot, ...]
    numel: int
    padded: int
    ranks: int

    @property
    def padding(self) -> int:
        """Number of padding elements; they are zero and stay zero."""
        return self.padded - self.numel

    @property
    def shard_numel(self) -> int:
        """Elements of one rank's shard."""
        return self.padded // self.ranks

    def shard(self, rank: int) -> slice:
        """Return the range of elements that a rank owns."""
        return slice(rank * self.shard_numel, (rank + 1) * self.shard_numel)

    def pieces(self, rank: int) -> tuple[ShardPiece, ...]:
        """Return the parts of parameters in a rank's shard, without padding."""
        shard, pieces = self.shard(rank), []
        for slot in self.slots:
            first = max(slot.offset, shard.start)
            last = min(slot.offset + slot.numel, shard.stop)
            if first < last:
                pieces.append(
                    ShardPiece(
                        name=slot.name,
                        parameter_offset=first - slot.offset,
                        shard_offset=first - shard.start,
                        numel=last - first,
                    )
                )
        return tuple(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementRange:
    """Elements [first, last)."""

    first: int
    last: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.last - self.first

    @property
    def slice(self) -> slice:
        """The range as a Python slice."""
        return slice(self.first, self.last)


def split_into_ranges(elements: int, max_elements: int) -> tuple[ElementRange, ...]:
    """Split [0, elements) into consecutive ranges of at most ``max_elements`` elements."""
    return tuple(
        ElementRange(first=first, last=min(first + max_elements, elements))
        for first in range(0, elements, max_elements)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementRun:
    """Elements that are contiguous both in a piece's buffer and in one parameter (None for padding)."""

    buffer: ElementRange
    parameter: int | None
    elements: ElementRange


def find_runs(layout: FlatLayout, piece: ElementRange) -> tuple[ElementRun, ...]:
    """Find the runs that fill a buffer with elements ``piece`` of every shard, in order and without gaps."""
    runs: list[ElementRun] = []
    for rank in range(layout.ranks):
        start = layout.shard(rank).start + piece.first
        for parameter, first, last in _iter_overlaps(layout, start, start + piece.elements):
            position = rank * piece.elements + first - start
            offset = first if parameter is None else layout.slots[parameter].offset
            runs.append(
                ElementRun(
                    buffer=ElementRange(first=position, last=position + last - first),
                    parameter=parameter,
                    elements=ElementRange(first=first - offset, last=last - offset),
                )
            )
    return tuple(runs)


def _iter_overlaps(layout: FlatLayout, start: int, stop: int) -> Iterator[tuple[int | None, int, int]]:
    """Yield (parameter index or None for padding, first, last) for the flat elements [start, stop)."""
    first_slot = bisect_right([slot.offset + slot.numel for slot in layout.slots], start)
    for index in range(first_slot, len(layout.slots)):
        slot = layout.slots[index]
        first, last = max(slot.offset, start), min(slot.offset + slot.numel, stop)
        if slot.offset >= stop:
            break
        if first < last:
            yield index, first, last
    if stop > max(start, layout.numel):
        yield None, max(start, layout.numel), stop


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstElements:
    """Positions of a parameter's first elements in its shards, in the reduced buffer and the flat tensor."""

    parameter: int
    buffer: slice
    flat: slice

    def pairs(self) -> list[tuple[int, int]]:
        """Return the (buffer, flat) position of each element."""
        buffer = range(self.buffer.start, self.buffer.stop, self.buffer.step or 1)
        return list(zip(buffer, range(self.flat.start, self.flat.stop, self.flat.step or 1), strict=True))


def find_first_elements(layout: FlatLayout, piece: ElementRange | None) -> list[FirstElements]:
    """Find the first elements of every parameter in every shard that are in ``piece``; None: all."""
    size = layout.shard_numel
    first, elements = (0, size) if piece is None else (piece.first, piece.elements)
    first_elements = []
    for index, slot in enumerate(layout.slots):
        if slot.numel == 0:
            continue
        shard, offset = divmod(slot.offset, size)
        if first <= offset < first + elements:
            position = shard * elements + offset - first
            flat = slice(slot.offset, slot.offset + 1)
            first_elements.append(
                FirstElements(parameter=index, buffer=slice(position, position + 1), flat=flat)
            )
        # shards that start inside the parameter
        start, end = shard + 1, -(-(slot.offset + slot.numel) // size)
        if first == 0 and start < end:
            first_elements.append(
                FirstElements(
                    parameter=index,
                    buffer=slice(start * elements, (end - 1) * elements + 1, elements),
                    flat=slice(start * size, (end - 1) * size + 1, size),
                )
            )
    return first_elements
