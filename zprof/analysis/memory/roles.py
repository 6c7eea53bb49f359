"""Resolve the tenant of each block over time: the active claim with the highest precedence wins.

Tenants are resolved after the run; a live counter would mislabel the peak, because a gradient is only
recognized when its hook fires, long after its bytes were allocated. A backdated claim is active from the
allocation of the block, any other from when it was made. Blocks with lifetime claims only (the common case)
are resolved vectorized.
"""

import heapq
import itertools
from collections import deque
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.memory.join import Blocks
from zprof.analysis.memory.tables import TENANT_CODES, UNTAGGED, Bool, Claims, Int
from zprof.model.tenants import Tenant
from zprof.model.training import Phase


class Segments(Struct, frozen=True, kw_only=True):
    """Spans of blocks' lifetimes, one tenant each: [begin, end) of ``block`` belongs to ``tenant``."""

    block: Int
    begin_ns: Int
    end_ns: Int
    bytes: Int
    tenant: Int
    sub: npt.NDArray[np.object_]


class _ClaimInterval(Struct, frozen=True):
    """A claim of one tenant on one block over [begin, end)."""

    begin_ns: int
    end_ns: int
    tenant: int
    sub: str


def resolve_tenants(blocks: Blocks, claims: Claims, generation: Int) -> Segments:
    """Cut every block's lifetime into segments; ``generation``: the generation of each storage row."""
    single_owner = split_single_owner_blocks(blocks, claims, generation)
    intervals_by_block = _make_claim_intervals(blocks, single_owner.others, generation)
    rows = [
        (block, *span)
        for block, block_intervals in intervals_by_block.items()
        for span in _split_lifetime(blocks, block, block_intervals)
    ]
    begin, end, tenant = (np.array([row[part] for row in rows], dtype=np.int64) for part in (1, 2, 3))
    is_unclaimed = blocks.end_ns > blocks.begin_ns
    is_live = is_unclaimed[single_owner.block]
    owned = single_owner.block[is_live]
    is_unclaimed[list(intervals_by_block)] = False
    is_unclaimed[single_owner.block] = False
    split_blocks = np.array([row[0] for row in rows], dtype=np.int64)
    block = np.concatenate([split_blocks, owned, np.flatnonzero(is_unclaimed)])
    subs = np.array([row[4] for row in rows], dtype=object)
    return Segments(
        block=block,
        begin_ns=np.concatenate([begin, blocks.begin_ns[block[len(split_blocks) :]]]),
        end_ns=np.concatenate([end, blocks.end_ns[block[len(split_blocks) :]]]),
        bytes=blocks.bytes[block],
        tenant=np.concatenate([tenant, single_owner.tenant[is_live], blocks.tenant[is_unclaimed]]),
        sub=np.concatenate([subs, single_owner.sub[is_live], blocks.sub[is_unclaimed]]),
    )


def _make_claim_intervals(blocks: Blocks, claims: Claims, generation: Int) -> dict[int, list[_ClaimInterval]]:
    """Return claims, sorted by time, as intervals per block; withdrawing a claim ends its interval.

    A storage withdraws only its own claims; another storage of the same block keeps its claim.
    """
    block_by_generation = dict(zip(generation.tolist(), blocks.owner.tolist(), strict=True))
    intervals_by_block: dict[int, list[_ClaimInterval]] = {}
    active: dict[tuple[int, int, int], list[int]] = {}
    for row, claim_generation in enumerate(claims.generation.tolist()):
        block = block_by_generation.get(claim_generation)
        if block is None:
            continue
        allocated_ns, end = int(blocks.begin_ns[block]), int(blocks.end_ns[block])
        tenant, time_ns = int(claims.tenant[row]), int(claims.time_ns[row])
        block_intervals = intervals_by_block.setdefault(block, [])
        if claims.gained[row]:
            begin = allocated_ns if claims.backdated[row] else min(max(time_ns, allocated_ns), end)
            active.setdefault((block, claim_generation, tenant), []).append(len(block_intervals))
            block_intervals.append(_ClaimInterval(begin, end, tenant, str(claims.sub[row])))
        else:
            for index in active.pop((block, claim_generation, tenant), ()):
                end_ns = min(block_intervals[index].end_ns, max(time_ns, block_intervals[index].begin_ns))
                block_intervals[index] = replace(block_intervals[index], end_ns=end_ns)
    return intervals_by_block


def _split_lifetime(
    blocks: Blocks, block: int, intervals: list[_ClaimInterval]
) -> list[tuple[int, int, int, str]]:
    """Return (begin, end, tenant, sub) spans of a block's lifetime, without gaps or overlaps."""
    allocated_ns, end = int(blocks.begin_ns[block]), int(blocks.end_ns[block])
    if end <= allocated_ns:
        return []
    cuts = sorted(
        {
            allocated_ns,
            end,
            *(interval.begin_ns for interval in intervals),
            *(interval.end_ns for interval in intervals),
        }
    )
    # Heap of active claims by precedence; ties go to the earliest, which supplies the sub.
    upcoming = deque(sorted(enumerate(intervals), key=lambda claim: claim[1].begin_ns))
    active: list[tuple[int, int]] = []
    spans: list[tuple[int, int, int, str]] = []
    for left, right in itertools.pairwise(cuts):
        while upcoming and upcoming[0][1].begin_ns <= left:
            index, interval = upcoming.popleft()
            heapq.heappush(active, (interval.tenant, index))
        while active and intervals[active[0][1]].end_ns <= left:
            heapq.heappop(active)
        tenant, sub = int(blocks.tenant[block]), str(blocks.sub[block])
        if active and active[0][0] <= tenant:
            tenant, sub = active[0][0], intervals[active[0][1]].sub
        spans.append((left, right, tenant, sub))
    return spans


def label_retained_activations(blocks: Blocks, claimed: Int, phases: list[tuple[int, str]]) -> Blocks:
    """Label tracked blocks kept for the backward that autograd did not save.

    Allocated in the forward, unclaimed, and live when the backward starts: an activation kept by a custom
    autograd function (``retained``). Allocated in a recompute and live when it ends: ``recomputed``.
    ``claimed`` lists the claimed blocks.
    """
    tenant, sub = blocks.tenant.copy(), blocks.sub.copy()
    is_unclaimed = blocks.tracked.copy()
    is_unclaimed[claimed] = False
    changes = list(itertools.pairwise(phases))
    for phase, name in ((Phase.FORWARD.value, "retained"), (Phase.RECOMPUTE.value, "recomputed")):
        change = (phase, Phase.BACKWARD.value)
        starts = [time_ns for (_, left), (time_ns, right) in changes if (left, right) == change]
        backward_starts = np.array(starts, dtype=np.int64)
        if not starts:
            continue
        following = np.searchsorted(backward_starts, blocks.begin_ns, side="left")
        next_start = backward_starts[np.minimum(following, len(backward_starts) - 1)]
        is_live = (
            (following < len(backward_starts)) & (blocks.begin_ns < next_start) & (blocks.end_ns > next_start)
        )
        matches = is_unclaimed & is_live & (blocks.phase == phase)
        tenant[matches], sub[matches] = TENANT_CODES[Tenant.ACTIVATIONS], name
    return replace(blocks, tenant=tenant, sub=sub)


def tenant_name(code: int) -> str:
    """Return the name of a tenant code; ``untagged`` if the bytes are unclaimed."""
    return "untagged" if code == UNTAGGED else list(TENANT_CODES)[code].value


_Item = TypeVar("_Item", bound=np.generic)


class SingleOwnerBlocks(Struct, frozen=True, kw_only=True):
    """Blocks with a single owner (``block``, ``tenant``, ``sub``), and the claims on all other blocks."""

    block: Int
    tenant: Int
    sub: npt.NDArray[np.object_]
    others: Claims


def split_single_owner_blocks(blocks: Blocks, claims: Claims, generation: Int) -> SingleOwnerBlocks:
    """Split off the blocks with a single owner; the other claims are sorted by time.

    ``generation``: the generation of each storage row.
    """
    # releases first at equal times, then by ``sub``: independent of the order of the rows
    order = np.lexsort((claims.sub.astype(str), claims.gained, claims.time_ns))
    claims = _take_claims(claims, order.astype(np.int64))
    block = _find_claimed_blocks(claims.generation, generation, blocks.owner)
    has_partial_claim = np.zeros(len(blocks), dtype=bool)
    has_partial_claim[block[(block >= 0) & ~(claims.gained & claims.backdated)]] = True
    is_single_owner = (block >= 0) & ~_take_rows(has_partial_claim, block)
    rows = np.flatnonzero(is_single_owner)
    rows = rows[np.lexsort((rows, claims.tenant[rows], block[rows]))]
    owners = block[rows]
    best = rows[np.flatnonzero(np.diff(owners, prepend=-1))]
    owner, tenant, sub = block[best], claims.tenant[best], claims.sub[best]
    loses_to_block = tenant > blocks.tenant[owner]
    tenant, sub = (
        np.where(loses_to_block, blocks.tenant[owner], tenant),
        np.where(loses_to_block, blocks.sub[owner], sub),
    )
    return SingleOwnerBlocks(
        block=owner, tenant=tenant, sub=sub, others=_take_claims(claims, (block >= 0) & ~is_single_owner)
    )


def _take_claims(claims: Claims, rows: Int | Bool) -> Claims:
    return replace(
        claims,
        generation=claims.generation[rows],
        time_ns=claims.time_ns[rows],
        tenant=claims.tenant[rows],
        sub=claims.sub[rows],
        gained=claims.gained[rows],
        backdated=claims.backdated[rows],
    )


def _find_claimed_blocks(claimed: Int, generation: Int, owner: Int) -> Int:
    """Return the block that each claim is on; -1 if no storage of that generation is known."""
    order = np.argsort(generation, kind="stable")
    row = np.searchsorted(generation[order], claimed, side="right") - 1
    storage = _take_rows(order, row)
    known = (row >= 0) & (_take_rows(generation, storage) == claimed)
    return np.where(known, _take_rows(owner, storage), -1)


def _take_rows(column: npt.NDArray[_Item], rows: Int) -> npt.NDArray[_Item]:
    """Return ``column[rows]``, tolerating -1 in an empty column; values for -1 must not be used."""
    return column[rows] if len(column) else np.zeros(len(rows), dtype=column.dtype)
