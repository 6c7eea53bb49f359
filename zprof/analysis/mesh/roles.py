"""Find the role of each process group from its description, else from its ranks and messages.

A description decides ("TENSOR_MODEL_PARALLEL_GROUP" of Megatron-Core, "mesh_dp_shard_cp" of torch's device
mesh). Without one:

    only sends and receives    pipeline; context if each rank sends to one peer and receives from another, or
                               if other such groups have a larger distance between ranks
    mostly all_to_all          expert
    other collectives          context if they gather and scatter, and gradients are reduced over a group that
                               contains their ranks; tensor if they interrupt layers in all passes: gathers
                               and scatters in turns, or all_reduces that nothing hides, from the first
                               forward pass on; then groups that only all_reduce beside others that gather
                               and scatter are replicas; the rest share states
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.time.decomposition import parse_group_ranks
from zprof.model.collectives import CollectiveKind
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.group_roles import read_role
from zprof.model.mesh import GroupRole, MeshGroup, RoleBasis
from zprof.model.stated_mesh import StatedMesh, format_mesh, list_stated_roles

_MESSAGES = frozenset({CollectiveKind.SEND.value, CollectiveKind.RECV.value})
_GATHERS = frozenset({CollectiveKind.ALL_GATHER.value, CollectiveKind.REDUCE_SCATTER.value})
#: Share of a group's rows that are all_to_all in a group of experts.
_ROUTED_RATIO = 0.5
#: Share of a pipeline's or a ring's rows that are sends and receives; the rest are its norms of gradients.
_MESSAGE_RATIO = 0.5
#: A tensor group has at least two messages in the forward and in the backward pass of two layers; its gathers
#: and scatters take turns, its all_reduces are not hidden and begin in the first forward pass.
_MIN_LAYER_MESSAGES, _ALTERNATING_RATIO, _HIDDEN_RATIO, _FORWARD_RATIO = 8, 0.8, 0.1, 0.2
#: Groups of smaller messages only sum norms and losses.
_TINY_BYTES = 1024
#: Maximum number of groups, and of ranks of a group, in a gap.
_MAX_NAMED = 4


class _Group(Struct, frozen=True, kw_only=True):
    """A group with its rows.

    ``kinds``: share of each kind. ``is_ring``: the messages run around a ring. ``largest``: bytes of its
    largest message. ``each``: messages per rank and step. ``alternating``: share of neighboring messages of
    different kinds. ``hidden``: share of their time with concurrent compute. ``first``: place of the first
    message in the step, from 0 to 1.
    """

    name: str
    ranks: tuple[int, ...]
    kinds: Mapping[str, float]
    is_ring: bool
    largest: int
    each: float
    alternating: float
    hidden: float
    first: float

    @property
    def stride(self) -> int:
        """Distance between its first two ranks."""
        return self.ranks[1] - self.ranks[0] if len(self.ranks) > 1 else 0

    @property
    def gathers(self) -> bool:
        """True if it gathers or scatters."""
        return any(kind in _GATHERS for kind in self.kinds)

    @property
    def blocks_layers(self) -> bool:
        """True if its messages interrupt the compute of layers in forward and backward passes alike."""
        if self.each < _MIN_LAYER_MESSAGES:
            return False
        if self.gathers:
            return self.alternating >= _ALTERNATING_RATIO
        return self.hidden < _HIDDEN_RATIO and self.first < _FORWARD_RATIO


def find_mesh_groups(analysis: RunAnalysis) -> tuple[MeshGroup, ...]:
    """Return each group of at least two ranks with rows in the window, with its role and what it rests on.

    In a stated mesh, a group gets the role of its ranks, unless its description contradicts it. Groups that
    only sum norms and losses (OTHER) stay so, whatever their ranks.
    """
    groups, mesh = _list_groups(analysis), analysis.training.mesh
    descriptions = _read_descriptions(analysis)
    found = []
    for group in groups:
        described = read_role(descriptions.get(group.name, ""))
        basis = RoleBasis.MESSAGES if described is None else RoleBasis.DESCRIPTION
        role = _infer_role(group, groups) if described is None else described
        stated = list_stated_roles(mesh, group.ranks) if mesh and role is not GroupRole.OTHER else ()
        if role in stated or (stated and described is None):
            role, basis = role if role in stated else stated[0], RoleBasis.STATED
        found.append(MeshGroup(group=group.name, role=role, ranks=group.ranks, basis=basis))
    return tuple(sorted(found, key=lambda each: (each.role, each.ranks)))


def find_mesh_gaps(mesh: StatedMesh, groups: Sequence[MeshGroup]) -> tuple[Gap, ...]:
    """Return a gap for the groups that contradict the mesh that the user stated."""
    others = [
        group for group in groups if group.basis is not RoleBasis.STATED and group.role is not GroupRole.OTHER
    ]
    if not mesh or not others:
        return ()
    named = "; ".join(", ".join(map(str, group.ranks[:_MAX_NAMED])) for group in others[:_MAX_NAMED])
    more = len(others) > _MAX_NAMED or any(len(group.ranks) > _MAX_NAMED for group in others)
    return (
        make_gap(
            "stated_mesh_contradicted",
            count=len(others),
            mesh=format_mesh(mesh),
            ranks=f"{named}, ..." if more else named,
        ),
    )


def _list_groups(analysis: RunAnalysis) -> list[_Group]:
    rows = analysis.collectives
    if not len(rows):
        return []
    names, kinds = np.array(list(rows.texts("group"))), np.array(list(rows.texts("kind")))
    ranks = rows.ints("rank")
    groups = []
    for name in np.unique(names):
        members = tuple(sorted(parse_group_ranks(str(name))))
        if len(members) < 2:
            continue
        mine = names == name
        found, counts = np.unique(kinds[mine], return_counts=True)
        own = rows.at(np.flatnonzero(mine & (ranks == ranks[mine][0])))
        own = own.at(np.argsort(own.ints("start_ns"), kind="stable"))
        own_kinds = np.array(list(own.texts("kind")))
        duration_ns = (own.ints("end_ns") - own.ints("start_ns")).sum()
        groups.append(
            _Group(
                name=str(name),
                ranks=members,
                kinds=dict(zip(found.tolist(), (counts / counts.sum()).tolist(), strict=True)),
                is_ring=_is_ring(rows.at(np.flatnonzero(mine)), len(members)),
                largest=int(rows.ints("bytes")[mine].max(initial=0)),
                each=len(own) / max(1, len(np.unique(own.ints("step")))),
                alternating=float((own_kinds[1:] != own_kinds[:-1]).mean()) if len(own) > 1 else 0.0,
                hidden=float(np.nansum(own.floats("hidden_ns"))) / max(1, int(duration_ns)),
                first=_find_first_place(analysis, own),
            )
        )
    return groups


def _find_first_place(analysis: RunAnalysis, rows: Columns) -> float:
    """Return where in a rank's step the first of these messages starts, from 0 to 1: the median of its steps.

    A step ends with its last message.
    """
    rank = rows.ints("rank")[0]
    steps = analysis.steps.at(analysis.steps.ints("rank") == rank)
    everything = analysis.collectives.at(analysis.collectives.ints("rank") == rank)
    places = []
    for step, wall_ns in zip(steps.ints("step").tolist(), steps.ints("wall_ns").tolist(), strict=True):
        starts = rows.ints("start_ns")[rows.ints("step") == step]
        if len(starts) and wall_ns > 0:
            end_ns = everything.ints("end_ns")[everything.ints("step") == step].max()
            places.append(1 - (end_ns - starts.min()) / wall_ns)
    return float(np.median(places)) if places else 1.0


def _is_ring(rows: Columns, size: int) -> bool:
    """Return whether no rank sends to the peer from which it receives.

    In a ring of two, both ranks begin a step by sending and receiving at the same time; in a pipeline of two,
    one of them sends first.
    """
    peers = rows.ints("peer_rank", -1) if "peer_rank" in rows else np.full(len(rows), -1)
    is_send, is_receive = (
        rows.texts("kind").equals(kind.value) for kind in (CollectiveKind.SEND, CollectiveKind.RECV)
    )
    start_ns, end_ns = rows.ints("start_ns"), rows.ints("end_ns")
    for rank in np.unique(rows.ints("rank")):
        mine = rows.ints("rank") == rank
        sends, receives = np.flatnonzero(mine & is_send), np.flatnonzero(mine & is_receive)
        if not len(sends) or not len(receives):
            return False
        if size > 2 and set(peers[sends].tolist()) & set(peers[receives].tolist()):
            return False
        first, other = sends[start_ns[sends].argmin()], receives[start_ns[receives].argmin()]
        if size == 2 and max(start_ns[first], start_ns[other]) >= min(end_ns[first], end_ns[other]):
            return False
    return True


def _infer_role(group: _Group, groups: Sequence[_Group]) -> GroupRole:
    messages = sum(share for kind, share in group.kinds.items() if kind in _MESSAGES)
    if messages >= _MESSAGE_RATIO:
        is_inner = any(set(other.kinds) <= _MESSAGES and other.stride > group.stride for other in groups)
        return GroupRole.CONTEXT if group.is_ring or is_inner else GroupRole.PIPELINE
    if group.kinds.get(CollectiveKind.ALL_TO_ALL.value, 0.0) >= _ROUTED_RATIO:
        return GroupRole.EXPERT
    if group.largest <= _TINY_BYTES and group.each < _MIN_LAYER_MESSAGES:
        return GroupRole.OTHER
    if _exchanges_context(group, groups):
        return GroupRole.CONTEXT
    if group.blocks_layers:
        return GroupRole.TENSOR
    others = [
        other
        for other in groups
        if not set(other.kinds) <= _MESSAGES
        and CollectiveKind.ALL_TO_ALL.value not in other.kinds
        and not _exchanges_context(other, groups)
        and other.largest > _TINY_BYTES
    ]
    has_tensor = any(other.blocks_layers for other in others)
    others = [other for other in others if not other.blocks_layers]
    strides = {other.stride for other in others}
    if len(strides) < 2:
        return GroupRole.SHARD
    some_gather = any(other.gathers for other in others)
    if some_gather and not group.gathers and group.stride > min(strides):
        return GroupRole.REPLICA
    is_nearest = group.stride == min(strides)
    return GroupRole.TENSOR if is_nearest and not has_tensor and not _is_sharded(others) else GroupRole.SHARD


def _exchanges_context(group: _Group, groups: Sequence[_Group]) -> bool:
    """Return whether a group gathers and scatters, and more ranks, or the same ones in another group, reduce.

    The ranks of a context group have the same parameters, so a group of these and more ranks reduces
    gradients. A group that only gathers may have the parameters of a node (hpZ).
    """
    if not set(group.kinds) >= _GATHERS:
        return False
    reduces = (CollectiveKind.REDUCE_SCATTER.value, CollectiveKind.ALL_REDUCE.value)
    return any(
        other.name != group.name
        and set(group.ranks) <= set(other.ranks)
        and other.largest > _TINY_BYTES
        and any(kind in reduces for kind in other.kinds)
        and not other.blocks_layers
        and (len(other.ranks) > len(group.ranks) or other.each < group.each)
        for other in groups
    )


def _is_sharded(groups: Sequence[_Group]) -> bool:
    """Return whether only the groups with the smallest distance gather: hybrid sharding, not tensor
    parallelism."""
    smallest = min(group.stride for group in groups)
    return not any(group.gathers for group in groups if group.stride > smallest)


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
