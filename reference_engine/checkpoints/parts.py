"""What of a checkpoint lies in this rank's memory, by logical parameter, padding left out.

Every rank writes its own shard of every unit: in stage 0 too, where all ranks hold all of it, so that nothing
is written twice.  With tensor parallelism, slices are entries of their own (``<name>/mp1of2``), and what is
the same on all ranks of the model-parallel group is written by the first.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from zprof.reference_engine.checkpoints.boxes import Box, boxes
from zprof.reference_engine.comm import Comm
from zprof.reference_engine.units.flat_unit import FlatUnit
from zprof.reference_engine.units.layout import Piece

MOMENTS = ("exp_avg", "exp_avg_sq")


class Engine(Protocol):
    """What a checkpoint reads of a ``ZeroModel``."""

    module: nn.Module
    comm: Comm
    mp: Comm | None

    @property
    def units(self) -> tuple[FlatUnit, ...]:
        """All flat units."""

    def synchronize(self) -> None:
        """Wait for gathers that are under way."""


class Numbers(Protocol):
    """What a checkpoint reads of a ``ZeroOptimizer``."""

    state: Any
    param_groups: list[dict[str, Any]]

    def scalar_state(self) -> dict[str, Any]:
        """Step count, loss scale and the groups' numbers."""

    def load_scalar_state(self, state: Mapping[str, Any]) -> None:
        """Take them over."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Elements [start, start + len(values)) of the flattened tensor ``key``; ``values`` is the memory."""

    key: str
    shape: tuple[int, ...]
    start: int
    values: torch.Tensor

    def chunks(self) -> Iterator[tuple[Box, torch.Tensor]]:
        """The part as boxes of the whole tensor, each with its memory, shaped like the box."""
        position = 0
        for box in boxes(self.shape, self.start, self.start + self.values.numel()):
            yield box, self.values[position : position + box.numel].view(box.sizes)
            position += box.numel


def parts_to_save(engine: Engine, optimizer: Numbers) -> Iterator[Part]:
    """This rank's part of all parameters and of the optimizer's state."""
    first = engine.mp is None or engine.mp.rank == 0
    for unit in engine.units:
        keys = _keys(unit, engine.mp)
        pieces = [*unit.layout.pieces(engine.comm.rank), *(_empty(unit) if engine.comm.rank == 0 else ())]
        mine = [piece for piece in pieces if first or is_split(unit, piece.name)]
        for flat, template, base in _memories(unit, optimizer):
            yield from _parts(unit, flat, template, base, mine, keys)


def parts_to_load(engine: Engine, optimizer: Numbers) -> Iterator[Part]:
    """The memory of everything that this rank must read."""
    for unit in engine.units:
        pieces = unit.layout.pieces(engine.comm.rank)
        if unit.trainable and not unit.policy.shard_optimizer:
            pieces = _all_pieces(unit)
        for flat, template, base in _memories(unit, optimizer):
            whole = unit.trainable and not unit.policy.shard_optimizer
            yield from _parts(unit, flat, template, 0 if whole else base, pieces, _keys(unit, engine.mp))


def is_split(unit: FlatUnit, name: str) -> bool:
    """Whether tensor parallelism has given this rank only a slice of the parameter."""
    index = next(index for index, slot in enumerate(unit.layout.slots) if slot.name == name)
    return bool(getattr(unit.parameters[index], "tensor_parallel_split", False))


def _memories(unit: FlatUnit, optimizer: Numbers) -> Iterator[tuple[torch.Tensor, str, int]]:
    """Flat tensors, the template of their keys, and where this rank's shard begins in them."""
    if unit.weights is None:
        yield unit.shard.detach(), "model.{}", 0
        return
    base = unit.shard_range.start - unit.owned_range.start
    yield unit.weights.detach(), "model.{}", base
    for moment in MOMENTS:
        yield optimizer.state[unit.weights][moment], "optimizer.state.{}." + moment, base


def _parts(
    unit: FlatUnit,
    flat: torch.Tensor,
    template: str,
    base: int,
    pieces: Iterable[Piece],
    keys: Mapping[str, str],
) -> Iterator[Part]:
    shapes = {slot.name: slot.shape for slot in unit.layout.slots}
    for piece in pieces:
        first = base + piece.shard_offset
        yield Part(
            key=template.format(keys[piece.name]),
            shape=shapes[piece.name],
            start=piece.parameter_offset,
            values=flat[first : first + piece.numel],
        )


def _keys(unit: FlatUnit, mp: Comm | None) -> dict[str, str]:
    if mp is None or mp.world_size == 1:
        return {slot.name: slot.name for slot in unit.layout.slots}
    split = f"/mp{mp.rank}of{mp.world_size}"
    return {slot.name: slot.name + (split if is_split(unit, slot.name) else "") for slot in unit.layout.slots}


def _all_pieces(unit: FlatUnit) -> tuple[Piece, ...]:
    return tuple(
        Piece(name=slot.name, parameter_offset=0, shard_offset=slot.offset, numel=slot.numel)
        for slot in unit.layout.slots
        if slot.numel
    )


def _empty(unit: FlatUnit) -> tuple[Piece, ...]:
    # They lie in no shard.  Written all the same, so that other readers of DCP find every parameter.
    return tuple(
        Piece(name=slot.name, parameter_offset=0, shard_offset=0, numel=0)
        for slot in unit.layout.slots
        if not slot.numel
    )
