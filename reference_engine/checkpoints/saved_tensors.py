"""List this rank's part of a checkpoint: shards of parameters and moments, buffers, and random generators.

Every rank writes its own shard of every unit, as boxes of the unsharded tensors.  This includes stage 0,
where all ranks have all parameters, so that nothing is written twice.  With tensor parallelism, slices are
separate entries (``<name>/mp1of2``), and replicated parameters are written by the first rank of the group.

DCP stores rectangular chunks of an n-dimensional tensor, while a rank owns an interval of its elements in
row-major order.  An interval consists of at most 2n - 1 boxes, each of which is itself an interval:

    . . a a        a: the rest of the first row
    b b b b        b: complete rows
    b b b b
    c . . .        c: the start of the last row

Persistent buffers, as in ``Module.state_dict``, are written by the first rank.  The states of every rank's
random generators are saved, and restored if the number of ranks is the same.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.engine import ZeroModel
from zprof.reference_engine.flat_layout import ShardPiece
from zprof.reference_engine.flat_unit import FlatUnit
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer

MOMENTS = ("exp_avg", "exp_avg_sq")


def list_parts_to_save(engine: ZeroModel, optimizer: ZeroOptimizer) -> "Iterator[TensorPart]":
    """Yield this rank's shards of all parameters and optimizer states."""
    first = engine.mp is None or engine.mp.rank == 0
    for unit in engine.units:
        keys = _make_keys(unit, engine.mp)
        pieces = [
            *unit.layout.pieces(engine.comm.rank),
            *(_list_empty_pieces(unit) if engine.comm.rank == 0 else ()),
        ]
        own_pieces = [piece for piece in pieces if first or is_split(unit, piece.name)]
        for flat, template, base in _iter_flat_tensors(unit, optimizer):
            yield from _make_parts(unit, flat, template, base, own_pieces, keys)


def list_parts_to_load(engine: ZeroModel, optimizer: ZeroOptimizer) -> "Iterator[TensorPart]":
    """Yield the parts that this rank must read, with their memory."""
    for unit in engine.units:
        pieces = unit.layout.pieces(engine.comm.rank)
        if unit.trainable and not unit.policy.shard_optimizer:
            pieces = tuple(
                ShardPiece(name=slot.name, parameter_offset=0, shard_offset=slot.offset, numel=slot.numel)
                for slot in unit.layout.slots
                if slot.numel
            )
        for flat, template, base in _iter_flat_tensors(unit, optimizer):
            unsharded = unit.trainable and not unit.policy.shard_optimizer
            yield from _make_parts(
                unit, flat, template, 0 if unsharded else base, pieces, _make_keys(unit, engine.mp)
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorPart:
    """Elements [start, start + len(values)) of the flattened tensor ``key``; ``values`` is their memory."""

    key: str
    shape: tuple[int, ...]
    start: int
    values: torch.Tensor

    def chunks(self) -> "Iterator[tuple[Box, torch.Tensor]]":
        """Yield the part as boxes of the unsharded tensor, each with its memory, shaped like the box."""
        position = 0
        for box in split_into_boxes(self.shape, self.start, self.start + self.values.numel()):
            yield box, self.values[position : position + box.numel].view(box.sizes)
            position += box.numel


def is_split(unit: FlatUnit, name: str) -> bool:
    """Return True if this rank has only a tensor-parallel slice of the parameter."""
    index = next(index for index, slot in enumerate(unit.layout.slots) if slot.name == name)
    return bool(getattr(unit.parameters[index], "tensor_parallel_split", False))


def _iter_flat_tensors(unit: FlatUnit, optimizer: ZeroOptimizer) -> Iterator[tuple[torch.Tensor, str, int]]:
    """Yield flat tensors, the template of their keys, and the start of this rank's shard in them."""
    if unit.weights is None:
        yield unit.shard.detach(), "model.{}", 0
        return
    base = unit.shard_range.start - unit.owned_range.start
    yield unit.weights.detach(), "model.{}", base
    for moment in MOMENTS:
        yield optimizer.state[unit.weights][moment], "optimizer.state.{}." + moment, base


def _make_parts(
    unit: FlatUnit,
    flat: torch.Tensor,
    template: str,
    base: int,
    pieces: Iterable[ShardPiece],
    keys: Mapping[str, str],
) -> Iterator[TensorPart]:
    shapes = {slot.name: slot.shape for slot in unit.layout.slots}
    for piece in pieces:
        first = base + piece.shard_offset
        yield TensorPart(
            key=template.format(keys[piece.name]),
            shape=shapes[piece.name],
            start=piece.parameter_offset,
            values=flat[first : first + piece.numel],
        )


def _make_keys(unit: FlatUnit, mp: Comm | None) -> dict[str, str]:
    if mp is None or mp.world_size == 1:
        return {slot.name: slot.name for slot in unit.layout.slots}
    split = f"/mp{mp.rank}of{mp.world_size}"
    return {slot.name: slot.name + (split if is_split(unit, slot.name) else "") for slot in unit.layout.slots}


def _list_empty_pieces(unit: FlatUnit) -> tuple[ShardPiece, ...]:
    # Empty parameters are in no shard, but are written so that other DCP readers find every parameter.
    return tuple(
        ShardPiece(name=slot.name, parameter_offset=0, shard_offset=0, numel=0)
        for slot in unit.layout.slots
        if not slot.numel
    )


def iter_persistent_buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each persistent buffer once, with its name."""
    for prefix, child in module.named_modules():
        for name, buffer in child.named_buffers(prefix=prefix, recurse=False):
            if name.rpartition(".")[2] not in child._non_persistent_buffers_set:
                yield name, buffer


def make_buffer_parts(buffers: dict[str, torch.Tensor]) -> Iterator[TensorPart]:
    """Yield each buffer as one part; buffers must be contiguous."""
    for name, buffer in buffers.items():
        yield TensorPart(key=f"model.{name}", shape=tuple(buffer.shape), start=0, values=buffer.view(-1))


def make_generator_parts(states: dict[str, torch.Tensor]) -> Iterator[TensorPart]:
    """Yield each state of a random generator as one part."""
    for key, state in states.items():
        yield TensorPart(key=key, shape=tuple(state.shape), start=0, values=state)


def read_generator_states(engine: ZeroModel, rank: int) -> dict[str, torch.Tensor]:
    """Return the states of torch's random generators on the CPU and on the parameters' GPU, by key."""
    states = {f"rng.{rank}.cpu": torch.get_rng_state()}
    device = engine.units[0].full.device
    if device.type == "cuda":
        states[f"rng.{rank}.cuda"] = torch.cuda.get_rng_state(device)
    return states


def filter_known_states(states: dict[str, torch.Tensor], metadata: Metadata) -> dict[str, torch.Tensor]:
    """Return the states that a checkpoint has with the same shape (torch versions may differ)."""
    stored = metadata.state_dict_metadata
    return {
        key: state
        for key, state in states.items()
        if isinstance(record := stored.get(key), TensorStorageMetadata) and record.size == state.size()
    }


def set_generator_states(engine: ZeroModel, states: dict[str, torch.Tensor]) -> None:
    """Set the states of torch's random generators."""
    for key, state in states.items():
        if key.endswith(".cuda"):
            torch.cuda.set_rng_state(state, engine.units[0].full.device)
        else:
            torch.set_rng_state(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangular chunk of a tensor that is one interval of the flattened tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)


def split_into_boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """Yield boxes of the elements [start, stop) of a flattened tensor, in order; one for an empty tensor."""
    if math.prod(shape) == 0:
        yield Box(offsets=(0,) * len(shape), sizes=shape)
    elif not shape:
        yield Box(offsets=(), sizes=())
    else:
        yield from _iter_rows(shape, start, stop)


def _iter_rows(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    row = math.prod(shape[1:])
    if start % row:
        end = min(stop, -(-start // row) * row)
        yield from _iter_within_row(shape, start, end)
        start = end
    if complete_rows := (stop - start) // row:
        yield Box(
            offsets=(start // row, *(0 for _ in shape[1:])),
            sizes=(complete_rows, *shape[1:]),
        )
        start += complete_rows * row
    if start < stop:
        yield from _iter_within_row(shape, start, stop)


def _iter_within_row(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    index, first = divmod(start, math.prod(shape[1:]))
    for box in _iter_rows(shape[1:], first, first + stop - start):
        yield Box(offsets=(index, *box.offsets), sizes=(1, *box.sizes))
