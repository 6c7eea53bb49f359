"""Describe a recorded GPU at its allocated and reserved peaks, from allocator history or counters, and NVML.

Without a history, the counters at step boundaries are used: requested, allocated - requested, active -
allocated, inactive split, reserved - active - split (``torch.cuda.memory_stats``). A boundary counts as the
reserved peak only if reserved memory was at its all-time maximum.
"""

from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns
from zprof.analysis.memory.device_terms import (
    ALLOCATED_PEAK,
    RESERVED_PEAK,
    DeviceMoment,
    OutsideTerms,
    add_outside_terms,
    compute_outside_terms,
    make_device_memory,
)
from zprof.analysis.memory.history import (
    HeldBlocks,
    History,
    find_live_blocks,
    find_peak_near,
    find_reserved_peak,
    read_history,
)
from zprof.analysis.memory.live_bytes import RankLives, find_live_segments
from zprof.analysis.memory.tables import TENANT_CODES, UNTAGGED, Int, read_checked_table
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap, GapKind
from zprof.model.memory import DeviceMemory
from zprof.model.tenants import Tenant
from zprof.run.reader import Run

_COUNTERS = ["requested_bytes", "allocated_bytes", "active_bytes", "split_bytes", "reserved_bytes"]
_HOST = "cpu"
#: Live bytes of the history and of the recording may differ by this share: clocks differ by microseconds.
_TOLERANCE = 0.01


def find_reserved_peak_row(samples: Columns, device: str) -> dict[str, int] | None:
    """Return time and counters of the step boundary with reserved memory at its all-time peak.

    Ties go to the most live bytes, then to the first.
    """
    is_counted = samples.texts("device").equals(device)
    for name in (*_COUNTERS, "peak_reserved_bytes"):
        is_counted = is_counted & samples.known(name)
    rows = samples.at(is_counted)
    rows = rows.at(rows.ints("reserved_bytes") == rows.ints("peak_reserved_bytes").max(initial=-1))
    if not len(rows):
        return None
    highest = int(np.argmax(rows.ints("requested_bytes")))
    return {name: int(rows.ints(name)[highest]) for name in ("time_ns", *_COUNTERS)}


def make_device_memory_from_counters(
    rank: int, device: str, row: Mapping[str, int], tenants: dict[Tenant, int], outside: OutsideTerms
) -> DeviceMemory | None:
    """Return the device's terms at that boundary; None if its counters contradict each other."""
    live, allocated, active, split, reserved = (row[column] for column in _COUNTERS)
    rounding, awaiting, free = allocated - live, active - allocated, reserved - active - split
    if min(live, rounding, awaiting, split, free) < 0:
        return None
    leaf = DeviceMemory(
        rank=rank,
        device=device,
        moment=RESERVED_PEAK,
        live_bytes=live,
        tenants=tenants,
        rounding_bytes=rounding,
        awaiting_free_bytes=awaiting,
        split_bytes=split,
        free_segments_bytes=free,
        reserved_bytes=reserved,
    )
    return add_outside_terms(leaf, outside)


def find_reserved_bytes_between(samples: Columns, device: str, time_ns: int) -> int | None:
    """Return the reserved bytes at a moment between two boundaries that agree; else None.

    Boundaries agree if both have the same value, no allocation was retried between them (a retry frees cached
    memory), and the value was never higher.
    """
    rows = samples.at(samples.texts("device").equals(device) & samples.known("reserved_bytes"))
    rows = rows.sort_by("time_ns")
    before, after = (
        np.flatnonzero(rows.ints("time_ns") <= time_ns),
        np.flatnonzero(rows.ints("time_ns") >= time_ns),
    )
    if not len(before) or not len(after):
        return None
    reserved, peak, retries = (
        rows[name].tolist() for name in ("reserved_bytes", "peak_reserved_bytes", "retries")
    )
    left, right = before[-1], after[0]
    was_retried = retries[left] is None or retries[left] != retries[right]
    is_same = reserved[left] == reserved[right] == peak[right]
    return reserved[right] if is_same and not was_retried else None


class LiveOwners(Struct, frozen=True, kw_only=True):
    """Live memory at an instant: address, bytes and tenant (a position in PRECEDENCE, or UNTAGGED)."""

    address: Int
    bytes: Int
    tenant: Int


#: Returns the live memory at an instant.
OwnersAt = Callable[[int], LiveOwners]


def make_owners_lookup(lives: RankLives) -> OwnersAt:
    """Return a function that looks up the owners found by hooks."""

    def look_up(time_ns: int) -> LiveOwners:
        rows = find_live_segments(lives.segments, time_ns)
        return LiveOwners(
            address=lives.blocks.address[lives.segments.block[rows]],
            bytes=lives.segments.bytes[rows],
            tenant=lives.segments.tenant[rows],
        )

    return look_up


def match_tenants(blocks: HeldBlocks, rows: Int, owners: LiveOwners) -> Int:
    """Return the tenant of each live block of a history by its address; UNTAGGED if unknown."""
    order = np.argsort(owners.address, kind="stable")
    known = owners.address[order]
    tenants = np.full(len(rows), UNTAGGED, dtype=np.int64)
    if len(known):
        position = np.minimum(np.searchsorted(known, blocks.address[rows]), len(known) - 1)
        is_match = known[position] == blocks.address[rows]
        tenants[is_match] = owners.tenant[order][position[is_match]]
    return tenants


class RecordedDevice(Struct, frozen=True, kw_only=True):
    """Device of a rank at its peaks.

    ``reserved_unused_bytes``: reserved at the allocated peak but not live in the recording.
    ``non_pytorch_bytes``: memory of the process outside its allocator.
    """

    devices: tuple[DeviceMemory, ...] = ()
    reserved_unused_bytes: int | None = None
    non_pytorch_bytes: int | None = None
    gaps: tuple[Gap, ...] = ()


def analyse_recorded_device(
    run: Run, rank: int, device: str, peak_time_ns: int, tenants: OwnersAt
) -> RecordedDevice:
    """Return the leaves of one device of a rank; empty for the host, which reserves no memory.

    Args:
        run: The recording.
        rank: One of its ranks.
        device: Its name in the tables, such as ``cuda:0``.
        peak_time_ns: Time of the recording's maximum of live bytes.
        tenants: Returns the live memory of the recording at an instant, see :func:`make_owners_lookup`.

    Raises:
        BadInput: a table is damaged.
    """
    if device == _HOST:
        return RecordedDevice()
    nvml, peak = _read_optional_table(run, rank, "device"), tenants(peak_time_ns)
    outside = compute_outside_terms(nvml, rank, device, peak_time_ns)
    block, segment = _read_optional_table(run, rank, "block"), _read_optional_table(run, rank, "segment")
    history = None if block is None or segment is None else read_history(block, segment, device)
    if history is not None and history.begin_ns <= peak_time_ns:
        leaves, gaps = _describe_from_history(history, rank, peak_time_ns, tenants, nvml)
        reserved = leaves[0].reserved_bytes
    else:
        leaves, reserved, gaps = _describe_from_counters(run, rank, device, peak_time_ns, tenants, outside)
    unused = None if reserved is None else reserved - int(peak.bytes.sum())
    if unused is not None and unused < 0:
        gaps.append(_make_disagreement_gap(rank, device, "live memory exceeds reserved memory", -unused))
        unused = None
    return RecordedDevice(
        devices=tuple(leaves),
        reserved_unused_bytes=unused,
        non_pytorch_bytes=outside.non_allocator_bytes,
        gaps=tuple(dict.fromkeys([*outside.gaps, *gaps])),
    )


def sum_by_tenant_code(tenant: Int, sizes: Int) -> dict[Tenant, int]:
    """Return the bytes of each tenant, without untagged bytes."""
    return {owner: int(sizes[tenant == code].sum()) for owner, code in TENANT_CODES.items()}


def _describe_from_history(
    history: History, rank: int, peak_time_ns: int, tenants: OwnersAt, nvml: Columns | None
) -> tuple[list[DeviceMemory], list[Gap]]:
    moments = [(ALLOCATED_PEAK, find_peak_near(history, peak_time_ns))]
    reserved_peak_ns = find_reserved_peak(history, history.begin_ns, history.end_ns)
    if reserved_peak_ns is not None:
        moments.append((RESERVED_PEAK, reserved_peak_ns))
    leaves, gaps = [], []
    for name, time_ns in moments:
        moment = DeviceMoment(rank=rank, device=history.device, name=name, time_ns=time_ns)
        outside, owners = compute_outside_terms(nvml, rank, history.device, time_ns), tenants(time_ns)
        rows = find_live_blocks(history.blocks, time_ns)
        held_bytes = sum_by_tenant_code(
            match_tenants(history.blocks, rows, owners), history.blocks.requested_bytes[rows]
        )
        leaf, new_gaps = make_device_memory(moment, history, held_bytes, outside)
        leaves.append(leaf)
        gaps += [*new_gaps, *_check_agreement(moment, leaf, owners)]
    return leaves, gaps


def _check_agreement(moment: DeviceMoment, leaf: DeviceMemory, owners: LiveOwners) -> list[Gap]:
    """Report live bytes that differ between recording (whole blocks) and history (with rounding)."""
    blocks, recorded = leaf.live_bytes + (leaf.rounding_bytes or 0), int(owners.bytes.sum())
    if abs(blocks - recorded) <= _TOLERANCE * max(blocks, recorded):
        return []
    what = f"at the {moment.name} the allocator's history differs from its events"
    return [_make_disagreement_gap(moment.rank, moment.device, what, abs(blocks - recorded))]


def _describe_from_counters(
    run: Run, rank: int, device: str, peak_time_ns: int, tenants: OwnersAt, outside: OutsideTerms
) -> tuple[list[DeviceMemory], int | None, list[Gap]]:
    samples, owners = _read_optional_table(run, rank, "samples"), tenants(peak_time_ns)
    gaps = [
        Gap(
            kind=GapKind.DEVICE_MEMORY,
            what="breakdown of reserved memory",
            rank=rank,
            reason=f"{device}: no allocator history at the peak, only counters at step boundaries",
            remedy="record a full memory window, and do not enable torch's memory history yourself",
        )
    ]
    reserved = None if samples is None else find_reserved_bytes_between(samples, device, peak_time_ns)
    row = None if samples is None else find_reserved_peak_row(samples, device)
    # only live bytes are known: whole blocks, including rounding
    leaf = DeviceMemory(
        rank=rank,
        device=device,
        moment=ALLOCATED_PEAK,
        live_bytes=int(owners.bytes.sum()),
        tenants=sum_by_tenant_code(owners.tenant, owners.bytes),
        reserved_bytes=reserved,
    )
    leaf = add_outside_terms(leaf, outside)
    if row is None:
        return [leaf], reserved, gaps
    time_ns = row["time_ns"]
    peak_owners, nvml = tenants(time_ns), _read_optional_table(run, rank, "device")
    reserved_peak = make_device_memory_from_counters(
        rank,
        device,
        row,
        sum_by_tenant_code(peak_owners.tenant, peak_owners.bytes),
        compute_outside_terms(nvml, rank, device, time_ns),
    )
    if reserved_peak is None:
        gaps.append(_make_disagreement_gap(rank, device, "counters of a step boundary do not add up", 0))
    return [leaf, *([] if reserved_peak is None else [reserved_peak])], reserved, gaps


def _read_optional_table(run: Run, rank: int, name: str) -> Columns | None:
    return read_checked_table(run, rank, name) if run.has_table(rank, name) else None


def _make_disagreement_gap(rank: int, device: str, what: str, size: int) -> Gap:
    return Gap(
        kind=GapKind.DEVICE_MEMORY,
        what="reserved memory",
        rank=rank,
        reason=f"{device}: {what}" + (f", by {format_bytes(size)}" if size else ""),
        remedy="record again; if the contradiction persists, please report it",
    )
