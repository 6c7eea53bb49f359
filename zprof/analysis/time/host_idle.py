"""Make the table ``host``: what the host did while its device was idle, one row per rank and step.

``idle_ns`` is the ledger's; the columns ``<part>_ns`` sum to it. On a device, parts take precedence in this
order: data loader, allocator, optimizer on the host, rate limiter, waits for the device, launch (the queue
was empty), other. ``<part>_largest_ns`` is the loss of its longest occurrence, ``<part>_exposed_ns`` exposed
transfer with an empty queue meanwhile, ``<part>_under_ns`` the part under which a collective ran.

``syncs`` counts waits for the device, ``dry_syncs`` those that left it idle, ``takes`` and ``gives`` calls
that take memory from the device and give it back, ``loads`` batches requested from the loader.
``read_exposed_ns``: exposed transfer that a CPU rank waited for right after it read a scalar, which happened
``held_reads`` times. ``host_copy_ns``: exposed copies between host and device of 1 MiB or more,
``to_host_bytes`` and ``to_device_bytes`` their sizes. ``launches_seen``: the recording shows when the host
launched; otherwise the queue is unknown, and nothing is LAUNCH. ``is_inference``: the recording has
operators, but no backward and no optimizer. ``is_compiled``: torch.compile made some of the code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, covered, intersect, intervals, subtract, union
from zprof.analysis.time.host_calls import HostCalls
from zprof.analysis.time.rank import RankResult
from zprof.analysis.time.steps import StepWindows
from zprof.analysis.time.timeline import RankTimeline

#: A wait leaves the queue empty: the empty queue is attributed to it for at most this long after it.
MAX_GAP_AFTER_NS = 1_000_000
#: An optimizer that launches nothing for this long computes on the host.
_MIN_ON_HOST_NS = 1_000_000


class IdlePart(StrEnum):
    """Activity of the host while the device is idle."""

    LOADER = "loader"
    ALLOCATOR = "allocator"
    LIMITER = "limiter"
    SYNC = "sync"
    OPTIMIZER = "optimizer"
    COPY = "copy"
    LAUNCH = "launch"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleShares:
    """Idle time by part, and exposed transfer with an empty queue by part.

    ``calls``: the host calls of each part that consists of calls.
    """

    idle: Mapping[IdlePart, Intervals]
    exposed: Mapping[IdlePart, Intervals]
    calls: Mapping[IdlePart, Intervals]

    def largest_ns(self, part: IdlePart, begin_ns: Int64s) -> Int64s:
        """Return the idle time of the longest occurrence of a part in each step; steps are given by start.

        An occurrence is one call including the gap after it, or else one unbroken stretch.
        """
        spans = self.idle.get(part, EMPTY)
        events = spans
        if part in self.calls:
            until = self.calls[part][:, 1] + MAX_GAP_AFTER_NS
            following = np.append(self.calls[part][1:, 0], np.iinfo(np.int64).max)
            events = intervals(self.calls[part][:, 0], np.minimum(until, following))
        lost = covered(spans, events[:, 0], events[:, 1])
        step = np.searchsorted(begin_ns, events[:, 1], side="left") - 1
        found = np.zeros(len(begin_ns), dtype=np.int64)
        np.maximum.at(found, step[step >= 0], lost[step >= 0])
        return found


def split_device_idle(idle: Intervals, moving: Intervals, pending: Intervals, calls: HostCalls) -> IdleShares:
    """Return the idle parts of a rank with a device.

    Args:
        idle: When the device was idle, the intervals behind the ledger's term.
        moving: When it was held up by a transfer.
        pending: When work had been launched and had not started.
        calls: Calls of its host.
    """
    starved = subtract(idle, pending)
    behind = idle[covered(starved, idle[:, 0], idle[:, 1]) > 0]
    limited = covered(calls.limiter, calls.sync[:, 0], calls.sync[:, 1]) > 0
    ordered = {
        IdlePart.LOADER: _extend_by_gap(calls.loader, idle),
        IdlePart.ALLOCATOR: _extend_by_gap(calls.allocator, idle),
        IdlePart.OPTIMIZER: _keep_long(subtract(intersect(starved, calls.optimizer), calls.sync)),
        IdlePart.LIMITER: _extend_by_gap(calls.sync[limited], idle),
        IdlePart.SYNC: _extend_by_gap(calls.sync[~limited], idle),
        IdlePart.LAUNCH: behind,
    }
    empty = {**ordered, IdlePart.OPTIMIZER: calls.optimizer, IdlePart.LAUNCH: moving}
    return IdleShares(
        idle=_share_out(idle, ordered),
        exposed=_share_out(subtract(moving, pending), empty),
        calls={
            IdlePart.LOADER: calls.loader,
            IdlePart.ALLOCATOR: calls.allocator,
            IdlePart.OPTIMIZER: calls.optimizer,
            IdlePart.LIMITER: calls.sync[limited],
            IdlePart.SYNC: calls.sync[~limited],
        },
    )


def split_cpu_idle(idle: Intervals, copies: Intervals, calls: HostCalls) -> IdleShares:
    """Return the idle parts of a CPU rank; ``copies`` are those of its main thread."""
    ordered = {
        IdlePart.LOADER: calls.loader,
        IdlePart.COPY: copies,
        IdlePart.OTHER: calls.collective,
        IdlePart.LAUNCH: idle,
    }
    return IdleShares(idle=_share_out(idle, ordered), exposed={}, calls={IdlePart.LOADER: calls.loader})


def _share_out(whole: Intervals, ordered: Mapping[IdlePart, Intervals]) -> dict[IdlePart, Intervals]:
    """Return each part without what earlier parts took; OTHER is the remainder, so that all sum up."""
    shares: dict[IdlePart, Intervals] = {}
    for part, spans in ordered.items():
        shares[part] = intersect(whole, spans)
        whole = subtract(whole, spans)
    shares[IdlePart.OTHER] = union(whole, shares.get(IdlePart.OTHER, whole[:0]))
    return shares


def _extend_by_gap(calls: Intervals, idle: Intervals) -> Intervals:
    """Return the calls, each extended by the idle time after it that the host's lead would have hidden.

    The lead that a call used up is the work that the device still had, that is, what it ran during the call.
    """
    begin, end = calls.T
    lead = end - begin - covered(idle, begin, end)
    return union(calls, _find_gaps_behind(end, np.minimum(lead, MAX_GAP_AFTER_NS), idle))


def _find_gaps_behind(ends: Int64s, most_ns: Int64s, idle: Intervals) -> Intervals:
    if not len(idle) or not len(ends):
        return idle[:0]
    index = np.maximum(np.searchsorted(idle[:, 0], ends, side="right") - 1, 0)
    until = np.where(idle[index, 0] <= ends, np.minimum(idle[index, 1], ends + most_ns), ends)
    return intervals(ends, np.maximum(ends, until))


def _keep_long(spans: Intervals) -> Intervals:
    return spans[spans[:, 1] - spans[:, 0] >= _MIN_ON_HOST_NS]


#: Copies of at least this size are parameters, gradients or a batch; smaller ones are scalars and indices.
_LARGE_BYTES = 1 << 20
#: A wait that starts this soon after reading a scalar, or after such a wait, belongs to the read.
_READ_MARGIN_NS = np.array([0, 200_000], dtype=np.int64)
_COUNT_COLUMNS = ("syncs", "dry_syncs", "held_reads", "takes", "gives", "loads", "read_exposed_ns")
_COPY_COLUMNS = ("host_copy_ns", "to_host_bytes", "to_device_bytes")
HostColumns = dict[str, Int64s | list[int] | int]
HOST_COLUMNS = (
    "rank",
    "step",
    "on_device",
    "launches_seen",
    "is_inference",
    "is_compiled",
    "idle_ns",
    *(
        f"{part}{suffix}"
        for part in IdlePart
        for suffix in ("_ns", "_largest_ns", "_exposed_ns", "_under_ns")
    ),
    *_COUNT_COLUMNS,
    *_COPY_COLUMNS,
)


def make_host_rows(timeline: RankTimeline, result: RankResult, calls: HostCalls) -> pd.DataFrame:
    """Return the rows of one rank, with columns ``HOST_COLUMNS``; all inputs are on the common clock."""
    activity, steps = timeline.activity, timeline.steps
    pending = _find_pending(activity.kernels, result.collectives, calls)
    shares = (
        split_device_idle(result.idle, result.exposure.moving, pending, calls)
        if activity.on_device
        else split_cpu_idle(result.idle, activity.copies, calls)
    )
    rows: HostColumns = {
        "rank": timeline.rank,
        "step": steps.number,
        "on_device": activity.on_device,
        "launches_seen": not activity.on_device or len(pending) > 0,
        "is_inference": calls.is_inference,
        "is_compiled": len(calls.compiled) > 0,
        "idle_ns": covered(result.idle, steps.begin_ns, steps.end_ns),
        **_part_columns(shares, result.ran, steps),
        **_call_columns(shares, calls, timeline),
        **_read_columns(result.exposure.moving, activity.waits, calls.read, steps),
        **_copy_columns(subtract(activity.copies, union(activity.compute, result.ran)), calls, timeline),
    }
    return pd.DataFrame({name: rows[name] for name in HOST_COLUMNS})


def _find_pending(kernels: Int64s, collectives: pd.DataFrame, calls: HostCalls) -> Intervals:
    launch, start = (
        collectives[name].fillna(0).to_numpy(np.int64) for name in ("launch_start_ns", "start_ns")
    )
    seen = (launch > 0) & collectives["stream"].notna().to_numpy()
    return union(kernels[:, :2], intervals(launch[seen], start[seen]), calls.copies.pending)


def _part_columns(shares: IdleShares, ran: Intervals, steps: StepWindows) -> HostColumns:
    columns: HostColumns = {}
    for part in IdlePart:
        spans = shares.idle.get(part, EMPTY)
        behind = shares.exposed.get(part, EMPTY)
        columns[f"{part}_ns"] = covered(spans, steps.begin_ns, steps.end_ns)
        columns[f"{part}_largest_ns"] = shares.largest_ns(part, steps.begin_ns)
        columns[f"{part}_exposed_ns"] = covered(behind, steps.begin_ns, steps.end_ns)
        columns[f"{part}_under_ns"] = covered(intersect(spans, ran), steps.begin_ns, steps.end_ns)
    return columns


def _call_columns(shares: IdleShares, calls: HostCalls, timeline: RankTimeline) -> HostColumns:
    sync = calls.sync if timeline.activity.on_device else calls.read
    idle = shares.idle.get(IdlePart.SYNC, EMPTY)
    dry = covered(union(idle), sync[:, 0], sync[:, 1] + 1) > 0
    starts = {
        "syncs": sync[:, 0],
        "dry_syncs": sync[dry, 0],
        "takes": calls.takes,
        "gives": calls.gives,
        "loads": calls.loader[:, 0],
    }
    return {name: _count_per_step(times, timeline.host_steps) for name, times in starts.items()}


def _copy_columns(exposed: Intervals, calls: HostCalls, timeline: RankTimeline) -> HostColumns:
    steps, copies = timeline.steps, calls.copies
    if not timeline.activity.on_device:
        host_copy = covered(exposed, steps.begin_ns, steps.end_ns)
        return {"host_copy_ns": host_copy, "to_host_bytes": 0, "to_device_bytes": 0}
    large = copies.size_bytes >= _LARGE_BYTES
    spans = intersect(union(copies.spans[large]), exposed)
    sides = {"to_host_bytes": large & copies.to_host, "to_device_bytes": large & ~copies.to_host}
    return {
        "host_copy_ns": covered(spans, steps.begin_ns, steps.end_ns),
        **{
            name: _sum_per_step(copies.spans[mine, 0], copies.size_bytes[mine], steps)
            for name, mine in sides.items()
        },
    }


def _count_per_step(times_ns: Int64s, steps: StepWindows) -> list[int]:
    return _sum_per_step(times_ns, np.ones(len(times_ns), dtype=np.int64), steps)


def _sum_per_step(times_ns: Int64s, amounts: Int64s, steps: StepWindows) -> list[int]:
    """Return the sum of the amounts in each step, in the order of the steps."""
    step = steps.step_at(times_ns)
    return [int(amounts[step == number].sum()) for number in steps.number.tolist()]


def _read_columns(moving: Intervals, waits: Intervals, read: Intervals, steps: StepWindows) -> HostColumns:
    """Return exposed transfer in waits that closely follow a scalar read, or another such wait."""
    runs = union(waits + _READ_MARGIN_NS, read + _READ_MARGIN_NS)
    if not len(read) or not len(runs):
        return {"read_exposed_ns": 0, "held_reads": 0}
    begin = runs[np.maximum(np.searchsorted(runs[:, 0], waits[:, 0], side="right") - 1, 0), 0]
    last = np.searchsorted(read[:, 0], waits[:, 0], side="right") - 1
    behind = (last >= 0) & (read[np.maximum(last, 0), 0] >= begin)
    held_up = intersect(moving, waits[behind])
    holding = read[np.unique(last[behind & (covered(moving, waits[:, 0], waits[:, 1]) > 0)]), 0]
    return {
        "read_exposed_ns": covered(held_up, steps.begin_ns, steps.end_ns),
        "held_reads": _count_per_step(holding, steps),
    }
