"""Join the allocator's blocks with the storages seen by hooks, and resolve each block's tenant over time.

Tenants are resolved after the run; a live counter would mislabel the peak, because a gradient is only
recognized when its hook fires, long after its bytes were allocated. A backdated claim is active from the
block's allocation, any other claim from when it was made. Blocks with only lifetime claims (the common case)
are resolved vectorized.

The active claim with the highest precedence wins.

A storage recorded at t belongs to the block [t0, t1) at its address with t0 <= t + 2 us and t <= t1 + 200 us:
it is recorded after the operator returns, and with a different clock reading than the allocator's.

On a CPU, a free may leave no event (if it ran on a thread unknown to the profiler). Such a block ends when
its storage is released or its address is reused, whichever is first; otherwise it stays live, as an upper
bound.
"""

import heapq
import itertools
from collections import deque
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.memory.tables import FOREVER, TENANT_CODES, UNTAGGED, Bool, Claims, Int, Lives
from zprof.model.tenants import BACKEND_SCRATCH, OPERATOR_WORKSPACE, Tenant
from zprof.model.training import Phase

MAX_EARLY_NS = 2_000
MAX_LATE_NS = 200_000
_TEMPORARY_SUBS = {Phase.BACKWARD.value: "act_grad", Phase.OPTIMIZER.value: "optimizer"}


class AddressIndex:
    """Allocations by (address, begin); both are replaced by their sort rank, so one int64 key sorts them."""

    def __init__(self, address: Int, begin_ns: Int) -> None:
        self._addresses: Int = np.unique(address)
        self._times: Int = np.unique(begin_ns)
        keys = self._make_keys(address, begin_ns)
        self._order: Int = np.argsort(keys, kind="stable").astype(np.int64)
        self._sorted: Int = keys[self._order]

    def find_last_until(self, address: Int, time_ns: Int) -> Int:
        """Return the last allocation at each address at or before each time; -1 if there is none."""
        keys = self._make_keys(address, time_ns)
        return self._find_rows(np.searchsorted(self._sorted, keys, side="right") - 1, keys)

    def find_first_after(self, address: Int, time_ns: Int) -> Int:
        """Return the first allocation at each address after each time; -1 if there is none."""
        keys = self._make_keys(address, time_ns)
        return self._find_rows(np.searchsorted(self._sorted, keys, side="right"), keys)

    def _make_keys(self, address: Int, time_ns: Int) -> Int:
        code = np.searchsorted(self._addresses, address).astype(np.int64)
        known = code < len(self._addresses)
        known[known] = self._addresses[code[known]] == address[known]
        rank = np.searchsorted(self._times, time_ns, side="right").astype(np.int64)
        return np.where(known, code * (len(self._times) + 1) + rank, -1)

    def _find_rows(self, position: Int, keys: Int) -> Int:
        span = len(self._times) + 1
        inside = (position >= 0) & (position < len(self._sorted)) & (keys >= 0)
        rows_found = np.full(len(keys), -1, dtype=np.int64)
        same = self._sorted[position[inside]] // span == keys[inside] // span
        rows = np.flatnonzero(inside)[same]
        rows_found[rows] = self._order[position[rows]]
        return rows_found


class Blocks(Struct, frozen=True, kw_only=True):
    """All memory blocks known to have been live in the window, each counted once.

    ``tenant`` and ``sub`` apply to unclaimed blocks. ``tracked``: returned by an operator in the window.
    ``open``: the end is unknown. ``owner``: each storage row's block.
    """

    address: Int
    begin_ns: Int
    end_ns: Int
    bytes: Int
    tenant: Int
    sub: npt.NDArray[np.object_]
    module: npt.NDArray[np.object_]
    operator: npt.NDArray[np.object_]
    phase: npt.NDArray[np.object_]
    tracked: Bool
    open: Bool
    owner: Int

    def __len__(self) -> int:
        return len(self.begin_ns)


class _StorageBlocks(Struct):
    """Blocks known from storages alone."""

    begin_ns: list[int]
    end_ns: list[int]
    bytes: list[int]
    address: list[int]


def join_storages(storages: Lives, allocations: Lives, window_begin_ns: int) -> Blocks:
    """Return one block per allocation, and one per storage without a recorded allocation."""
    index = AddressIndex(allocations.address, allocations.begin_ns)
    owner = _find_owners(storages, allocations, index)
    ends, unknown = _find_ends(allocations, storages, owner, index)
    lone = _make_storage_blocks(storages, owner, index, window_begin_ns, len(allocations))
    lone_begins, lone_address = _to_ints(lone.begin_ns), _to_ints(lone.address)
    reuse = index.find_first_after(lone_address, lone_begins)
    reused_ns = np.where(reuse >= 0, _take_rows(allocations.begin_ns, reuse), FOREVER)
    lone_ends = np.minimum(_to_ints(lone.end_ns), reused_ns)
    total = len(allocations) + len(lone_begins)
    tracked = np.zeros(total, dtype=bool)
    tracked[owner[storages.known & ~storages.before_window]] = True
    # Each block's storage row: the first one made by an operator, else the first one, else -1.
    representative = np.full(total, -1, dtype=np.int64)
    for rows in (np.flatnonzero(~storages.known)[::-1], np.flatnonzero(storages.known)[::-1]):
        representative[owner[rows]] = rows
    storage = representative
    begins = np.concatenate([allocations.begin_ns, lone_begins])
    tenant, sub = _label_unclaimed(tracked, storage, storages, allocations)
    return Blocks(
        address=np.concatenate([allocations.address, lone_address]),
        begin_ns=begins,
        end_ns=np.maximum(begins, np.concatenate([ends, lone_ends])),
        bytes=np.concatenate([allocations.bytes, _to_ints(lone.bytes)]),
        tenant=tenant,
        sub=sub,
        module=_pick_rows(storages.module, storage),
        operator=np.concatenate(
            [allocations.operator, _pick_rows(storages.operator, storage)[len(allocations) :]]
        ),
        phase=_pick_rows(storages.phase, storage),
        tracked=tracked,
        open=np.concatenate([unknown, np.zeros(len(lone_begins), dtype=bool)]),
        owner=owner,
    )


def _find_owners(storages: Lives, allocations: Lives, index: AddressIndex) -> Int:
    """Return the allocation row behind each storage; -1 if there is none.

    An allocation that was live when the storage was recorded takes precedence over one that started shortly
    after or ended shortly before.
    """
    live = index.find_last_until(storages.address, storages.begin_ns)
    live = np.where(_is_recorded_in_lifetime(storages, allocations, live, 0), live, -1)
    near = index.find_last_until(storages.address, storages.begin_ns + MAX_EARLY_NS)
    near = np.where(_is_recorded_in_lifetime(storages, allocations, near, MAX_LATE_NS), near, -1)
    return np.where(storages.before_window, -1, np.where(live >= 0, live, near))


def _is_recorded_in_lifetime(storages: Lives, allocations: Lives, row: Int, late_ns: int) -> Bool:
    """Mark storages recorded before the end of their candidate allocation, or at most ``late_ns`` after
    it.
    """
    end = _take_rows(allocations.end_ns, row)
    limit = np.where(end == FOREVER, FOREVER, end + late_ns)
    return (row >= 0) & (storages.begin_ns <= limit)


def _find_ends(allocations: Lives, storages: Lives, owner: Int, index: AddressIndex) -> tuple[Int, Bool]:
    """Return each allocation's end, and a mask of the unknown ends."""
    joined = owner >= 0
    death = np.full(len(allocations), -1, dtype=np.int64)
    np.maximum.at(death, owner[joined], storages.end_ns[joined])
    reuse = index.find_first_after(allocations.address, allocations.begin_ns)
    reused_ns = np.where(reuse >= 0, _take_rows(allocations.begin_ns, reuse), FOREVER)
    unseen = allocations.end_ns == FOREVER
    closed = np.minimum(np.where(death >= 0, death, FOREVER), reused_ns)
    ends = np.where(unseen, closed, allocations.end_ns)
    return ends, unseen & (ends == FOREVER) & (death < 0)


def _make_storage_blocks(
    storages: Lives, owner: Int, index: AddressIndex, window_begin_ns: int, offset: int
) -> _StorageBlocks:
    """Return blocks for storages without an allocation, and fill in their ``owner``.

    A storage not made by an operator in the window is older than the window. Two such storages at the same
    address and time are two storage objects of one block.
    """
    lone = _StorageBlocks([], [], [], [])
    latest: dict[int, int] = {}
    has_earlier_allocation = index.find_last_until(storages.address, storages.begin_ns) >= 0
    for row in np.flatnonzero(owner < 0):
        address, begin, end = (
            int(column[row]) for column in (storages.address, storages.begin_ns, storages.end_ns)
        )
        made_in_window = bool(storages.known[row]) and not storages.before_window[row]
        block = latest.get(address)
        if block is not None and not made_in_window and lone.end_ns[block] > begin:
            lone.end_ns[block] = max(lone.end_ns[block], end)
            lone.bytes[block] = max(lone.bytes[block], int(storages.bytes[row]))
        else:
            if not made_in_window and block is None and not has_earlier_allocation[row]:
                begin = min(begin, window_begin_ns)
            block = latest[address] = len(lone.begin_ns)
            lone.begin_ns.append(begin)
            lone.end_ns.append(end)
            lone.bytes.append(int(storages.bytes[row]))
            lone.address.append(address)
        owner[row] = offset + block
    return lone


def _label_unclaimed(
    tracked: Bool, storage: Int, storages: Lives, allocations: Lives
) -> tuple[Int, npt.NDArray[np.object_]]:
    """Return tenant and sub of unclaimed blocks, from the allocating operator."""
    total, count = len(tracked), len(allocations)
    tenant = np.full(total, UNTAGGED, dtype=np.int64)
    sub = np.full(total, "", dtype=object)
    phase = _pick_rows(storages.phase, storage)
    tenant[tracked] = TENANT_CODES[Tenant.TEMPORARY_BUFFERS]
    sub[tracked] = [_TEMPORARY_SUBS.get(name, "op_output") for name in phase[tracked]]
    hidden = np.flatnonzero(~tracked[:count])
    scratch, work = hidden[allocations.collective[hidden]], hidden[~allocations.collective[hidden]]
    work = work[allocations.known[work]]
    tenant[scratch], sub[scratch] = TENANT_CODES[Tenant.COMMUNICATION_BUFFERS], BACKEND_SCRATCH
    tenant[work], sub[work] = TENANT_CODES[Tenant.TEMPORARY_BUFFERS], OPERATOR_WORKSPACE
    return tenant, sub


def _pick_rows(column: npt.NDArray[np.object_], rows: Int) -> npt.NDArray[np.object_]:
    picked = np.full(len(rows), None, dtype=object)
    picked[rows >= 0] = column[rows[rows >= 0]]
    return picked


def _to_ints(values: list[int]) -> Int:
    return np.array(values, dtype=np.int64)


class Segments(Struct, frozen=True, kw_only=True):
    """Spans of blocks' lifetimes, one tenant each: [begin, end) of ``block`` belongs to ``tenant``."""

    block: Int
    begin_ns: Int
    end_ns: Int
    bytes: Int
    tenant: Int
    sub: npt.NDArray[np.object_]


class _ClaimInterval(Struct, frozen=True):
    """One tenant's claim on one block over [begin, end)."""

    begin_ns: int
    end_ns: int
    tenant: int
    sub: str


def resolve_tenants(blocks: Blocks, claims: Claims, generation: Int) -> Segments:
    """Cut every block's lifetime into segments; ``generation``: each storage row's generation."""
    single, single_tenant, single_sub, others = split_single_owner_blocks(blocks, claims, generation)
    intervals_by_block = _make_claim_intervals(blocks, others, generation)
    rows = [
        (block, *span)
        for block, block_intervals in intervals_by_block.items()
        for span in _split_lifetime(blocks, block, block_intervals)
    ]
    begin, end, tenant = (np.array([row[part] for row in rows], dtype=np.int64) for part in (1, 2, 3))
    is_unclaimed = blocks.end_ns > blocks.begin_ns
    is_live = is_unclaimed[single]
    owned = single[is_live]
    is_unclaimed[list(intervals_by_block)] = False
    is_unclaimed[single] = False
    split_blocks = np.array([row[0] for row in rows], dtype=np.int64)
    block = np.concatenate([split_blocks, owned, np.flatnonzero(is_unclaimed)])
    subs = np.array([row[4] for row in rows], dtype=object)
    return Segments(
        block=block,
        begin_ns=np.concatenate([begin, blocks.begin_ns[block[len(split_blocks) :]]]),
        end_ns=np.concatenate([end, blocks.end_ns[block[len(split_blocks) :]]]),
        bytes=blocks.bytes[block],
        tenant=np.concatenate([tenant, single_tenant[is_live], blocks.tenant[is_unclaimed]]),
        sub=np.concatenate([subs, single_sub[is_live], blocks.sub[is_unclaimed]]),
    )


def _make_claim_intervals(blocks: Blocks, claims: Claims, generation: Int) -> dict[int, list[_ClaimInterval]]:
    """Convert claims, sorted by time, to intervals per block; withdrawing a claim ends its interval.

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
    # Heap of active claims by precedence; ties go to the earliest claim, which supplies the sub.
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
    """Label tracked blocks that are kept for the backward pass but were not saved by autograd.

    Allocated in the forward pass, unclaimed, and live when the backward pass starts: an activation kept by a
    custom autograd function (``retained``). Allocated in a recompute and live when it ends: ``recomputed``.
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
    """Return a tenant code's name; ``untagged`` if the bytes are unclaimed."""
    return "untagged" if code == UNTAGGED else list(TENANT_CODES)[code].value


_Item = TypeVar("_Item", bound=np.generic)


def split_single_owner_blocks(
    blocks: Blocks, claims: Claims, generation: Int
) -> tuple[Int, Int, npt.NDArray[np.object_], Claims]:
    """Return blocks with a single owner, their tenants and subs, and the claims on all other blocks, by time.

    ``generation``: each storage row's generation.
    """
    # releases first at equal times, then by ``sub``: independent of row order
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
    return owner, tenant, sub, _take_claims(claims, (block >= 0) & ~is_single_owner)


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
    """Return the block of each claim; -1 if no storage of that generation is known."""
    order = np.argsort(generation, kind="stable")
    row = np.searchsorted(generation[order], claimed, side="right") - 1
    storage = _take_rows(order, row)
    known = (row >= 0) & (_take_rows(generation, storage) == claimed)
    return np.where(known, _take_rows(owner, storage), -1)


def _take_rows(column: npt.NDArray[_Item], rows: Int) -> npt.NDArray[_Item]:
    """Return ``column[rows]``, tolerating -1 in an empty column; values for -1 must not be used."""
    return column[rows] if len(column) else np.zeros(len(rows), dtype=column.dtype)
