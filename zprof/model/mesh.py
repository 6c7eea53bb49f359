"""Define the mesh of a job: the role of each process group, and the time of each kind of parallelism."""

from enum import StrEnum

from msgspec import Struct


class GroupRole(StrEnum):
    """Kind of parallelism that a process group serves. SHARD: ranks that share states; REPLICA: copies of
    them."""

    SHARD = "shard"
    REPLICA = "replica"
    TENSOR = "tensor"
    CONTEXT = "context"
    EXPERT = "expert"
    PIPELINE = "pipeline"
    OTHER = "other"


#: Roles whose messages carry activations: they depend on the compute before them, so no engine can launch
#: them earlier, and their bytes are not those of parameters or gradients.
ACTIVATION_ROLES = frozenset({GroupRole.TENSOR, GroupRole.CONTEXT, GroupRole.EXPERT, GroupRole.PIPELINE})


class RoleBasis(StrEnum):
    """How the role of a group is known."""

    STATED = "stated"
    DESCRIPTION = "description"
    MESSAGES = "messages"


class MeshGroup(Struct, frozen=True, kw_only=True):
    """A process group with messages in the window; ``ranks``: its global ranks in order."""

    group: str
    role: GroupRole
    ranks: tuple[int, ...]
    basis: RoleBasis


class RoleTime(Struct, frozen=True, kw_only=True):
    """Time of the messages of a role, means per step over the ranks of its groups.

    ``exposed_wait_ns``, ``exposed_transfer_ns``: without concurrent compute; roles may overlap, so they do
    not add up to the ledger. ``messages``: per step and rank. ``bytes``: full tensors, per step and rank.
    """

    role: GroupRole
    size: int
    groups: int
    messages: float
    bytes: int
    exposed_wait_ns: int
    exposed_transfer_ns: int


class Bubble(Struct, frozen=True, kw_only=True):
    """Idle time of a pipeline, means per step over its ranks, in ns.

    ``warm_up_ns``: before a rank's first compute; ``drain_ns``: after its last; ``steady_ns``: waits for
    other stages in between. ``stages``, ``micro_batches``, ``virtual``: the shape of the pipeline.
    ``share_ratio``: all three / step. ``ideal_ratio``: (p - 1) / (m v + p - 1), of equal stages.
    """

    stages: int
    micro_batches: int
    virtual: int
    warm_up_ns: int
    steady_ns: int
    drain_ns: int
    share_ratio: float
    ideal_ratio: float

    @property
    def total_ns(self) -> int:
        """Idle time of a rank in a step."""
        return self.warm_up_ns + self.steady_ns + self.drain_ns


class Mesh(Struct, frozen=True, kw_only=True):
    """Groups by role, the time of each role, and the pipeline's bubble; None without a pipeline."""

    groups: tuple[MeshGroup, ...]
    roles: tuple[RoleTime, ...]
    bubble: Bubble | None = None

    def list_groups(self, role: GroupRole) -> tuple[MeshGroup, ...]:
        """Return the groups of a role, by their first rank."""
        return tuple(group for group in self.groups if group.role is role)

    def number_stages(self) -> dict[int, int]:
        """Return the pipeline stage of each rank, from 0; empty without a pipeline."""
        return {
            rank: stage
            for group in self.list_groups(GroupRole.PIPELINE)
            for stage, rank in enumerate(group.ranks)
        }
