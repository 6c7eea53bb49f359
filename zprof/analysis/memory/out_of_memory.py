"""Describe the failed allocations of a snapshot: what filled the device, and if free memory was enough.

Before torch raises an out-of-memory error it has returned all entirely free segments of the common pool to
the driver and tried again, so that what is free then is in segments in use: a request fails although enough
is free if no piece of it is large enough. A private pool (a CUDA graph's) gives to its own requests only.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from msgspec import Struct

from zprof.analysis.memory.allocator_terms import AllocatorTerms, compute_terms, merge_segments
from zprof.analysis.memory.attribution.assign import sum_tenant_bytes
from zprof.analysis.memory.attribution.block_tenants import BlockTenants
from zprof.analysis.memory.attribution.frames import StackIndex
from zprof.analysis.memory.history import History, find_live_blocks
from zprof.analysis.memory.tables import Int
from zprof.model.memory import Basis
from zprof.model.out_of_memory import OutOfMemory
from zprof.model.tenants import DISPLAY_ORDER

#: A program that catches the error and tries smaller batches can fail often: the last ones are described.
_MAX_FAILURES = 8
_FREE, _REQUEST, _DRIVER, _STACK, _POOL = (
    "oom",
    "oom_request",
    "oom_driver_request",
    "oom_stack",
    "oom_pool",
)


class _Failure(Struct, frozen=True, kw_only=True):
    """The marks of one failed allocation."""

    time_ns: int
    requested_bytes: int
    driver_bytes: int
    device_free_bytes: int | None
    stack: int
    pool: str


def find_out_of_memory(
    rank: int, history: History, names: BlockTenants, stacks: StackIndex, mark: pd.DataFrame
) -> tuple[OutOfMemory, ...]:
    """Return the last failed allocations of a device, oldest first."""
    failures = list(_list_failures(mark, history.device))[-_MAX_FAILURES:]
    return tuple(_describe(rank, history, names, stacks, failure) for failure in failures)


def find_failure_times(mark: pd.DataFrame) -> dict[str, int]:
    """Return the devices of failed allocations, and the time of the first one on each."""
    rows = mark[mark["kind"] == _REQUEST]
    first = rows["time_ns"].groupby(rows["name"].astype(str)).min()
    return {str(device): int(time_ns) for device, time_ns in first.items()}


def _list_failures(mark: pd.DataFrame, device: str) -> Iterator[_Failure]:
    rows = mark[(mark["name"].astype(str) == device) & mark["kind"].isin([_FREE, _REQUEST, _DRIVER, _STACK])]
    numbers: dict[int, dict[str, int]] = {}
    columns = (rows["time_ns"].tolist(), rows["kind"].astype(str).tolist(), rows["number"].tolist())
    for time_ns, kind, number in zip(*columns, strict=True):
        numbers.setdefault(int(time_ns), {})[kind] = int(number)
    index = device.rpartition(":")[2]
    pools = mark[(mark["kind"] == _POOL) & (mark["number"].astype(str) == index)]
    pool_by_time = dict(zip(pools["time_ns"].tolist(), pools["name"].astype(str).tolist(), strict=True))
    for time_ns, found in sorted(numbers.items()):
        if _REQUEST in found:
            free_bytes = found.get(_FREE, -1)
            yield _Failure(
                time_ns=time_ns,
                requested_bytes=found[_REQUEST],
                driver_bytes=max(found.get(_DRIVER, 0), found[_REQUEST]),
                device_free_bytes=free_bytes if free_bytes >= 0 else None,
                stack=found.get(_STACK, -1),
                pool=pool_by_time.get(time_ns, ""),
            )


def _describe(
    rank: int, history: History, names: BlockTenants, stacks: StackIndex, failure: _Failure
) -> OutOfMemory:
    terms = compute_terms(history, failure.time_ns)
    live = find_live_blocks(history.blocks, failure.time_ns)
    sizes = history.blocks.requested_bytes
    tenants, untagged_bytes = sum_tenant_bytes(names.tenant[live], sizes[live])
    by_sizes = {owner.tenant for owner in names.sum_bytes(live, sizes) if owner.basis is Basis.SIZES}
    pieces = _list_free_pieces(history, failure) if _is_consistent(history, terms) else None
    would_fit, short_bytes = _judge_defragmented(failure, None if pieces is None else int(pieces.sum()))
    device_free = failure.device_free_bytes
    segments = history.held_segments
    held = (segments.begin_ns <= failure.time_ns) & (segments.end_ns > failure.time_ns)
    return OutOfMemory(
        rank=rank,
        device=history.device,
        time_ns=failure.time_ns - history.begin_ns,
        requested_bytes=failure.requested_bytes,
        driver_bytes=failure.driver_bytes,
        device_free_bytes=device_free,
        live_bytes=terms.live_bytes,
        allocated_bytes=terms.live_bytes + terms.rounding_bytes,
        awaiting_free_bytes=terms.awaiting_free_bytes,
        reserved_bytes=terms.reserved_bytes if _is_consistent(history, terms) else None,
        split_bytes=terms.split_bytes,
        free_segments_bytes=terms.free_segments_bytes,
        private_pools_bytes=terms.private_pools_bytes,
        largest_free_bytes=None if pieces is None else int(pieces.max(initial=0)),
        tenants=tenants,
        untagged_bytes=untagged_bytes,
        would_fit_defragmented=would_fit,
        short_bytes=short_bytes,
        is_limited=device_free is not None and device_free >= failure.driver_bytes,
        expandable=bool(segments.expandable[held].any()),
        pool=failure.pool,
        inferred_tenants=tuple(tenant for tenant in DISPLAY_ORDER if tenant in by_sizes),
        unknown_tenants=names.list_unknown_tenants(),
        confidence_bytes=names.sum_confidence_bytes(live, sizes),
        stack=stacks.format_stack(failure.stack),
    )


def _is_consistent(history: History, terms: AllocatorTerms) -> bool:
    return bool(len(history.held_segments)) and not terms.contradiction_bytes


def _judge_defragmented(failure: _Failure, pool_free_bytes: int | None) -> tuple[bool | None, int | None]:
    """Return (True if the free bytes would have been enough, the bytes that are missing); None if unknown.

    The free bytes of the device count only if the driver refused the request: under a limit of the process
    they are out of reach.
    """
    if pool_free_bytes is None:
        return None, None
    device_free = failure.device_free_bytes
    if device_free is not None and device_free < failure.driver_bytes:
        missing = failure.requested_bytes - pool_free_bytes - device_free
        return missing <= 0, max(0, missing)
    return (True, 0) if pool_free_bytes >= failure.requested_bytes else (None, None)


def _list_free_pieces(history: History, failure: _Failure) -> Int:
    """Return the sizes of the contiguous free pieces of the request's pool."""
    regions = merge_segments(history.held_segments, failure.time_ns)
    blocks = history.blocks
    held = np.flatnonzero((blocks.begin_ns <= failure.time_ns) & (blocks.released_ns > failure.time_ns))
    begins = np.sort(np.concatenate([regions.address, (blocks.address + blocks.block_bytes)[held]]))
    ends = np.sort(np.concatenate([regions.address + regions.bytes, blocks.address[held]]))
    # Nothing overlaps, so the sorted starts of free pieces pair with their sorted ends; some are empty.
    region = np.searchsorted(regions.address, begins, side="right") - 1
    # an empty name is the common pool
    same_pool = {failure.pool} if failure.pool else {"", "0,0"}
    in_pool = np.array([name in same_pool for name in history.held_segments.pools], dtype=bool)
    pieces: Int = (ends - begins)[in_pool[regions.pool[region]]]
    return pieces[pieces > 0]
