"""Define the instructions of a host, and the process groups of its collectives.

Instructions refer to earlier ones by key; a key means the latest instruction with that key.  Ranks are laid
out as replicas x shards x tensor, with the last axis fastest.
"""

from enum import StrEnum

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from zprof.model.collectives import CollectiveKind
from zprof.model.time import LateReason
from zprof.simulator.plan import DType, SimulationPlan


class MeshAxis(StrEnum):
    """Axis of the mesh along which a collective runs."""

    WORLD = "world"
    SHARD = "shard"
    REPLICATE = "replicate"
    TENSOR = "tensor"


class Groups(Struct, frozen=True, kw_only=True):
    """Groups along one axis, one row of ranks per group.  ``name``, ``description``: as in torch."""

    name: str
    description: str
    members: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Ranks per group."""
        return int(self.members.shape[1])


class Mesh:
    """Process groups of every axis."""

    def __init__(self, plan: SimulationPlan) -> None:
        ranks = np.arange(plan.ranks).reshape(plan.replicas, plan.shard_size, plan.tensor)
        self._groups = {
            MeshAxis.WORLD: Groups(name="0", description="default_pg", members=ranks.reshape(1, -1)),
            MeshAxis.SHARD: _make_groups(ranks, 1, "1", "mesh_dp_shard"),
            MeshAxis.REPLICATE: _make_groups(ranks, 0, "2", "mesh_dp_replicate"),
            MeshAxis.TENSOR: _make_groups(ranks, 2, "3", "mesh_tp"),
        }

    def groups(self, axis: MeshAxis) -> Groups:
        """Return the groups along an axis; an axis over all ranks is the default group."""
        axis_groups = self._groups[axis]
        return self._groups[MeshAxis.WORLD] if len(axis_groups.members) == 1 else axis_groups

    def is_needed(self, axis: MeshAxis) -> bool:
        """Return True if the groups of an axis have more than one rank."""
        return self._groups[axis].size > 1

    def list_all(self) -> tuple[Groups, ...]:
        """Return the default group first, then all other distinct groups with more than one rank."""
        groups = {self.groups(axis).name: self.groups(axis) for axis in MeshAxis if self.is_needed(axis)}
        world = self._groups[MeshAxis.WORLD]
        return tuple({world.name: world, **groups}.values())


def _make_groups(ranks: NDArray[np.int64], dimension: int, name: str, description: str) -> Groups:
    members = np.moveaxis(ranks, dimension, -1).reshape(-1, ranks.shape[dimension])
    return Groups(name=name, description=description, members=np.ascontiguousarray(members))


class DeviceStream(StrEnum):
    """A stream of the device."""

    COMPUTE = "compute"
    WORLD = "world"
    GATHER = "gather"
    REDUCE = "reduce"
    REPLICATE = "replicate"
    TENSOR = "tensor"
    COPY = "copy"


class CopyDirection(StrEnum):
    """Direction of a copy between host and device."""

    TO_DEVICE = "HtoD"
    TO_HOST = "DtoH"


class KernelWork(StrEnum):
    """Computation of a kernel, which determines its name and its operator."""

    GEMM = "gemm"
    ATTENTION = "attention"
    NORM = "norm"
    ELEMENTWISE = "elementwise"
    OPTIMIZER = "optimizer"
    SPLIT = "split"
    PAD = "pad"


class KernelLaunch(Struct, frozen=True, kw_only=True):
    """Compute kernel.  ``backward``: its operator belongs to autograd."""

    key: str
    kind: KernelWork
    work_ns: int
    after: tuple[str, ...] = ()
    unit: int | None = None
    backward: bool = False
    lane: DeviceStream = DeviceStream.COMPUTE


class CollectiveLaunch(Struct, frozen=True, kw_only=True):
    """Collective; ``elements`` is the size of the full tensor."""

    key: str
    kind: CollectiveKind
    axis: MeshAxis
    lane: DeviceStream
    elements: int
    dtype: DType
    after: tuple[str, ...] = ()
    unit: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the full tensor."""
        return self.elements * self.dtype.size_bytes


class CopyLaunch(Struct, frozen=True, kw_only=True):
    """A copy between host and device."""

    key: str
    direction: CopyDirection
    bytes: int
    rate_bytes_per_s: float
    lane: DeviceStream = DeviceStream.COPY
    after: tuple[str, ...] = ()
    unit: int | None = None


class HostWork(Struct, frozen=True, kw_only=True):
    """Host work other than a launch.  ``ranks``: the affected ranks (None: all)."""

    ns: int
    reason: LateReason
    name: str
    ranks: frozenset[int] | None = None


class Sync(Struct, frozen=True, kw_only=True):
    """Block the host until these instructions finish (empty: all of them).

    ``reads``: by reading a scalar back, else by an event.
    """

    after: tuple[str, ...] = ()
    reads: bool = False


class Reallocate(Struct, frozen=True, kw_only=True):
    """Allocator retry: free, which waits for the device, then allocate."""

    free_ns: int
    malloc_ns: int
    ranks: frozenset[int] | None


class StartAnnotation(Struct, frozen=True, kw_only=True):
    """Start an annotation on the host."""

    name: str


class EndAnnotation(Struct, frozen=True, kw_only=True):
    """End the innermost annotation."""

    name: str


class Wait(Struct, frozen=True, kw_only=True):
    """Block a CPU rank until a collective finishes."""

    key: str


Instruction = (
    KernelLaunch
    | CollectiveLaunch
    | CopyLaunch
    | HostWork
    | Sync
    | Reallocate
    | StartAnnotation
    | EndAnnotation
    | Wait
)


class InstructionList(Struct):
    """Accumulate the instructions of a program."""

    lines: list[Instruction] = field(default_factory=list)

    def add(self, *instructions: Instruction) -> None:
        """Append instructions."""
        self.lines.extend(instructions)

    def add_annotated(self, name: str, *instructions: Instruction) -> None:
        """Append instructions within an annotation."""
        self.lines.extend((StartAnnotation(name=name), *instructions, EndAnnotation(name=name)))
