"""Where each parameter of a unit lies in its flat storage, and which part of it each rank owns.

Parameters stand one after the other; the end is padded with zeros to a multiple of ranks x alignment, so
that all shards have the same size:

    | p0 | p1 | p2 ... | padding |        rank r owns elements [r, r + 1) x padded / ranks

A parameter may lie in several shards.  The layout is the same for all stages.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One parameter in the flat storage; sizes in elements."""

    name: str
    shape: tuple[int, ...]
    numel: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The part of one parameter that lies in one shard; positions and sizes in elements."""

    name: str
    parameter_offset: int
    shard_offset: int
    numel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The table of one unit.  ``numel`` is logical, ``padded`` what is stored."""

    slots: tuple[Slot, ...]
    numel: int
    padded: int
    ranks: int

    @property
    def padding(self) -> int:
        """Elements that belong to no parameter; they are zero and stay zero."""
        return self.padded - self.numel

    @property
    def shard_numel(self) -> int:
        """Elements of one rank's shard."""
        return self.padded // self.ranks

    def shard(self, rank: int) -> slice:
        """The elements that a rank owns."""
        return slice(rank * self.shard_numel, (rank + 1) * self.shard_numel)

    def pieces(self, rank: int) -> tuple[Piece, ...]:
        """The logical content of a rank's shard, padding left out."""
        shard = self.shard(rank)
        return tuple(piece for slot in self.slots if (piece := _overlap(slot, shard)) is not None)


def layout_of(shapes: Iterable[tuple[str, Sequence[int]]], *, ranks: int, alignment: int) -> Layout:
    """Lay out named shapes in the given order.

    Raises:
        ValueError: ``ranks`` or ``alignment`` is less than 1.
    """
    if ranks < 1 or alignment < 1:
        raise ValueError(f"ranks is {ranks} and alignment is {alignment}; both must be 1 or more")
    slots: list[Slot] = []
    offset = 0
    for name, shape in shapes:
        numel = math.prod(shape)
        slots.append(Slot(name=name, shape=tuple(shape), numel=numel, offset=offset))
        offset += numel
    block = ranks * alignment
    return Layout(slots=tuple(slots), numel=offset, padded=-(-offset // block) * block, ranks=ranks)


def _overlap(slot: Slot, shard: slice) -> Piece | None:
    first = max(slot.offset, shard.start)
    last = min(slot.offset + slot.numel, shard.stop)
    if first >= last:
        return None
    return Piece(
        name=slot.name,
        parameter_offset=first - slot.offset,
        shard_offset=first - shard.start,
        numel=last - first,
    )
