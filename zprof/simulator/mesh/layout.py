"""Describe how a job is divided over ranks: degrees, groups by role, stages, and the work of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

Framework = Literal["megatron", "torch", "deepspeed"]
FRAMEWORKS: Final[tuple[Framework, ...]] = ("megatron", "torch", "deepspeed")
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble"]
SCHEDULES: Final[tuple[Schedule, ...]] = ("gpipe", "1f1b", "interleaved", "zero_bubble")
DataMode = Literal["ddp", "distributed", "fsdp"]
DATA_MODES: Final[tuple[DataMode, ...]] = ("ddp", "distributed", "fsdp")

ROLES: Final = ("world", "data", "replica", "tensor", "context", "expert", "pipeline", "model")
"""Roles of process groups; the position of a role is the number of its communicator."""
WORLD, DATA, REPLICA, TENSOR, CONTEXT, EXPERT, PIPELINE, MODEL = range(len(ROLES))

_VARIES: Final[dict[int, frozenset[str]]] = {
    WORLD: frozenset({"tensor", "context", "data", "replica", "pipeline"}),
    DATA: frozenset({"context", "data"}),
    REPLICA: frozenset({"replica"}),
    TENSOR: frozenset({"tensor"}),
    CONTEXT: frozenset({"context"}),
    PIPELINE: frozenset({"pipeline"}),
    MODEL: frozenset({"tensor", "pipeline"}),
}
"""Dimensions along which the members of a group differ; an expert group is a part of a data group."""
_MEGATRON: Final = {
    DATA: "DATA_PARALLEL_GROUP_WITH_CP", REPLICA: "INTER_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP",
    TENSOR: "TENSOR_MODEL_PARALLEL_GROUP", CONTEXT: "CONTEXT_PARALLEL_GROUP",
    EXPERT: "EXPERT_MODEL_PARALLEL_GROUP", PIPELINE: "PIPELINE_MODEL_PARALLEL_GROUP",
    MODEL: "MODEL_PARALLEL_GROUP",
}  # fmt: skip
"""`group_desc` in Megatron-Core's `parallel_state.py`; with replicas, see `_MEGATRON_SHARDS`."""
_MEGATRON_SHARDS: Final = "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP"
_TORCH: Final = {
    DATA: "mesh_dp_shard_cp", REPLICA: "mesh_dp_replicate", TENSOR: "mesh_tp", CONTEXT: "mesh_cp",
    EXPERT: "mesh_ep", PIPELINE: "mesh_pp",
}  # fmt: skip
"""Names of a torch device mesh (`mesh_` and the dimension), with the dimensions of torchtitan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """Sizes of the dimensions, in the order of ranks from outside: pipeline, replica, data, context, tensor.

    `expert` divides `data`: an expert group is so many neighbors of a data group.
    """

    pipeline: int = 1
    replica: int = 1
    data: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return self.pipeline * self.replica * self.data * self.context * self.tensor

    def locate(self, rank: int) -> dict[str, int]:
        """Return the coordinates of a rank by dimension."""
        place = {}
        for name in ("tensor", "context", "data", "replica", "pipeline"):
            rank, place[name] = divmod(rank, getattr(self, name))
        return place


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallelism:
    """How a job is divided, and the work of one layer and micro-batch on one rank of an idle device."""

    degrees: Degrees
    framework: Framework
    schedule: Schedule
    virtual: int
    """Stages per pipeline rank."""
    layers: tuple[int, ...]
    """Layers of each stage; stage s is on pipeline rank s mod p."""
    data_mode: DataMode
    attention_ns: int
    dense_ns: int
    """Time of the feed-forward part, or of the experts with equal routing."""
    batched_messages: bool = False
    """Sends and receives are batched and awaited (`batch_isend_irecv`), not posted ahead one by one."""
    head_ns: int = 0
    spreads_head: bool = False
    """The time of the head is spread over all stages: what a balanced split would do."""
    activation_elements: int = 1 << 20
    """Elements of a micro-batch between two stages, of all tensor ranks together."""
    layer_params: int = 1 << 20
    """Parameters of a layer on one rank, before sharding over data ranks."""
    buckets: int = 2
    sequence_parallel: bool = True
    ring_attention: bool = True
    recompute: tuple[float, ...] = ()
    """Share of the layers of each stage that are computed again in the backward pass."""
    attention_factors: tuple[tuple[float, ...], ...] = ()
    """By data replica and micro-batch, the time of attention against the mean: lengths of sequences."""
    expert_loads: tuple[float, ...] = ()
    """By position in the expert group, the tokens that are routed there, against the mean."""
    routing_skew: float = 0.0
    """Standard deviation of the load by layer and micro-batch."""
    link_factors: tuple[tuple[str, float], ...] = ()
    """Bandwidth of the groups of a role, against the link's."""

    @property
    def stages(self) -> int:
        """Return the number of stages of all ranks of a pipeline."""
        return self.degrees.pipeline * self.virtual

    def recompute_share(self, stage: int) -> float:
        """Return the share of a stage's layers that are recomputed."""
        return self.recompute[stage] if self.recompute else 0.0


@lru_cache(maxsize=256)
def list_groups(degrees: Degrees, comm: int) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each group of a communicator, in order of their first ranks."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(degrees.world):
        place = degrees.locate(rank)
        if comm == EXPERT:
            key = tuple(value // degrees.expert if name == "data" else value for name, value in place.items())
        else:
            key = tuple(value for name, value in place.items() if name not in _VARIES[comm])
        groups.setdefault(key, []).append(rank)
    return tuple(tuple(members) for members in groups.values())


@lru_cache(maxsize=256)
def _number_groups(degrees: Degrees, comm: int) -> dict[int, int]:
    return {rank: i for i, members in enumerate(list_groups(degrees, comm)) for rank in members}


def find_mesh_group(degrees: Degrees, comm: int, rank: int) -> int:
    """Return the number of a rank's group."""
    return _number_groups(degrees, comm)[rank]


def list_mesh_members(degrees: Degrees, comm: int, group: int) -> tuple[int, ...]:
    """Return the ranks of a group."""
    return list_groups(degrees, comm)[group]


class MeshGroups:
    """Names of the process groups, as the framework of a job creates them."""

    def __init__(self, parallel: Parallelism) -> None:
        self.degrees = parallel.degrees
        self.framework = parallel.framework
        names = {"megatron": _MEGATRON, "torch": _TORCH}.get(parallel.framework, {})
        self.names = dict(names)
        """Descriptions by communicator; torch writes "undefined" for others, as for all of DeepSpeed's."""
        if parallel.framework == "megatron" and self.degrees.replica > 1:
            self.names[DATA] = _MEGATRON_SHARDS
        if parallel.framework == "torch" and self.degrees.context == 1:
            self.names[DATA] = "mesh_dp_shard" if parallel.data_mode != "ddp" else "mesh_dp"
        self.first: dict[int, int] = {}
        number = 1
        for comm in range(1, len(ROLES)):
            self.first[comm] = number
            number += len(list_groups(self.degrees, comm))

    def list_comms(self) -> list[int]:
        """Return the communicators of a rank that have more than one member."""
        unused = MODEL if self.framework != "megatron" else WORLD
        return [WORLD] + [c for c in self.first if c != unused and len(list_groups(self.degrees, c)[0]) > 1]

    def describe(self, comm: int, rank: int) -> tuple[str, str, list[int]]:
        """Return name, description and members of a communicator of a rank."""
        group = find_mesh_group(self.degrees, comm, rank)
        members = list(list_mesh_members(self.degrees, comm, group))
        if comm == WORLD:
            return "0", "default_pg", members
        return str(self.first[comm] + group), self.names.get(comm, "undefined"), members
