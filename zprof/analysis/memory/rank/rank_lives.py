"""The memory of one rank: blocks, segments, the peak and who held it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.memory.rank.curve import alive_at, composition, live_curve, peak_of
from zprof.analysis.memory.rank.join import Blocks, join
from zprof.analysis.memory.rank.lives import CODES, UNTAGGED, Claims, Int, Lives, claims_of, lives_of
from zprof.analysis.memory.rank.roles import Segments, resolve, retained
from zprof.analysis.memory.rank.timeline import Timeline
from zprof.model.tenants import Tenant

BUFFER = "buffer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Who held how many bytes at the highest point of the window."""

    time_ns: int
    bytes: int
    tenants: Mapping[Tenant, int]
    untagged_bytes: int
    open_bytes: int
    open_operators: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLives:
    """All blocks of one rank and device with their owners over time.

    ``live_bytes`` is what is live from each of ``times_ns`` on.
    """

    blocks: Blocks
    segments: Segments
    storages: Lives
    timeline: Timeline
    times_ns: Int
    live_bytes: Int
    has_allocator_events: bool

    def peak(self) -> Peak:
        """The highest point of live bytes within the window."""
        blocks, window = self.blocks, self.timeline
        time_ns, size = peak_of(self.times_ns, self.live_bytes, window.begin_ns, window.end_ns)
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
        """Bytes of each tenant at an instant, and those that nobody claims."""
        held = composition(self.segments, time_ns)
        return {tenant: int(held[code]) for tenant, code in CODES.items()}, int(held[UNTAGGED])

    def states(self) -> Mapping[Tenant, int] | None:
        """Parameters and optimizer state at the last step's end, gradients when its optimizer began.

        By the end of a step a program may have freed its gradients; when the optimizer begins, they are
        complete.  Module buffers are no model state and are left out.  None where no step ended.
        """
        return {
            tenant: int(self.segments.bytes[self.state_rows(tenant, moment)].sum())
            for tenant, moment in self.state_moments().items()
        } or None

    def state_moments(self) -> Mapping[Tenant, int]:
        """When each model state is complete; empty where no step ended."""
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
        """Segments that a tenant holds at an instant: without module buffers, or these alone."""
        rows = alive_at(self.segments, time_ns)
        buffer = self.segments.sub[rows] == BUFFER
        mine: Int = rows[(self.segments.tenant[rows] == CODES[tenant]) & (buffer == buffers)]
        return mine


def devices_of(alloc: pd.DataFrame) -> list[str]:
    """Devices that hold memory: accelerators first, the fullest of them first."""
    totals = alloc.groupby(alloc["device"].astype(str))["bytes"].sum()
    return sorted(totals.index, key=lambda device: (device == "cpu", -int(totals[device]), device))


def rank_lives(alloc: pd.DataFrame, role: pd.DataFrame, timeline: Timeline, device: str) -> RankLives:
    """Join and resolve the tables of one rank for one device."""
    storages = lives_of(alloc, "storage", device)
    allocations = lives_of(alloc, "profiler", device)
    return lives_from(storages, allocations, claims_of(role), timeline)


def lives_from(storages: Lives, allocations: Lives, claims: Claims, timeline: Timeline) -> RankLives:
    """Join the allocator's blocks with the storages, then give each instant of each block its tenant."""
    blocks = join(storages, allocations, timeline.begin_ns)
    claimed = blocks.owner[np.isin(storages.generation, claims.generation)]
    blocks = retained(blocks, claimed, timeline.phases)
    times_ns, live_bytes = live_curve(blocks.begin_ns, blocks.end_ns, blocks.bytes)
    return RankLives(
        blocks=blocks,
        segments=resolve(blocks, claims, storages.generation),
        storages=storages,
        timeline=timeline,
        times_ns=times_ns,
        live_bytes=live_bytes,
        has_allocator_events=len(allocations) > 0,
    )
