"""What is live at a peak: by kind, by what that rests on, and the largest allocations."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from zprof.analysis.memory.rank.curve import alive_at
from zprof.analysis.memory.rank.lives import UNTAGGED, Int
from zprof.analysis.memory.rank.rank_lives import RankLives
from zprof.analysis.memory.rank.roles import tenant_of
from zprof.model.memory import Allocation, Basis, MemoryPart

#: Largest allocations that a report shows of each rank.
TOP = 10
#: Kinds that a report shows; the smallest beyond it are one kind of their tenant.
MOST_PARTS = 64
_REST = "other"

#: The frames of some storages, by their generation.
Stacks = Callable[[frozenset[int]], Mapping[int, tuple[str, ...]]]


def parts_at(lives: RankLives, time_ns: int) -> tuple[MemoryPart, ...]:
    """The live bytes by tenant and kind, largest first; they sum to what is live."""
    rows = alive_at(lives.segments, time_ns)
    frame = pd.DataFrame(
        {
            "tenant": lives.segments.tenant[rows],
            "sub": [str(sub) for sub in lives.segments.sub[rows]],
            "bytes": lives.segments.bytes[rows],
        }
    )
    sums = frame.groupby(["tenant", "sub"], sort=True)["bytes"].sum().reset_index()
    sums = sums.sort_values("bytes", ascending=False, kind="stable")
    rest = sums.iloc[MOST_PARTS:].groupby("tenant", as_index=False)["bytes"].sum().assign(sub=_REST)
    shown = pd.concat([sums.iloc[:MOST_PARTS], rest]) if len(rest) else sums
    return tuple(
        MemoryPart(tenant=tenant_of(int(tenant)), sub=sub, bytes=int(size), basis=basis_of(int(tenant)))
        for tenant, sub, size in zip(shown["tenant"], shown["sub"], shown["bytes"], strict=True)
    )


def basis_of(tenant: int) -> Basis:
    """In a live recording a hook or the operator itself names the tenant, or nobody does."""
    return Basis.UNKNOWN if tenant == UNTAGGED else Basis.TAGGED


def basis_bytes(peak_bytes: int, untagged_bytes: int) -> Mapping[Basis, int]:
    """What the tenants of a live recording rest on; sums to the peak."""
    return {Basis.TAGGED: peak_bytes - untagged_bytes, Basis.RULE: 0, Basis.UNKNOWN: untagged_bytes}


def largest(rank: int, lives: RankLives, time_ns: int, stacks: Stacks) -> tuple[Allocation, ...]:
    """The largest live allocations at an instant, largest first."""
    rows = alive_at(lives.segments, time_ns)
    rows = rows[np.argsort(-lives.segments.bytes[rows], kind="stable")][:TOP]
    speakers = [_speaker(lives, int(block)) for block in lives.segments.block[rows]]
    frames = stacks(frozenset(generation for generation in speakers if generation is not None))
    return tuple(
        _allocation(rank, lives, int(row), frames.get(-1 if speaker is None else speaker, ()))
        for row, speaker in zip(rows, speakers, strict=True)
    )


def _allocation(rank: int, lives: RankLives, row: int, stack: tuple[str, ...]) -> Allocation:
    segments, blocks = lives.segments, lives.blocks
    block, tenant = int(segments.block[row]), int(segments.tenant[row])
    return Allocation(
        rank=rank,
        bytes=int(segments.bytes[row]),
        tenant=tenant_of(tenant),
        sub=str(segments.sub[row]),
        module=str(blocks.module[block] or ""),
        stack=stack,
        operator=str(blocks.operator[block] or ""),
        basis=basis_of(tenant),
    )


def _speaker(lives: RankLives, block: int) -> int | None:
    """Generation of the storage that speaks for a block: the first that an operator made, else the first."""
    rows: Int = np.flatnonzero(lives.blocks.owner == block).astype(np.int64)
    if not len(rows):
        return None
    known = rows[lives.storages.known[rows]]
    return int(lives.storages.generation[(known if len(known) else rows)[0]])
