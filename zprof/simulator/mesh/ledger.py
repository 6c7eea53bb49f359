"""Compute where the time of a job of several dimensions went: by role of the group, and the bubble."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

from zprof.simulator import operations as p
from zprof.simulator.ledger import (
    Spans,
    complement,
    find_origin,
    intersect,
    list_bounds,
    measure_length,
    unite,
    unite_all,
)  # fmt: skip
from zprof.simulator.mesh.layout import PIPELINE, ROLES, list_groups
from zprof.simulator.state import Rank, Schedule, Task


@dataclass(frozen=True, kw_only=True)
class RoleTruth:
    """For which groups the compute stream of a rank waited in a step, in ns.

    The time counts for the operation whose end the compute stream awaited, also if others ran beside it:
    `exposed_wait_ns` until the last member of the operation arrived, `exposed_transfer_ns` from there.
    """

    rank: int
    step: int
    role: str
    exposed_wait_ns: int
    exposed_transfer_ns: int


@dataclass(frozen=True, kw_only=True)
class BubbleTruth:
    """The time of a pipeline in a step in which a rank has no pass to run, in ns.

    The window is that of the whole pipeline: from the start of the first forward pass of any of its ranks to
    the end of the last backward pass. A pass lasts from its first kernel to its last. Outside of passes,
    exposed transfers are not part of the bubble, but waits are; after the last backward pass of the rank, all
    time is. `warm_up_ns` is before the rank's first backward pass, `drain_ns` after its last forward pass,
    `steady_ns` between.
    """

    rank: int
    step: int
    begin_ns: int
    end_ns: int
    warm_up_ns: int
    steady_ns: int
    drain_ns: int

    @property
    def bubble_ns(self) -> int:
        """Return the whole bubble."""
        return self.warm_up_ns + self.steady_ns + self.drain_ns


def split_waits(rank: Rank) -> dict[str, tuple[Spans, Spans]]:
    """Return by role when the compute stream of a rank waited for other ranks, and when for bytes."""
    waits: dict[str, list[tuple[int, int]]] = {role: [] for role in ROLES}
    transfers: dict[str, list[tuple[int, int]]] = {role: [] for role in ROLES}
    queues: dict[int, list[Task]] = {}
    for task in rank.tasks:
        if task.cat == "collective" and task.stream is not None:
            queues.setdefault(task.stream.name, []).append(task)
    # The operations of a stream run one after the other.
    starts, ends = (
        {name: [getattr(task, at) for task in tasks] for name, tasks in queues.items()}
        for at in ("start", "end")
    )
    for begin, end, awaited in rank.blocked:
        assert awaited.stream is not None
        name = awaited.stream.name
        for task in queues[name][bisect_right(ends[name], begin) : bisect_left(starts[name], end)]:
            assert task.collective is not None
            role, middle = ROLES[task.collective.comm], task.collective.arrived
            spans = (max(begin, task.start), min(end, middle)), (max(begin, middle), min(end, task.end))
            for rows, (first, last) in zip((waits[role], transfers[role]), spans, strict=True):
                if first < last:
                    rows.append((first, last))
    return {role: (unite(waits[role]), unite(transfers[role])) for role in ROLES}


def list_roles(schedule: Schedule) -> tuple[RoleTruth, ...]:
    """Return the exposed times by rank, step and role; roles without any are left out."""
    rows = []
    for rank in schedule.ranks:
        by_role = split_waits(rank)
        for step, (begin, end) in enumerate(list_bounds(schedule, rank)):
            within = unite([(begin, end)])
            for role, parts in by_role.items():
                wait, transfer = (measure_length(intersect(part, within)) for part in parts)
                if wait or transfer:
                    rows.append(
                        RoleTruth(
                            rank=rank.index, step=step, role=role, exposed_wait_ns=wait,
                            exposed_transfer_ns=transfer,
                        )
                    )  # fmt: skip
    return tuple(rows)


def list_bubbles(schedule: Schedule) -> tuple[BubbleTruth, ...]:
    """Return the bubble of each rank and step; none without a pipeline."""
    assert schedule.job.parallel is not None
    degrees = schedule.job.parallel.degrees
    if degrees.pipeline == 1:
        return ()
    origin = find_origin(schedule)
    rows = []
    for members in list_groups(degrees, PIPELINE):
        passes = {index: list_passes(schedule.ranks[index]) for index in members}
        moved = {
            index: unite_all(*(transfers for _, transfers in split_waits(schedule.ranks[index]).values()))
            for index in members
        }
        for step in range(schedule.job.steps):
            spans = {index: passes[index][step] for index in members}
            begin = min(start for own in spans.values() for _, start, _ in own)
            end = max(last for own in spans.values() for _, _, last in own)
            for index in members:
                parts = measure_bubble(moved[index], spans[index], begin, end)
                rows.append(
                    BubbleTruth(
                        rank=index, step=step, begin_ns=origin + begin, end_ns=origin + end,
                        warm_up_ns=parts[0], steady_ns=parts[1], drain_ns=parts[2],
                    )
                )  # fmt: skip
    return tuple(rows)


def list_passes(rank: Rank) -> list[list[tuple[bool, int, int]]]:
    """Return by step the passes of a rank: whether it is a forward pass, first start and last end."""
    spans: dict[tuple[int, int, int, int], tuple[int, int]] = {}
    for task in rank.tasks:
        key = int(task.info[0]) if task.cat == "kernel" else 0
        if not key >> 60 & 1:
            continue
        phase = key >> 32 & 0xFF
        kind = p.BACKWARD if phase == p.RECOMPUTE else phase
        name = (task.step, key >> 40 & 0xFFFFF, key >> 24 & 0xFF, kind)
        first, last = spans.get(name, (task.start, task.end))
        spans[name] = min(first, task.start), max(last, task.end)
    steps = max((name[0] for name in spans), default=-1) + 1
    found: list[list[tuple[bool, int, int]]] = [[] for _ in range(steps)]
    for (step, _, _, kind), (first, last) in spans.items():
        found[step].append((kind == p.FORWARD, first, last))
    return found


def measure_bubble(
    moved: Spans, passes: list[tuple[bool, int, int]], begin: int, end: int
) -> tuple[int, int, int]:
    """Return a rank's bubble before its first backward pass, until its last forward pass, and after both.

    `moved` are the rank's exposed transfers.
    """
    first_backward = min(start for is_forward, start, _ in passes if not is_forward)
    last_forward = max(last for is_forward, _, last in passes if is_forward)
    own_end = max(last for _, _, last in passes)
    moved = intersect(moved, unite([(begin, own_end)]))
    busy = unite_all(unite((start, last) for _, start, last in passes), moved)
    free = intersect(complement(busy), unite([(begin, end)]))
    borders = (begin, min(first_backward, end), max(first_backward, last_forward), end)
    warm_up, steady, drain = (
        measure_length(intersect(free, unite([(low, high)]))) if low < high else 0
        for low, high in pairwise(borders)
    )
    return warm_up, steady, drain
