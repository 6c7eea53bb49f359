"""Attribute exposed time to the kinds of parallelism, and measure the bubble of a pipeline.

The bubble is what a rank waits for other stages: in messages of its pipeline group, and in collectives of
groups that span stages (gradient norms), where a stage that has finished waits for the last one. A rank warms
up until its first receive of a step has arrived; it drains in collectives that span stages; other waits are
steady.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from zprof.analysis.analysis import RunAnalysis, count_steps, mean_wall_ns
from zprof.analysis.columns import Columns, Floats, Mask
from zprof.analysis.mesh.roles import find_mesh_groups
from zprof.model.collectives import CollectiveKind
from zprof.model.mesh import Bubble, GroupRole, Mesh, MeshGroup, RoleTime

#: The last of two ranks has several chunks if it sends before this share of the compute of one message.
_EARLY_RATIO = 0.58
_MAX_CHUNKS = 9


def measure_mesh(analysis: RunAnalysis) -> Mesh | None:
    """Return the mesh of a job; None if it has a single kind of group, or none."""
    groups = find_mesh_groups(analysis)
    if (
        not (groups and analysis.training.mesh)
        and len({group.role for group in groups}) < 2
        and not any(
            group.role in (GroupRole.PIPELINE, GroupRole.EXPERT, GroupRole.CONTEXT) for group in groups
        )
    ):
        return None
    return Mesh(
        groups=groups,
        roles=tuple(_sum_roles(analysis, groups)),
        bubble=measure_bubble(analysis, groups),
    )


def select_role(rows: Columns, groups: tuple[MeshGroup, ...], role: GroupRole) -> Columns:
    """Return the rows of the groups of a role."""
    names = {group.group for group in groups if group.role is role}
    return rows.at(rows.texts("group").equals(*names))


def _sum_roles(analysis: RunAnalysis, groups: tuple[MeshGroup, ...]) -> Iterator[RoleTime]:
    rows = analysis.collectives
    steps = max(1, count_steps(analysis))
    for role in GroupRole:
        members = [group for group in groups if group.role is role]
        if not members:
            continue
        mine = select_role(rows, groups, role)
        ranks = max(1, len(np.unique(mine.ints("rank"))))
        each = ranks * steps
        yield RoleTime(
            role=role,
            size=max(len(group.ranks) for group in members),
            groups=len(members),
            messages=len(mine) / each,
            bytes=round(float(mine.ints("bytes").sum()) / each),
            exposed_wait_ns=_mean(mine, "exposed_wait_ns", each),
            exposed_transfer_ns=_mean(mine, "exposed_transfer_ns", each),
        )


def _mean(rows: Columns, column: str, count: int) -> int:
    return round(float(np.nansum(rows.floats(column))) / count)


def measure_bubble(analysis: RunAnalysis, groups: tuple[MeshGroup, ...]) -> Bubble | None:
    """Return the bubble of the job's pipelines; None without a pipeline or without steps."""
    pipelines = [group for group in groups if group.role is GroupRole.PIPELINE]
    count = len(analysis.steps)
    if not pipelines or not count:
        return None
    messages = select_role(analysis.collectives, groups, GroupRole.PIPELINE)
    spanning = {group.group for group in groups if _spans_stages(group, pipelines)}
    ends = analysis.collectives.at(analysis.collectives.texts("group").equals(*spanning))
    stages = max(len(group.ranks) for group in pipelines)
    micro_batches, virtual = count_micro_batches(messages, pipelines, _mean_compute_ns(analysis))
    waits = _read_waits(messages)
    first = _mark_first_receives(messages)
    warm_up, steady = float(waits[first].sum()) / count, float(waits[~first].sum()) / count
    drain = float(_read_waits(ends).sum()) / count
    wall = mean_wall_ns(analysis)
    return Bubble(
        stages=stages,
        micro_batches=micro_batches,
        virtual=virtual,
        warm_up_ns=round(warm_up),
        steady_ns=round(steady),
        drain_ns=round(drain),
        share_ratio=(warm_up + steady + drain) / wall if wall else 0.0,
        ideal_ratio=(stages - 1) / (micro_batches * virtual + stages - 1),
    )


def _mean_compute_ns(analysis: RunAnalysis) -> dict[int, float]:
    """Return the compute of each rank per step."""
    ranks = analysis.steps.group_by("rank")
    numbers = analysis.steps.ints("rank")[ranks.first].tolist()
    sums = ranks.sum(analysis.steps.floats("compute_ns")) / ranks.sizes
    return dict(zip(numbers, sums.tolist(), strict=True))


def count_micro_batches(
    messages: Columns, pipelines: Sequence[MeshGroup], compute_ns: Mapping[int, float]
) -> tuple[int, int]:
    """Return micro-batches per step and model chunks per stage.

    The first stage sends one activation to the second for each micro-batch and chunk. With several chunks it
    also receives activations from the last stage and sends gradients back to it, for all chunks but one.

    In a pipeline of two ranks these are the same rank, so m (2 v - 1) messages may have any v. With one
    chunk the last rank sends nothing before its first micro-batch went forward and backward (two thirds of it
    with split weight gradients), with several chunks it sends after the forward of one chunk.

    Args:
        messages: Sends and receives of the pipelines.
        pipelines: Their groups.
        compute_ns: Compute of each rank per step.
    """
    group = max(pipelines, key=lambda each: len(each.ranks))
    first, second, last = group.ranks[0], group.ranks[1], group.ranks[-1]
    rank, peer = messages.ints("rank"), messages.ints("peer_rank", -1)
    is_send = messages.texts("kind").equals(CollectiveKind.SEND.value)
    steps = max(1, len(np.unique(messages.ints("step")[rank == first])))
    forward = int((is_send & (rank == first) & (peer == second)).sum()) / steps
    if len(group.ranks) == 2:
        count = round(forward)
        is_chunked = _sends_early(messages.at(rank == last), count, compute_ns.get(last, 0.0))
        virtual = next((v for v in range(2, _MAX_CHUNKS) if count % (2 * v - 1) == 0), 1) if is_chunked else 1
        return max(1, count // (2 * virtual - 1)), virtual
    wrapped = int((is_send & (rank == first) & (peer == last)).sum()) / steps
    if wrapped and forward > wrapped:  # m v and m (v - 1)
        micro_batches = round(forward - wrapped)
        return max(1, micro_batches), max(1, round(forward / micro_batches))
    return max(1, round(forward)), 1


def _sends_early(messages: Columns, count: int, compute_ns: float) -> bool:
    """Return whether the last rank sends long before its share of ``count`` messages is computed."""
    is_send = messages.texts("kind").equals(CollectiveKind.SEND.value)
    step, start, end = messages.ints("step"), messages.ints("start_ns"), messages.ints("end_ns")
    times = []
    for number in np.unique(step):
        sent, received = (step == number) & is_send, (step == number) & ~is_send
        if sent.any() and received.any():
            times.append(start[sent].min() - end[received].min())
    return bool(times) and float(np.median(times)) < _EARLY_RATIO * compute_ns / max(1, count)


def _spans_stages(group: MeshGroup, pipelines: Sequence[MeshGroup]) -> bool:
    if group.role is not GroupRole.OTHER and group.role is not GroupRole.SHARD:
        return False
    return any(len(set(group.ranks) & set(pipeline.ranks)) > 1 for pipeline in pipelines)


def _read_waits(rows: Columns) -> Floats:
    return np.nan_to_num(rows.floats("exposed_wait_ns")) if len(rows) else np.zeros(0)


def _mark_first_receives(messages: Columns) -> Mask:
    """Return which rows are the first receive of a rank in a step."""
    is_receive = messages.texts("kind").equals(CollectiveKind.RECV.value)
    order = np.lexsort((messages.ints("start_ns"), messages.ints("step"), messages.ints("rank")))
    order = order[is_receive[order]]
    rank, step = messages.ints("rank")[order], messages.ints("step")[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (rank[1:] != rank[:-1]) | (step[1:] != step[:-1])
    first = np.zeros(len(messages), dtype=bool)
    first[order[begins]] = True
    return first
