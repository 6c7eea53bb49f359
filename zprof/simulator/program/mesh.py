"""The process groups of a plan.  Ranks lie as replicas x shards x tensor, the last one fastest."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from zprof.simulator.plan import Plan


class Axis(StrEnum):
    """Along what a collective goes."""

    WORLD = "world"
    SHARD = "shard"
    REPLICATE = "replicate"
    TENSOR = "tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups along one axis: one row of ranks a group.  ``name``, ``description``: as torch has them."""

    name: str
    description: str
    members: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Ranks of one group."""
        return int(self.members.shape[1])


class Mesh:
    """The groups of every axis that has more than one rank."""

    def __init__(self, plan: Plan) -> None:
        ranks = np.arange(plan.ranks).reshape(plan.replicas, plan.shard_size, plan.tensor)
        self._groups = {
            Axis.WORLD: Groups(name="0", description="default_pg", members=ranks.reshape(1, -1)),
            Axis.SHARD: _along(ranks, 1, "1", "mesh_dp_shard"),
            Axis.REPLICATE: _along(ranks, 0, "2", "mesh_dp_replicate"),
            Axis.TENSOR: _along(ranks, 2, "3", "mesh_tp"),
        }

    def groups(self, axis: Axis) -> Groups:
        """The groups along an axis; an axis over all ranks is the default group."""
        found = self._groups[axis]
        return self._groups[Axis.WORLD] if len(found.members) == 1 else found

    def needed(self, axis: Axis) -> bool:
        """Whether there is anybody to talk to."""
        return self._groups[axis].size > 1

    def all(self) -> tuple[Groups, ...]:
        """All distinct groups that exist, the default one first."""
        found = {self.groups(axis).name: self.groups(axis) for axis in Axis if self.needed(axis)}
        world = self._groups[Axis.WORLD]
        return tuple({world.name: world, **found}.values())


def _along(ranks: NDArray[np.int64], dimension: int, name: str, description: str) -> Groups:
    members = np.moveaxis(ranks, dimension, -1).reshape(-1, ranks.shape[dimension])
    return Groups(name=name, description=description, members=np.ascontiguousarray(members))
