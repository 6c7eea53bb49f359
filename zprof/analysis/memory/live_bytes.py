"""Compute live bytes of one rank over time, their owners at an instant, and the peak.

A block is live in [begin, end): at the time of an event, blocks that end there are gone and blocks that start
there are counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.memory.join import Blocks, join_storages
from zprof.analysis.memory.roles import Segments, name_retained_activations, resolve_tenants
from zprof.analysis.memory.tables import (
    FOREVER,
    TENANT_CODES,
    UNTAGGED,
    Claims,
    Int,
    Lives,
    read_claims,
    read_lives,
)
from zprof.analysis.memory.timeline import Timeline
from zprof.model.tenants import Tenant

BUFFER_SUB = "buffer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Tenants at the highest point of the window."""

    time_ns: int
    bytes: int
    tenants: Mapping[Tenant, int]
    untagged_bytes: int
    open_bytes: int
    open_operators: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLives:
    """All blocks of one rank and device with their owners over time.

    ``live_bytes`` are the live bytes from each of ``times_ns`` on.
    """

    blocks: Blocks
    segments: Segments
    storages: Lives
    timeline: Timeline
    times_ns: Int
    live_bytes: Int
    has_allocator_events: bool

    def peak(self) -> Peak:
        """Return the highest point of live bytes within the window."""
        blocks, window = self.blocks, self.timeline
        time_ns, size = find_peak(self.times_ns, self.live_bytes, window.begin_ns, window.end_ns)
        tenants, untagged = self.held_at(time_ns)
        still_open = blocks.open & (blocks.begin_ns <= time_ns) & (blocks.end_ns > time_ns)
        return Peak(
            time_ns=time_ns,
            bytes=size,
            tenants=tenants,
            untagged_bytes=untagged,
            open_bytes=int(blocks.bytes[still_open].sum()),
            open_operators=tuple(sorted({str(name) for name in blocks.operator[still_open]})),
        )

    def held_at(self, time_ns: int) -> tuple[Mapping[Tenant, int], int]:
        """Return the bytes of each tenant at an instant, and the untagged bytes."""
        held = sum_by_tenant(self.segments, time_ns)
        return {tenant: int(held[code]) for tenant, code in TENANT_CODES.items()}, int(held[UNTAGGED])

    def states(self) -> Mapping[Tenant, int] | None:
        """Return parameters and optimizer state at the last step's end, gradients when its optimizer starts.

        A program may have freed its gradients by the end of a step; when the optimizer starts, they are
        complete. Module buffers are not model state and are left out. None if no step ended.
        """
        return {
            tenant: int(self.segments.bytes[self.state_rows(tenant, moment)].sum())
            for tenant, moment in self.state_moments().items()
        } or None

    def state_moments(self) -> Mapping[Tenant, int]:
        """Return when each model state is complete; empty if no step ended."""
        if not self.timeline.step_ends:
            return {}
        end_ns = self.timeline.step_ends[-1]
        optimizer_ns = self.timeline.last_optimizer_ns()
        return {
            Tenant.PARAMETERS: end_ns,
            Tenant.GRADIENTS: end_ns if optimizer_ns is None else optimizer_ns,
            Tenant.OPTIMIZER_STATE: end_ns,
        }

    def state_rows(self, tenant: Tenant, time_ns: int, *, buffers: bool = False) -> Int:
        """Return the segments that a tenant holds at an instant: without module buffers, or only these."""
        rows = find_alive_segments(self.segments, time_ns)
        buffer = self.segments.sub[rows] == BUFFER_SUB
        mine: Int = rows[(self.segments.tenant[rows] == TENANT_CODES[tenant]) & (buffer == buffers)]
        return mine


def list_devices(alloc: pd.DataFrame) -> list[str]:
    """Return the devices that hold memory: accelerators first, sorted by total bytes, largest first."""
    totals = alloc.groupby(alloc["device"].astype(str))["bytes"].sum()
    return sorted(totals.index, key=lambda device: (device == "cpu", -int(totals[device]), device))


def read_rank_lives(alloc: pd.DataFrame, role: pd.DataFrame, timeline: Timeline, device: str) -> RankLives:
    """Join and resolve the tables of one rank for one device."""
    storages = read_lives(alloc, "storage", device)
    allocations = read_lives(alloc, "profiler", device)
    return build_rank_lives(storages, allocations, read_claims(role), timeline)


def build_rank_lives(storages: Lives, allocations: Lives, claims: Claims, timeline: Timeline) -> RankLives:
    """Join the allocator's blocks with the storages, then assign a tenant to each block at each instant."""
    blocks = join_storages(storages, allocations, timeline.begin_ns)
    claimed = blocks.owner[np.isin(storages.generation, claims.generation)]
    blocks = name_retained_activations(blocks, claimed, timeline.phases)
    times_ns, live_bytes = compute_live_curve(blocks.begin_ns, blocks.end_ns, blocks.bytes)
    return RankLives(
        blocks=blocks,
        segments=resolve_tenants(blocks, claims, storages.generation),
        storages=storages,
        timeline=timeline,
        times_ns=times_ns,
        live_bytes=live_bytes,
        has_allocator_events=len(allocations) > 0,
    )


def compute_live_curve(begin_ns: Int, end_ns: Int, size_bytes: Int) -> tuple[Int, Int]:
    """Return the times of events, and the live bytes from each of them on."""
    freed = end_ns != FOREVER
    time_ns = np.concatenate([begin_ns, end_ns[freed]])
    change = np.concatenate([size_bytes, -size_bytes[freed]])
    times, which = np.unique(time_ns, return_inverse=True)
    deltas = np.zeros(len(times), dtype=np.int64)
    np.add.at(deltas, which, change)
    return times.astype(np.int64), np.cumsum(deltas, dtype=np.int64)


def find_peak(times: Int, live: Int, begin_ns: int, end_ns: int) -> tuple[int, int]:
    """Return (time, bytes) of the first maximum within a window; bytes live at its start count."""
    first = int(np.searchsorted(times, begin_ns, side="right"))
    last = int(np.searchsorted(times, end_ns, side="right"))
    best_ns, best = begin_ns, int(live[first - 1]) if first else 0
    if last > first:
        index = first + int(np.argmax(live[first:last]))
        if int(live[index]) > best:
            best_ns, best = int(times[index]), int(live[index])
    return best_ns, best


def sum_by_tenant(segments: Segments, time_ns: int) -> Int:
    """Return the bytes by tenant code at an instant; the last entry is untagged."""
    alive = (segments.begin_ns <= time_ns) & (segments.end_ns > time_ns)
    held = np.zeros(UNTAGGED + 1, dtype=np.int64)
    np.add.at(held, segments.tenant[alive], segments.bytes[alive])
    return held


def find_alive_segments(segments: Segments, time_ns: int) -> Int:
    """Return the rows of the segments that are live at an instant."""
    rows: Int = np.flatnonzero((segments.begin_ns <= time_ns) & (segments.end_ns > time_ns)).astype(np.int64)
    return rows
