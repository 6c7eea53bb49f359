"""Define the instructions of a host, and the process groups of its collectives.

Each instruction refers to earlier ones by key; a key names the latest instruction that has it.  Ranks are
laid out as replicas x shards x tensor, the last axis fastest.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from zprof.model.collectives import CollectiveKind
from zprof.model.time import LateReason
from zprof.simulator.plan import DType, Plan


class Axis(StrEnum):
    """Axis of the mesh along which a collective runs."""

    WORLD = "world"
    SHARD = "shard"
    REPLICATE = "replicate"
    TENSOR = "tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups along one axis, one row of ranks per group.  ``name``, ``description``: as in torch."""

    name: str
    description: str
    members: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Ranks per group."""
        return int(self.members.shape[1])


class Mesh:
    """The process groups of every axis."""

    def __init__(self, plan: Plan) -> None:
        ranks = np.arange(plan.ranks).reshape(plan.replicas, plan.shard_size, plan.tensor)
        self._groups = {
            Axis.WORLD: Groups(name="0", description="default_pg", members=ranks.reshape(1, -1)),
            Axis.SHARD: _along(ranks, 1, "1", "mesh_dp_shard"),
            Axis.REPLICATE: _along(ranks, 0, "2", "mesh_dp_replicate"),
            Axis.TENSOR: _along(ranks, 2, "3", "mesh_tp"),
        }

    def groups(self, axis: Axis) -> Groups:
        """Return the groups along an axis; an axis over all ranks is the default group."""
        found = self._groups[axis]
        return self._groups[Axis.WORLD] if len(found.members) == 1 else found

    def needed(self, axis: Axis) -> bool:
        """Return whether the groups of an axis have more than one rank."""
        return self._groups[axis].size > 1

    def all(self) -> tuple[Groups, ...]:
        """Return the default group first, then all other distinct groups with more than one rank."""
        found = {self.groups(axis).name: self.groups(axis) for axis in Axis if self.needed(axis)}
        world = self._groups[Axis.WORLD]
        return tuple({world.name: world, **found}.values())


def _along(ranks: NDArray[np.int64], dimension: int, name: str, description: str) -> Groups:
    members = np.moveaxis(ranks, dimension, -1).reshape(-1, ranks.shape[dimension])
    return Groups(name=name, description=description, members=np.ascontiguousarray(members))


class Lane(StrEnum):
    """A stream of the device."""

    COMPUTE = "compute"
    WORLD = "world"
    GATHER = "gather"
    REDUCE = "reduce"
    REPLICATE = "replicate"
    TENSOR = "tensor"
    COPY = "copy"


class Direction(StrEnum):
    """Direction of a copy between host and device."""

    TO_DEVICE = "HtoD"
    TO_HOST = "DtoH"


class Shape(StrEnum):
    """Computation of a kernel, which determines its name and its operator."""

    GEMM = "gemm"
    ATTENTION = "attention"
    NORM = "norm"
    ELEMENTWISE = "elementwise"
    OPTIMIZER = "optimizer"
    SPLIT = "split"
    PAD = "pad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Compute.  ``backward``: its operator belongs to autograd."""

    key: str
    shape: Shape
    work_ns: int
    after: tuple[str, ...] = ()
    unit: int | None = None
    backward: bool = False
    lane: Lane = Lane.COMPUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective; ``elements`` counts those of the full tensor."""

    key: str
    kind: CollectiveKind
    axis: Axis
    lane: Lane
    elements: int
    dtype: DType
    after: tuple[str, ...] = ()
    unit: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the full tensor."""
        return self.elements * self.dtype.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy between host and device."""

    key: str
    direction: Direction
    bytes: int
    rate_bytes_per_s: float
    lane: Lane = Lane.COPY
    after: tuple[str, ...] = ()
    unit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """Host work other than a launch.  ``ranks``: the affected ranks (None: all)."""

    ns: int
    reason: LateReason
    name: str
    ranks: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Block the host until these are done (empty: until everything is).

    ``reads``: by reading a scalar back, else by an event.
    """

    after: tuple[str, ...] = ()
    reads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reallocate:
    """An allocator retry: free, which waits for the device, then allocate."""

    free_ns: int
    malloc_ns: int
    ranks: frozenset[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Begin an annotation of the host."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """End the innermost open annotation."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Block a CPU rank until a collective is done."""

    key: str


Instruction = Kernel | Collective | Copy | HostWork | Sync | Reallocate | Begin | End | Wait


@dataclass(slots=True)
class InstructionList:
    """A program under construction."""

    lines: list[Instruction] = field(default_factory=list)

    def add(self, *instructions: Instruction) -> None:
        """Append instructions."""
        self.lines.extend(instructions)

    def annotated(self, name: str, *instructions: Instruction) -> None:
        """Append instructions within an annotation."""
        self.lines.extend((Begin(name=name), *instructions, End(name=name)))
