"""Name what a process group connects: replicas, tensor-parallel ranks, pipeline stages, and so on.

Frameworks describe groups in the suffix of their name ("0,4#mesh_dp_replicate"). Most groups have no suffix,
so replicas are also recognized by their traffic: ranks of different sharding groups that all_reduce what the
reduce_scatters left of the gradients.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns, Floats
from zprof.analysis.group_roles import GroupRole, find_role
from zprof.analysis.time.collective_rows import parse_group_ranks, select_kind
from zprof.model.collectives import CollectiveKind

_REPLICAS = "between the replicas"
_PLACES: Mapping[GroupRole, str] = {
    GroupRole.REPLICA: _REPLICAS,
    GroupRole.EXPERT: "of expert parallelism",
    GroupRole.TENSOR: "of tensor parallelism",
    GroupRole.PIPELINE: "of the pipeline",
    GroupRole.CONTEXT: "of context parallelism",
    GroupRole.DATA: "of data parallelism",
}
#: Shards are padded, so that the bytes of replicas are not exactly those of the shards.
_MAX_PADDING_RATIO = 0.1


class GroupPlaces(Struct, frozen=True):
    """Where groups lie in a job; built once, from the collectives of all ranks."""

    collectives: Columns
    world_size: int

    def describe(self, group: str, size: int) -> str:
        """Return words that follow the kind of a collective: "between the replicas"."""
        role = find_role(group.partition("#")[2])
        if role is not None:
            return _PLACES[role]
        if self._connects_replicas(group):
            return _REPLICAS
        return "of all ranks" if size in (0, self.world_size) else f"in groups of {size} ranks"

    def _connects_replicas(self, group: str) -> bool:
        """Return True if each rank has its own sharding group and reduces its shard of the gradients."""
        ranks = parse_group_ranks(group)
        rows = self.collectives.at(np.isin(self.collectives.ints("rank"), sorted(ranks)))
        scatters = select_kind(rows, CollectiveKind.REDUCE_SCATTER)
        reduces = select_kind(rows.at(rows.texts("group").equals(group)), CollectiveKind.ALL_REDUCE)
        if not ranks or not len(scatters) or not len(reduces):
            return False
        groups = scatters.texts("group").list_distinct()
        if any(len(ranks & parse_group_ranks(name)) != 1 for name in groups):
            return False
        shard_bytes = _sum_by_rank(scatters, scatters.ints("bytes") / scatters.ints("group_size"))
        reduced_bytes = _sum_by_rank(reduces, reduces.floats("bytes"))
        return all(
            shard_bytes.get(rank, 0.0) > 0 and abs(reduced / shard_bytes[rank] - 1) <= _MAX_PADDING_RATIO
            for rank, reduced in reduced_bytes.items()
        )


def _sum_by_rank(rows: Columns, values: Floats) -> dict[int, float]:
    ranks = rows.group_by("rank")
    return dict(zip(rows.ints("rank")[ranks.first].tolist(), ranks.sum(values).tolist(), strict=True))
