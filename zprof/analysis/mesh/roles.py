"""Find the role of each process group from its description, else from its ranks and messages.

A description decides ("TENSOR_MODEL_PARALLEL_GROUP" of Megatron-Core, "mesh_dp_shard_cp" of torch's device
mesh). Without one:

    mostly sends, receives     pipeline; context if each rank sends to one peer and receives from another (a
    ring) mostly all_to_all          expert other collectives          the groups with the smallest distance
    between ranks are tensor-parallel, if there are
                               groups with a larger distance too; groups that only all_reduce beside others
                               that gather and scatter are replicas; the rest share states
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.model.collectives import CollectiveKind
from zprof.model.mesh import GroupRole, MeshGroup, RoleBasis

_MESSAGES = frozenset({CollectiveKind.SEND.value, CollectiveKind.RECV.value})
_GATHERS = frozenset({CollectiveKind.ALL_GATHER.value, CollectiveKind.REDUCE_SCATTER.value})
#: Patterns of descriptions in the order in which they are tried; a description is split at ``_`` and spaces.
_PATTERNS: Sequence[tuple[re.Pattern[str], GroupRole]] = tuple(
    (re.compile(pattern), role)
    for pattern, role in (
        (r"\bpp tp\b|\btp pp\b|^model parallel|embedding|\bworld\b", GroupRole.OTHER),
        (r"replicate|replica|inter (distributed|partial)", GroupRole.REPLICA),
        (r"expert.*(data|dp)|\bedp\b", GroupRole.SHARD),
        (r"expert.*tensor|tensor", GroupRole.TENSOR),
        (r"expert|\bep\b|moe", GroupRole.EXPERT),
        (r"pipeline|\bpp\b|\bpipe\b", GroupRole.PIPELINE),
        (r"data|\bdp\b|fsdp|shard|zero|ddp", GroupRole.SHARD),
        (r"context|\bcp\b|ring|ulysses", GroupRole.CONTEXT),
        (r"\btp\b|sequence|\bsp\b", GroupRole.TENSOR),
    )
)
#: Share of a group's rows that are all_to_all in a group of experts.
_ROUTED_RATIO = 0.5
#: Share of a pipeline's or a ring's rows that are sends and receives; the rest are its norms of gradients.
_MESSAGE_RATIO = 0.5


class _Group(Struct, frozen=True, kw_only=True):
    """A group with its rows: share of each kind, and whether the messages run around a ring."""

    name: str
    ranks: tuple[int, ...]
    kinds: Mapping[str, float]
    is_ring: bool

    @property
    def stride(self) -> int:
        """Distance between its first two ranks."""
        return self.ranks[1] - self.ranks[0] if len(self.ranks) > 1 else 0


def find_mesh_groups(analysis: RunAnalysis) -> tuple[MeshGroup, ...]:
    """Return each group of at least two ranks with rows in the window, with its role and what it rests on."""
    groups = _list_groups(analysis.collectives)
    descriptions = _read_descriptions(analysis)
    found = []
    for group in groups:
        role = read_description(descriptions.get(group.name, ""))
        basis = RoleBasis.MESSAGES if role is None else RoleBasis.DESCRIPTION
        found.append(
            MeshGroup(
                group=group.name,
                role=_infer_role(group, groups) if role is None else role,
                ranks=group.ranks,
                basis=basis,
            )
        )
    return tuple(sorted(found, key=lambda each: (each.role, each.ranks)))


def read_description(description: str) -> GroupRole | None:
    """Return the role that a description names; None if it names none."""
    words = re.sub(r"[_\-:/]+", " ", description.lower())
    if not words or words in ("default pg", "undefined"):
        return None
    return next((role for pattern, role in _PATTERNS if pattern.search(words)), None)


def _list_groups(rows: Columns) -> list[_Group]:
    if not len(rows):
        return []
    names, kinds = np.array(list(rows.texts("group"))), np.array(list(rows.texts("kind")))
    ranks = rows.ints("rank")
    peers = rows.ints("peer_rank") if "peer_rank" in rows else np.full(len(rows), -1)
    groups = []
    for name in np.unique(names):
        members = _parse_ranks(str(name))
        if len(members) < 2:
            continue
        mine = names == name
        found, counts = np.unique(kinds[mine], return_counts=True)
        shares = dict(zip(found.tolist(), (counts / counts.sum()).tolist(), strict=True))
        is_ring = len(members) > 2 and _is_ring(ranks[mine], peers[mine], kinds[mine])
        groups.append(_Group(name=str(name), ranks=members, kinds=shares, is_ring=is_ring))
    return groups


def _parse_ranks(name: str) -> tuple[int, ...]:
    """Return the global ranks that a group's name states; empty if unknown."""
    head = name.partition("#")[0]
    parts = head.split(",")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


def _is_ring(ranks: np.ndarray, peers: np.ndarray, kinds: np.ndarray) -> bool:
    """Return whether no rank sends to the peer from which it receives."""
    for rank in np.unique(ranks):
        mine = ranks == rank
        sent = set(peers[mine & (kinds == CollectiveKind.SEND.value)].tolist())
        received = set(peers[mine & (kinds == CollectiveKind.RECV.value)].tolist())
        if not sent or not received or sent & received:
            return False
    return True


def _infer_role(group: _Group, groups: Sequence[_Group]) -> GroupRole:
    messages = sum(share for kind, share in group.kinds.items() if kind in _MESSAGES)
    if messages >= _MESSAGE_RATIO:
        return GroupRole.CONTEXT if group.is_ring else GroupRole.PIPELINE
    if group.kinds.get(CollectiveKind.ALL_TO_ALL.value, 0.0) >= _ROUTED_RATIO:
        return GroupRole.EXPERT
    others = [
        other
        for other in groups
        if not set(other.kinds) <= _MESSAGES and CollectiveKind.ALL_TO_ALL.value not in other.kinds
    ]
    strides = {other.stride for other in others}
    if len(strides) == 1:
        return GroupRole.SHARD
    gathers = any(kind in _GATHERS for kind in group.kinds)
    some_gather = any(kind in _GATHERS for other in others for kind in other.kinds)
    if some_gather and not gathers and group.stride > min(strides):
        return GroupRole.REPLICA
    return GroupRole.TENSOR if group.stride == min(strides) and not _is_sharded(others) else GroupRole.SHARD


def _is_sharded(groups: Sequence[_Group]) -> bool:
    """Return whether only the groups with the smallest distance gather: hybrid sharding, not tensor
    parallelism."""
    smallest = min(group.stride for group in groups)
    return not any(kind in _GATHERS for group in groups if group.stride > smallest for kind in group.kinds)


def _read_descriptions(analysis: RunAnalysis) -> dict[str, str]:
    """Return the description of each group, from the ranks that recorded it."""
    run = analysis.source
    found: dict[str, str] = {}
    if run is None:
        return {}
    for rank in run.ranks:
        if run.has_table(rank, "process_group"):
            table = run.table(rank, "process_group")
            pairs = zip(table["group"].to_pylist(), table["description"].to_pylist(), strict=True)
            found.update(pairs)
    return found
