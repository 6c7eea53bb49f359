"""Resolve one tenant for each block at each instant: the strongest claim that holds then (``PRECEDENCE``).

Roles are resolved after the run, because a live counter mislabels the peak: a gradient is only known as one
when its hook fires, long after its bytes were allocated. A backdated claim holds from the allocation of the
block, any other from its own time on. Blocks whose claims all hold for their whole life, the common case, are
resolved without a loop.
"""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from zprof.analysis.memory.join import Blocks
from zprof.analysis.memory.tables import TENANT_CODES, UNTAGGED, Bool, Claims, Int
from zprof.model.tenants import Tenant
from zprof.model.training import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Parts of blocks' lives with one tenant each: [begin, end) of ``block`` belongs to ``tenant``."""

    block: Int
    begin_ns: Int
    end_ns: Int
    bytes: Int
    tenant: Int
    sub: npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class _ClaimInterval:
    """A claim of one tenant on one block over [begin, end)."""

    begin_ns: int
    end_ns: int
    tenant: int
    sub: str


def resolve_tenants(blocks: Blocks, claims: Claims, generation: Int) -> Segments:
    """Cut every block's life into segments; ``generation``: of each storage row in ``blocks.owner``."""
    whole = split_single_owner_blocks(blocks, _sort_claims(claims), generation)
    holds = _make_claim_intervals(blocks, whole.others, generation)
    rows = [(block, *piece) for block, held in holds.items() for piece in _split_life(blocks, block, held)]
    begin, end, tenant = (np.array([row[part] for row in rows], dtype=np.int64) for part in (1, 2, 3))
    unclaimed = blocks.end_ns > blocks.begin_ns
    alive = unclaimed[whole.block]
    owned = whole.block[alive]
    unclaimed[list(holds)] = False
    unclaimed[whole.block] = False
    cut = np.array([row[0] for row in rows], dtype=np.int64)
    block = np.concatenate([cut, owned, np.flatnonzero(unclaimed)])
    subs = np.array([row[4] for row in rows], dtype=object)
    return Segments(
        block=block,
        begin_ns=np.concatenate([begin, blocks.begin_ns[block[len(cut) :]]]),
        end_ns=np.concatenate([end, blocks.end_ns[block[len(cut) :]]]),
        bytes=blocks.bytes[block],
        tenant=np.concatenate([tenant, whole.tenant[alive], blocks.tenant[unclaimed]]),
        sub=np.concatenate([subs, whole.sub[alive], blocks.sub[unclaimed]]),
    )


def _make_claim_intervals(blocks: Blocks, claims: Claims, generation: Int) -> dict[int, list[_ClaimInterval]]:
    """Return claims, sorted by time, as intervals by block; a claim that is withdrawn ends there.

    A storage withdraws only its own claims; another storage of the same block keeps its claim.
    """
    block_of = dict(zip(generation.tolist(), blocks.owner.tolist(), strict=True))
    holds: dict[int, list[_ClaimInterval]] = {}
    running: dict[tuple[int, int, int], list[int]] = {}
    for row, mine in enumerate(claims.generation.tolist()):
        block = block_of.get(mine)
        if block is None:
            continue
        born, end = int(blocks.begin_ns[block]), int(blocks.end_ns[block])
        tenant, time_ns = int(claims.tenant[row]), int(claims.time_ns[row])
        held = holds.setdefault(block, [])
        if claims.gained[row]:
            begin = born if claims.backdated[row] else min(max(time_ns, born), end)
            running.setdefault((block, mine, tenant), []).append(len(held))
            held.append(_ClaimInterval(begin, end, tenant, str(claims.sub[row])))
        else:
            for index in running.pop((block, mine, tenant), ()):
                until = min(held[index].end_ns, max(time_ns, held[index].begin_ns))
                held[index] = replace(held[index], end_ns=until)
    return holds


def _sort_claims(claims: Claims) -> Claims:
    """Sort claims by time; at equal times endings come first, then subs decide, not the row order."""
    subs = claims.sub.astype(str)
    rows = np.lexsort((subs, claims.gained, claims.time_ns))
    return Claims(**{field.name: getattr(claims, field.name)[rows] for field in fields(claims)})


def _split_life(blocks: Blocks, block: int, holds: list[_ClaimInterval]) -> list[tuple[int, int, int, str]]:
    """Return (begin, end, tenant, sub) pieces of a block's life, without holes or overlaps."""
    born, end = int(blocks.begin_ns[block]), int(blocks.end_ns[block])
    if end <= born:
        return []
    cuts = sorted({born, end, *(hold.begin_ns for hold in holds), *(hold.end_ns for hold in holds)})
    # The strongest of the started claims is on top; of equal ones the earliest, which gives the sub.
    waiting = deque(sorted(enumerate(holds), key=lambda claim: claim[1].begin_ns))
    begun: list[tuple[int, int]] = []
    pieces: list[tuple[int, int, int, str]] = []
    for left, right in itertools.pairwise(cuts):
        while waiting and waiting[0][1].begin_ns <= left:
            index, hold = waiting.popleft()
            heapq.heappush(begun, (hold.tenant, index))
        while begun and holds[begun[0][1]].end_ns <= left:
            heapq.heappop(begun)
        tenant, sub = int(blocks.tenant[block]), str(blocks.sub[block])
        if begun and begun[0][0] <= tenant:
            tenant, sub = begun[0][0], holds[begun[0][1]].sub
        pieces.append((left, right, tenant, sub))
    return pieces


def name_retained_activations(blocks: Blocks, claimed: Int, phases: list[tuple[int, str]]) -> Blocks:
    """Name tracked blocks that a phase kept for the backward although autograd never saved them.

    Allocated in the forward, unclaimed, and live when the backward starts: an activation that a custom
    function keeps itself (``retained``). Allocated in a recompute and live when that ends: ``recomputed``.
    ``claimed`` lists the blocks that some role claims.
    """
    tenant, sub = blocks.tenant.copy(), blocks.sub.copy()
    free = blocks.tracked.copy()
    free[claimed] = False
    for phase, name in ((Phase.FORWARD.value, "retained"), (Phase.RECOMPUTE.value, "recomputed")):
        begins = _find_backward_begins(phases, phase)
        if not len(begins):
            continue
        following = np.searchsorted(begins, blocks.begin_ns, side="left")
        begun = begins[np.minimum(following, len(begins) - 1)]
        alive = (following < len(begins)) & (blocks.begin_ns < begun) & (blocks.end_ns > begun)
        hit = free & alive & (blocks.phase == phase)
        tenant[hit], sub[hit] = TENANT_CODES[Tenant.ACTIVATIONS], name
    return replace(blocks, tenant=tenant, sub=sub)


def _find_backward_begins(phases: list[tuple[int, str]], before: str) -> Int:
    """Return the times at which a backward starts right after phase ``before``."""
    pairs = itertools.pairwise(phases)
    times = [t for (_, left), (t, right) in pairs if left == before and right == Phase.BACKWARD.value]
    return np.array(times, dtype=np.int64)


def tenant_name(code: int) -> str:
    """Return the name of a tenant code; ``untagged`` if no role claims the bytes."""
    return "untagged" if code == UNTAGGED else list(TENANT_CODES)[code].value


_Item = TypeVar("_Item", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleOwnerBlocks:
    """Blocks with one owner for life (``block``, ``tenant``, ``sub``), and the claims on all others."""

    block: Int
    tenant: Int
    sub: npt.NDArray[np.object_]
    others: Claims


def split_single_owner_blocks(blocks: Blocks, claims: Claims, generation: Int) -> SingleOwnerBlocks:
    """Split the claims; ``generation`` is that of each storage row in ``blocks.owner``."""
    claims = _sort_claims_by_time(claims)
    block = _find_claimed_blocks(claims.generation, generation, blocks.owner)
    cut = np.zeros(len(blocks), dtype=bool)
    cut[block[(block >= 0) & ~(claims.gained & claims.backdated)]] = True
    simple = (block >= 0) & ~_take_rows(cut, block)
    rows = np.flatnonzero(simple)
    rows = rows[np.lexsort((rows, claims.tenant[rows], block[rows]))]
    owners = block[rows]
    best = rows[np.flatnonzero(np.diff(owners, prepend=-1))]
    owner, tenant, sub = block[best], claims.tenant[best], claims.sub[best]
    weaker = tenant > blocks.tenant[owner]
    tenant, sub = np.where(weaker, blocks.tenant[owner], tenant), np.where(weaker, blocks.sub[owner], sub)
    return SingleOwnerBlocks(
        block=owner, tenant=tenant, sub=sub, others=_take_claims(claims, (block >= 0) & ~simple)
    )


def _sort_claims_by_time(claims: Claims) -> Claims:
    return _take_claims(claims, np.argsort(claims.time_ns, kind="stable").astype(np.int64))


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
    found: Int = np.where(known, _take_rows(owner, storage), -1)
    return found


def _take_rows(column: npt.NDArray[_Item], rows: Int) -> npt.NDArray[_Item]:
    """Return ``column[rows]``, tolerating -1 in an empty column; values for -1 must not be used."""
    return column[rows] if len(column) else np.zeros(len(rows), dtype=column.dtype)
