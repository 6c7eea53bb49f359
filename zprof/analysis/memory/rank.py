"""The memory of one rank: blocks, segments, the peak and who held it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.memory.curve import alive_at, composition, live_curve, peak_of
from zprof.analysis.memory.join import Blocks, join
from zprof.analysis.memory.lives import CODES, UNTAGGED, Claims, Lives, claims_of, lives_of
from zprof.analysis.memory.roles import Segments, resolve, retained, tenant_of
from zprof.analysis.memory.timeline import Timeline
from zprof.model.memory import Allocation
from zprof.model.tenants import Tenant

#: Largest allocations that a report shows of each rank.
TOP = 10
_BUFFER = "buffer"


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
    """All blocks of one rank and device with their owners over time."""

    blocks: Blocks
    segments: Segments
    timeline: Timeline
    has_allocator_events: bool

    def peak(self) -> Peak:
        """The highest point of live bytes within the window."""
        blocks, window = self.blocks, self.timeline
        times, live = live_curve(blocks.begin_ns, blocks.end_ns, blocks.bytes)
        time_ns, size = peak_of(times, live, window.begin_ns, window.end_ns)
        held = composition(self.segments, time_ns)
        still_open = blocks.open & (blocks.begin_ns <= time_ns) & (blocks.end_ns > time_ns)
        return Peak(
            time_ns=time_ns,
            bytes=size,
            tenants={tenant: int(held[code]) for tenant, code in CODES.items()},
            untagged_bytes=int(held[UNTAGGED]),
            open_bytes=int(blocks.bytes[still_open].sum()),
            open_operators=tuple(sorted({str(name) for name in blocks.operator[still_open]})),
        )

    def states(self) -> Mapping[Tenant, int] | None:
        """Parameters and optimizer state at the last step's end, gradients when its optimizer began.

        By the end of a step a program may have freed its gradients; when the optimizer begins, they are
        complete.  Module buffers are no model state and are left out.  None where no step ended.
        """
        if not self.timeline.step_ends:
            return None
        end_ns = self.timeline.step_ends[-1]
        optimizer_ns = self.timeline.last_optimizer_ns()
        return {
            Tenant.PARAMETERS: self._held(Tenant.PARAMETERS, end_ns),
            Tenant.GRADIENTS: self._held(Tenant.GRADIENTS, end_ns if optimizer_ns is None else optimizer_ns),
            Tenant.OPTIMIZER_STATE: self._held(Tenant.OPTIMIZER_STATE, end_ns),
        }

    def top(self, rank: int, time_ns: int) -> tuple[Allocation, ...]:
        """The largest live allocations at an instant, largest first."""
        rows = alive_at(self.segments, time_ns)
        rows = rows[np.argsort(-self.segments.bytes[rows], kind="stable")][:TOP]
        return tuple(
            Allocation(
                rank=rank,
                bytes=int(self.segments.bytes[row]),
                tenant=tenant_of(int(self.segments.tenant[row])),
                sub=str(self.segments.sub[row]),
                module=str(self.blocks.module[self.segments.block[row]] or ""),
            )
            for row in rows
        )

    def _held(self, tenant: Tenant, time_ns: int) -> int:
        rows = alive_at(self.segments, time_ns)
        mine = (self.segments.tenant[rows] == CODES[tenant]) & (self.segments.sub[rows] != _BUFFER)
        return int(self.segments.bytes[rows][mine].sum())


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
    return RankLives(
        blocks=blocks,
        segments=resolve(blocks, claims, storages.generation),
        timeline=timeline,
        has_allocator_events=len(allocations) > 0,
    )
