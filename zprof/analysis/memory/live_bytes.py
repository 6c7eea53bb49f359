"""Compute live bytes of one rank over time, their owners at an instant, and the peak.

A block is live in [begin, end): at the time of an event, blocks that end then are not counted, and blocks
that start then are.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns
from zprof.analysis.memory.join import Blocks, join_storages
from zprof.analysis.memory.roles import Segments, label_retained_activations, resolve_tenants
from zprof.analysis.memory.steps_and_phases import Timeline
from zprof.analysis.memory.tables import (
    FOREVER,
    TENANT_CODES,
    UNTAGGED,
    Int,
    Lives,
    read_claims,
    read_lives,
    sum_by_device,
)
from zprof.model.tenants import UNTAGGED_NAME, Tenant

BUFFER_SUB = "buffer"


class TenantPeak(Struct, frozen=True, kw_only=True):
    """Bytes by tenant at the maximum of live bytes in the window."""

    time_ns: int
    bytes: int
    tenants: Mapping[Tenant, int]
    untagged_bytes: int
    open_bytes: int
    open_operators: tuple[str, ...]


class RankLives(Struct, frozen=True, kw_only=True):
    """All blocks of one rank and device with their owners over time.

    ``live_bytes``: live bytes from each of ``times_ns`` until the next.
    """

    blocks: Blocks
    segments: Segments
    storages: Lives
    timeline: Timeline
    times_ns: Int
    live_bytes: Int
    has_allocator_events: bool

    def peak(self) -> TenantPeak:
        """Return the maximum of live bytes within the window."""
        blocks, window = self.blocks, self.timeline
        time_ns, size = find_peak(self.times_ns, self.live_bytes, window.begin_ns, window.end_ns)
        tenants, untagged = self.sum_tenants_at(time_ns)
        still_open = blocks.open & (blocks.begin_ns <= time_ns) & (blocks.end_ns > time_ns)
        return TenantPeak(
            time_ns=time_ns,
            bytes=size,
            tenants=tenants,
            untagged_bytes=untagged,
            open_bytes=int(blocks.bytes[still_open].sum()),
            open_operators=tuple(sorted({str(name) for name in blocks.operator[still_open]})),
        )

    def sum_tenants_at(self, time_ns: int) -> tuple[Mapping[Tenant, int], int]:
        """Return the bytes of each tenant at an instant, and the untagged bytes."""
        bytes_by_code = sum_by_tenant(self.segments, time_ns)
        return {tenant: int(bytes_by_code[code]) for tenant, code in TENANT_CODES.items()}, int(
            bytes_by_code[UNTAGGED]
        )

    def find_tenant_peak(self, tenant: int, without_sub: str = "") -> int:
        """Return the maximum of one tenant's live bytes within the window, without one kind of them."""
        segments, window = self.segments, self.timeline
        rows = segments.tenant == tenant
        if without_sub:
            rows &= segments.sub != without_sub
        times_ns, live_bytes = compute_live_curve(
            segments.begin_ns[rows], segments.end_ns[rows], segments.bytes[rows]
        )
        return find_peak(times_ns, live_bytes, window.begin_ns, window.end_ns)[1]

    def find_tenant_peaks(self) -> Mapping[str, int]:
        """Return the bytes of each tenant, and of what is untagged, at its own maximum within the window."""
        codes = {**{tenant.value: code for tenant, code in TENANT_CODES.items()}, UNTAGGED_NAME: UNTAGGED}
        return {name: self.find_tenant_peak(code) for name, code in codes.items()}

    def states(self) -> Mapping[Tenant, int] | None:
        """Return parameters and optimizer state at the last step's end, gradients at its optimizer's start.

        A program may free its gradients before the step ends; when the optimizer starts, they are complete.
        Module buffers are not model state and are left out. None if no step ended.
        """
        return {
            tenant: int(self.segments.bytes[self.find_state_rows(tenant, moment)].sum())
            for tenant, moment in self.find_state_moments().items()
        } or None

    def find_state_moments(self) -> Mapping[Tenant, int]:
        """Return the time at which each model state is complete; empty if no step ended."""
        if not self.timeline.step_ends:
            return {}
        end_ns = self.timeline.step_ends[-1]
        optimizer_ns = self.timeline.find_last_optimizer_ns()
        return {
            Tenant.PARAMETERS: end_ns,
            Tenant.GRADIENTS: end_ns if optimizer_ns is None else optimizer_ns,
            Tenant.OPTIMIZER_STATE: end_ns,
        }

    def find_state_rows(self, tenant: Tenant, time_ns: int, *, buffers: bool = False) -> Int:
        """Return a tenant's live segments at an instant, either without module buffers or only buffers."""
        rows = find_live_segments(self.segments, time_ns)
        buffer = self.segments.sub[rows] == BUFFER_SUB
        state_rows: Int = rows[(self.segments.tenant[rows] == TENANT_CODES[tenant]) & (buffer == buffers)]
        return state_rows


def list_devices(alloc: Columns) -> list[str]:
    """List the devices with allocations: accelerators first, by total bytes, largest first."""
    totals = sum_by_device(alloc, "bytes")
    return sorted(totals, key=lambda device: (device == "cpu", -totals[device], device))


def read_rank_lives(alloc: Columns, role: Columns, timeline: Timeline, device: str) -> RankLives:
    """Join and resolve the tables of one rank for one device."""
    storages = read_lives(alloc, "storage", device)
    allocations = read_lives(alloc, "profiler", device)
    # Join the allocator's blocks with the storages, then assign a tenant to each block at each instant.
    claims = read_claims(role)
    blocks = join_storages(storages, allocations, timeline.begin_ns)
    claimed = blocks.owner[np.isin(storages.generation, claims.generation)]
    blocks = label_retained_activations(blocks, claimed, timeline.phases)
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
    """Return the times of events, and the live bytes from each until the next."""
    freed = end_ns != FOREVER
    time_ns = np.concatenate([begin_ns, end_ns[freed]])
    change = np.concatenate([size_bytes, -size_bytes[freed]])
    # One sort of two nearly sorted halves: np.unique with its inverse takes three times as long.
    order = np.argsort(time_ns, kind="stable")
    times, live = time_ns[order], np.cumsum(change[order], dtype=np.int64)
    is_last = np.append(times[1:] != times[:-1], True)[: len(times)]
    return times[is_last].astype(np.int64), live[is_last]


def find_peak(times: Int, live: Int, begin_ns: int, end_ns: int) -> tuple[int, int]:
    """Return (time, bytes) of the first maximum within a window, including the bytes live at its start."""
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
    is_live = (segments.begin_ns <= time_ns) & (segments.end_ns > time_ns)
    bytes_by_code = np.zeros(UNTAGGED + 1, dtype=np.int64)
    np.add.at(bytes_by_code, segments.tenant[is_live], segments.bytes[is_live])
    return bytes_by_code


def find_live_segments(segments: Segments, time_ns: int) -> Int:
    """Return the rows of the segments that are live at an instant."""
    return np.flatnonzero((segments.begin_ns <= time_ns) & (segments.end_ns > time_ns)).astype(np.int64)
