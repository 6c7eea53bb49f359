"""The process groups of a simulated job: who is in which, with the names that Megatron or DeviceMesh give."""

import random
from collections.abc import Sequence

from msgspec import Struct

#: Roles in the order in which Megatron creates their groups, each with both descriptions.
DESCRIPTIONS = {
    "world": ("default_pg", "default_pg"),
    "data": ("DATA_PARALLEL_GROUP_WITH_CP", "mesh_dp"),
    "model": ("MODEL_PARALLEL_GROUP", "mesh_tp_pp"),
    "tensor": ("TENSOR_MODEL_PARALLEL_GROUP", "mesh_tp"),
    "pipeline": ("PIPELINE_MODEL_PARALLEL_GROUP", "mesh_pp"),
    "tensor_data": ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "mesh_dp_tp"),
    "expert": ("EXPERT_MODEL_PARALLEL_GROUP", "mesh_ep"),
    "expert_data": ("EXPERT_DATA_PARALLEL_GROUP", "mesh_dp_ep"),
    "shard": ("mesh_shard", "mesh_shard"),
    "replicate": ("mesh_replicate", "mesh_replicate"),
    "pair": ("TENSOR_MODEL_PARALLEL_GROUP", "mesh_tp"),
    "cross_pair": ("DATA_PARALLEL_GROUP", "mesh_dp"),
}
#: Sizes of a mesh (tensor, pipeline, expert) that are drawn for a world, if they fit.
TENSOR_SIZES, PIPELINE_SIZES = (2, 4, 8), (2, 4)


class Group(Struct, frozen=True, kw_only=True):
    """A process group; ``ranks`` are global, in the order of the group."""

    name: str
    description: str
    role: str
    ranks: tuple[int, ...]


class Mesh(Struct, frozen=True, kw_only=True):
    """The groups of a job. ``of_rank[rank][role]`` is the rank's group of that role."""

    kind: str
    world: int
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    groups: tuple[Group, ...]
    of_rank: tuple[dict[str, Group], ...]

    @property
    def stage_size(self) -> int:
        """Return the number of ranks in one pipeline stage."""
        return self.world // self.pipeline


def draw_mesh(rng: random.Random, kind: str, world: int) -> Mesh:
    """Return a mesh of ``world`` ranks: "ddp", "fsdp", "3d" or "expert"."""
    is_megatron = kind in ("3d", "expert") and rng.random() < 0.6
    if kind == "ddp":
        return _make_mesh(kind, world, {"world": [range(world)]}, is_megatron)
    if kind == "fsdp":
        shard = world if world < 8 or rng.random() < 0.5 else world // 2
        return _make_mesh(kind, world, _list_fsdp(world, shard), is_megatron)
    tensor = rng.choice([size for size in TENSOR_SIZES if world % (size * 2) == 0 or size == 2])
    least = 1 if kind == "expert" else 2
    sizes = [size for size in (1, *PIPELINE_SIZES) if size >= least and world % (tensor * size) == 0]
    pipeline = rng.choice([size for size in sizes if world // size >= 2 * tensor] or [1])
    stage = world // pipeline
    expert = rng.choice([size for size in (tensor, 2 * tensor, 4 * tensor) if stage % size == 0])
    return make_megatron_mesh(kind, world, tensor, pipeline, expert, is_megatron=is_megatron)


def draw_pair_mesh(rng: random.Random, kind: str, world: int) -> Mesh:
    """Return a mesh of 4 to 16 ranks with groups of two: "pairs", "fsdp", "3d" or "expert"."""
    is_megatron = rng.random() < 0.5
    if kind == "pairs":
        half = world // 2
        members: dict[str, list[Sequence[int]]] = {
            "world": [range(world)],
            "pair": [range(first, first + 2) for first in range(0, world, 2)],
            "cross_pair": [(first, first + half) for first in range(half)],
        }
        return _make_mesh(kind, world, members, is_megatron)
    if kind == "fsdp":
        return _make_mesh(kind, world, _list_fsdp(world, rng.choice((2, world // 2))), is_megatron)
    pipeline = rng.choice((1, 2)) if kind == "expert" else 2
    return make_megatron_mesh(kind, world, 2, pipeline, 2, is_megatron=is_megatron)


def make_megatron_mesh(
    kind: str, world: int, tensor: int, pipeline: int, expert: int = 1, *, is_megatron: bool = True
) -> Mesh:
    """Return a mesh in Megatron's order: tensor ranks are neighbours, then data, then stages."""
    stage = world // pipeline
    stages = [range(first, first + stage) for first in range(0, world, stage)]
    members: dict[str, list[Sequence[int]]] = {
        "world": [range(world)],
        "data": [ranks[index::tensor] for ranks in stages for index in range(tensor)],
        "tensor": [range(first, first + tensor) for first in range(0, world, tensor)],
        "tensor_data": list(stages),
    }
    members["model"] = [
        [rank for ranks in stages for rank in ranks[first : first + tensor]]
        for first in range(0, stage, tensor)
    ]
    if pipeline > 1:
        members["pipeline"] = [range(first, world, stage) for first in range(stage)]
    if kind == "expert":
        members["expert"] = [range(first, first + expert) for first in range(0, world, expert)]
        members["expert_data"] = [ranks[index::expert] for ranks in stages for index in range(expert)]
    return _make_mesh(kind, world, members, is_megatron, (tensor, pipeline, expert))


def _list_fsdp(world: int, shard: int) -> dict[str, list[Sequence[int]]]:
    members: dict[str, list[Sequence[int]]] = {
        "world": [range(world)],
        "shard": [range(first, first + shard) for first in range(0, world, shard)],
    }
    if shard < world:
        members["replicate"] = [range(index, world, shard) for index in range(shard)]
    return members


def _make_mesh(
    kind: str,
    world: int,
    members: dict[str, list[Sequence[int]]],
    is_megatron: bool,
    sizes: tuple[int, int, int] = (1, 1, 1),
) -> Mesh:
    groups: list[Group] = []
    of_rank: tuple[dict[str, Group], ...] = tuple({} for _ in range(world))
    for role, descriptions in DESCRIPTIONS.items():
        for ranks in members.get(role, ()):
            description = descriptions[0 if is_megatron else 1]
            group = Group(name=str(len(groups)), description=description, role=role, ranks=tuple(ranks))
            groups.append(group)
            for rank in ranks:
                of_rank[rank][role] = group
    tensor, pipeline, expert = sizes
    return Mesh(
        kind=kind,
        world=world,
        tensor=tensor,
        pipeline=pipeline,
        expert=expert,
        groups=tuple(groups),
        of_rank=of_rank,
    )
