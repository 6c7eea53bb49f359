"""Arrange ranks in a two-dimensional mesh of data and model parallelism.

    rank = dp_index * mp_size + mp_index

Adjacent ranks share a model, so that the heavier traffic of tensor parallelism stays within a node.  Ranks
that hold the same part of the model average its gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch.distributed as dist

from zprof.reference_engine.comm.collective import Comm

CommFactory = Callable[[dist.ProcessGroup | None], Comm]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMesh:
    """This rank's coordinates in the mesh and its two groups; ``mp`` is None without model parallelism."""

    dp: Comm
    mp: Comm | None
    dp_index: int
    mp_index: int
    dp_size: int
    mp_size: int
    _groups: list[dist.ProcessGroup] = field(default_factory=list, repr=False, compare=False)

    def close(self) -> None:
        """Close both transports and destroy their groups; later calls do nothing."""
        try:
            self.dp.close()
        finally:
            if self.mp is not None:
                self.mp.close()
            # Drop all references: a group that outlives the default group aborts the process at exit.
            while self._groups:
                dist.destroy_process_group(self._groups.pop())


def check_mesh(*, world_size: int, dp: int, mp: int) -> None:
    """Check that the mesh has exactly ``world_size`` ranks.

    Raises:
        ValueError: it does not.
    """
    if dp < 1 or mp < 1:
        raise ValueError(f"dp is {dp} and mp is {mp}; both must be 1 or more")
    if dp * mp != world_size:
        raise ValueError(f"dp {dp} x mp {mp} is {dp * mp} ranks, but there are {world_size}")


def make_mesh(make_comm: CommFactory, *, dp: int, mp: int = 1) -> RankMesh:
    """Arrange the ranks of the default group in a mesh (collective).

    ``make_comm`` creates the transport of a group; None is the default group, which is the data-parallel
    group if there is no model parallelism.

    Raises:
        ValueError: ``dp`` x ``mp`` is not the number of ranks.
    """
    check_mesh(world_size=dist.get_world_size(), dp=dp, mp=mp)
    dp_index, mp_index = divmod(dist.get_rank(), mp)
    if mp == 1:
        return RankMesh(dp=make_comm(None), mp=None, dp_index=dp_index, mp_index=0, dp_size=dp, mp_size=1)
    # Every rank creates every group, in the same order: new_group() is a collective of all ranks.
    rows = [dist.new_group([row * mp + column for column in range(mp)]) for row in range(dp)]
    columns = [dist.new_group([row * mp + column for row in range(dp)]) for column in range(mp)]
    column, row = columns[mp_index], rows[dp_index]
    return RankMesh(
        dp=make_comm(column),
        mp=make_comm(row),
        dp_index=dp_index,
        mp_index=mp_index,
        dp_size=dp,
        mp_size=mp,
        _groups=[column, row],
    )
