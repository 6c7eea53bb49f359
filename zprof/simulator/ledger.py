"""Compute the true times of a simulated job's steps and collectives, by set arithmetic on intervals.

All times are ns.  Times are on the true clock, which starts at `find_origin`; a rank's own clock shows them
as origin + offset + (instant - origin) * (1 + drift).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from zprof.simulator import operations as p
from zprof.simulator.state import Rank, Schedule, Task
from zprof.simulator.trace_writer import Clock

Spans = np.ndarray
"""Sorted, disjoint rows of start and end."""


@dataclass(frozen=True, kw_only=True)
class CollectiveTruth:
    """One collective on one rank.

    `wait_ns` is the time until the last rank (`late_rank`) arrives, which is `lead_ns` after the second to
    last rank; `transfer_ns` is the rest.  `bytes`: size of the full tensor. `number`: position in the
    sequence of its group, `ranks`.
    """

    rank: int
    step: int
    kind: str
    ranks: tuple[int, ...]
    number: int
    bytes: int
    dtype: str
    start_ns: int
    end_ns: int
    wait_ns: int
    transfer_ns: int
    late_rank: int
    lead_ns: int


@dataclass(frozen=True, kw_only=True)
class StepTruth:
    """One step of one rank: wall = compute + exposed_wait + exposed_transfer + exposed_memcpy + idle.

    On a device it lasts from the end of the work launched before its start to the end of the work launched
    before its end, on a CPU rank from start to end.  Collective time is exposed if no compute overlaps it; on
    a CPU rank, if the main thread waits for it. If two collectives overlap, the time belongs to the one that
    started first.
    """

    rank: int
    step: int
    begin_ns: int
    end_ns: int
    wall_ns: int
    compute_ns: int
    collective_ns: int
    overlapped_ns: int
    exposed_wait_ns: int
    exposed_transfer_ns: int
    exposed_memcpy_ns: int
    idle_ns: int


def find_origin(schedule: Schedule) -> int:
    """Return the true clock at the start of the simulation."""
    return Clock(schedule.job, 0).origin


def list_collectives(schedule: Schedule) -> tuple[CollectiveTruth, ...]:
    """Return each collective of each rank, and each send and receive, in order of their creation."""
    origin = find_origin(schedule)
    rows = []
    for operation in schedule.collectives:
        starts = sorted((task.start, rank) for rank, task in operation.tasks.items())
        lead_ns = starts[-1][0] - starts[-2][0] if len(starts) > 1 else 0
        for rank, task in operation.tasks.items():
            kind, _, sent, got, itemsize = task.info[:5]
            if operation.sender >= 0:
                kind = "send" if operation.sender == rank else "recv"
            rows.append(
                CollectiveTruth(
                    rank=rank,
                    step=task.step,
                    kind=str(kind),
                    ranks=operation.members,
                    number=operation.number,
                    bytes=max(int(sent), int(got)) * int(itemsize),
                    dtype=p.DTYPES[int(itemsize)],
                    start_ns=origin + task.start,
                    end_ns=origin + task.end,
                    wait_ns=operation.arrived - task.start,
                    transfer_ns=task.end - operation.arrived,
                    late_rank=starts[-1][1],
                    lead_ns=lead_ns,
                )
            )
    return tuple(rows)


def measure_steps(schedule: Schedule, rank: Rank) -> list[StepTruth]:
    """Return the steps of a rank."""
    origin, on_cpu = find_origin(schedule), schedule.job.on_cpu
    collectives = sorted((t for t in rank.tasks if t.cat == "collective"), key=lambda t: t.start)
    compute, running, copies = (
        unite((task.start, task.end) for task in rank.tasks if task.cat == cat)
        for cat in ("kernel", "collective", "memcpy")
    )
    free = find_waits(rank) if on_cpu else complement(compute)
    blocked = unite_all(intersect(running, free))
    wait, transfer = split_blocked(collectives, blocked)
    busy = unite_all(compute, blocked)
    parts = (compute, running, blocked, wait, transfer, unite_all(busy, copies), busy)
    steps = []
    for step, (begin, end) in enumerate(list_bounds(schedule, rank)):
        within = [measure_length(intersect(spans, np.array([[begin, end]]))) for spans in parts]
        compute_ns, collective_ns, exposed_ns, wait_ns, transfer_ns, all_ns, busy_ns = within
        steps.append(
            StepTruth(
                rank=rank.index,
                step=step,
                begin_ns=origin + begin,
                end_ns=origin + end,
                wall_ns=end - begin,
                compute_ns=compute_ns,
                collective_ns=collective_ns,
                overlapped_ns=collective_ns - exposed_ns,
                exposed_wait_ns=wait_ns,
                exposed_transfer_ns=transfer_ns,
                exposed_memcpy_ns=all_ns - busy_ns,
                idle_ns=end - begin - all_ns,
            )
        )
    return steps


def list_bounds(schedule: Schedule, rank: Rank) -> list[tuple[int, int]]:
    """Return the start and end of each step of a rank, from the step marks in its trace."""
    marks = [(begin + 1_000 * (step > 0), end) for step, (begin, end) in enumerate(rank.step_host)]
    if schedule.job.on_cpu:
        return marks
    latency_ns = schedule.job.host.latency_ns
    work = sorted((task.avail - latency_ns, task.end) for task in rank.tasks)
    launches = np.array([launch for launch, _ in work])
    last = np.maximum.accumulate([end for _, end in work])

    def find_end(mark: int) -> int:
        before = int(np.searchsorted(launches, mark))
        return max(mark, int(last[before - 1])) if before else mark

    return [(find_end(begin), find_end(end)) for begin, end in marks]


def find_waits(rank: Rank) -> Spans:
    """Return when the main thread of a CPU rank waited."""
    rows = [(int(row[3]), int(row[3]) + int(row[4])) for row in rank.host_rows if row[0] == "wait"]
    return unite(rows)


def split_blocked(collectives: Sequence[Task], blocked: Spans) -> tuple[Spans, Spans]:
    """Split the blocked time of a rank into waiting for other ranks and moving bytes."""
    wait, transfer, until = [], [], 0
    for task in collectives:
        assert task.collective is not None
        start, middle = max(task.start, until), max(task.start, until, task.collective.arrived)
        wait.append((start, min(middle, task.end)))
        transfer.append((min(middle, task.end), task.end))
        until = max(until, task.end)
    waits, transfers = (unite(span for span in spans if span[0] < span[1]) for spans in (wait, transfer))
    return intersect(waits, blocked), intersect(transfers, blocked)


def unite(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return the union of intervals."""
    merged: list[list[int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return np.array(merged, dtype=np.int64).reshape(-1, 2)


def unite_all(*sets: Spans) -> Spans:
    """Return the union of several sets of intervals."""
    return unite((int(start), int(end)) for spans in sets for start, end in spans)


def complement(spans: Spans) -> Spans:
    """Return the time covered by no interval."""
    edges = np.concatenate(([np.iinfo(np.int64).min], spans.ravel(), [np.iinfo(np.int64).max]))
    return edges.reshape(-1, 2)


def intersect(one: Spans, other: Spans) -> Spans:
    """Return the time covered by both."""
    pieces = []
    if len(other):
        first = np.searchsorted(other[:, 1], one[:, 0], side="right")
        stop = np.searchsorted(other[:, 0], one[:, 1], side="left")
        for (start, end), low, high in zip(one.tolist(), first.tolist(), stop.tolist(), strict=True):
            pieces += [(max(start, b), min(end, e)) for b, e in other[low:high].tolist()]
    return np.array(pieces, dtype=np.int64).reshape(-1, 2)


def measure_length(spans: Spans) -> int:
    """Return the length of disjoint intervals."""
    return int((spans[:, 1] - spans[:, 0]).sum())


def count_parameter_bytes(schedule: Schedule) -> int:
    """Return the bytes of parameters and gradients in the first step, an all-reduce counted twice."""
    total = 0
    for task in schedule.ranks[0].tasks:
        if task.cat == "collective" and task.step == 0 and task.kind != p.TENSOR_COMM:
            kind, _, sent, got, itemsize, _ = task.info
            size = max(int(sent), int(got))
            total += size * int(itemsize) * (2 if kind == "all_reduce" else 1) if size > 1 else 0
    return total
