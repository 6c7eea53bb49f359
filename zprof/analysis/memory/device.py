"""Describe a device at its allocated and reserved peaks: memory inside and outside the allocator.

    process = reserved + collectives + context        device_used = process + other_processes

Only differences within an NVML sample are used, because samples are rarely taken at the exact moment.
collectives: growth of process - reserved over each group's first collective; overlapping groups are counted
once. NVML counts the driver's own reserve (ECC, page tables) as used; it cannot be told apart from other
processes.

A recorded device's terms come from allocator history or counters, and NVML. Without a history, the counters
at step boundaries are used: requested, allocated - requested, active - allocated, inactive split, reserved -
active - split (``torch.cuda.memory_stats``). A boundary counts as the reserved peak only if reserved memory
was at its all-time maximum there.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Columns
from zprof.analysis.memory.history import (
    AllocatorTerms,
    HeldBlocks,
    History,
    compute_terms,
    find_live_blocks,
    find_peak_near,
    find_reserved_peak,
    read_history,
)
from zprof.analysis.memory.live_bytes import RankLives, find_live_segments
from zprof.analysis.memory.tables import TENANT_CODES, UNTAGGED, Int, read_checked_table
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.memory import DeviceMemory
from zprof.model.tenants import Tenant
from zprof.run.reader import Run

_COUNTERS = ["requested_bytes", "allocated_bytes", "active_bytes", "split_bytes", "reserved_bytes"]
#: Live bytes of history and recording may differ by this share, because clocks differ by microseconds.
_TOLERANCE = 0.01
_BEFORE, _AFTER = "before_group", "after_group"
ALLOCATED_PEAK, RESERVED_PEAK = "allocated peak", "reserved peak"


class OutsideTerms(Struct, frozen=True, kw_only=True):
    """Terms outside the allocator; None if unknown, with the reason in ``gaps``.

    ``non_allocator_bytes``: process memory outside the allocator, the sum of collectives and context.
    """

    non_allocator_bytes: int | None = None
    collectives_bytes: int | None = None
    context_bytes: int | None = None
    process_bytes: int | None = None
    other_processes_bytes: int | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    apart_ns: int | None = None
    gaps: tuple[Gap, ...] = ()


class _Sample(Struct, frozen=True):
    """A row of the ``device`` table."""

    time_ns: int
    reason: str
    group: str | None
    process: int | None
    reserved: int | None
    used: int | None
    total: int | None

    @property
    def non_allocator(self) -> int | None:
        return None if self.process is None or self.reserved is None else self.process - self.reserved


def compute_outside_terms(device_table: Columns | None, rank: int, device: str, time_ns: int) -> OutsideTerms:
    """Return the terms near a moment; ``device_table`` is the rank's ``device`` table, or None."""
    samples = _read_samples(device_table, device)
    if not samples:
        return OutsideTerms(gaps=(make_gap("device_not_sampled", rank=rank, device=device),))
    known = [sample for sample in samples if sample.non_allocator is not None]
    sample = min(known or samples, key=lambda other: abs(other.time_ns - time_ns))
    apart_ns = abs(sample.time_ns - time_ns)
    if sample.process is None or sample.non_allocator is None:
        gap = make_gap("process_not_sampled", rank=rank, device=device)
        return OutsideTerms(total_bytes=sample.total, used_bytes=sample.used, apart_ns=apart_ns, gaps=(gap,))
    collectives, context, gaps = _split_collectives(samples, sample.non_allocator, rank, device, time_ns)
    others = None if sample.used is None else sample.used - sample.process
    if others is not None and others < 0:
        gaps.append(make_gap("device_below_process", rank=rank, device=device, size=-others))
        others = None
    return OutsideTerms(
        non_allocator_bytes=sample.non_allocator if sample.non_allocator >= 0 else None,
        collectives_bytes=collectives,
        context_bytes=context,
        process_bytes=sample.process,
        other_processes_bytes=others,
        total_bytes=sample.total,
        used_bytes=sample.used,
        apart_ns=apart_ns,
        gaps=tuple(gaps),
    )


def _read_samples(table: Columns | None, device: str) -> list[_Sample]:
    if table is None:
        return []
    rows = table.at(table.texts("device").equals(device)).sort_by("time_ns")
    columns = ("time_ns", "reason", "group", "process_bytes", "reserved_bytes", "used_bytes", "total_bytes")
    return [_Sample(*values) for values in zip(*(rows[name].tolist() for name in columns), strict=True)]


def _split_collectives(
    samples: Sequence[_Sample], non_allocator: int, rank: int, device: str, time_ns: int
) -> tuple[int | None, int | None, list[Gap]]:
    """Split the process memory outside the allocator; return (collectives, context, gaps)."""
    grown = 0
    for before, after in _merge_brackets(
        _bracket_groups([other for other in samples if other.time_ns <= time_ns])
    ):
        if before.non_allocator is None or after.non_allocator is None:
            return None, None, [make_gap("group_not_sampled", rank=rank, device=device)]
        if after.non_allocator < before.non_allocator:
            size = before.non_allocator - after.non_allocator
            return None, None, [make_gap("memory_shrank_at_collective", rank=rank, device=device, size=size)]
        grown += after.non_allocator - before.non_allocator
    if non_allocator < grown:
        size = grown - non_allocator
        return None, None, [make_gap("process_below_collectives", rank=rank, device=device, size=size)]
    return grown, non_allocator - grown, []


def _bracket_groups(samples: Sequence[_Sample]) -> list[tuple[_Sample, _Sample]]:
    """Return the nearest samples before and after each group's first collective."""
    firsts: dict[tuple[str, str], _Sample] = {}
    for sample in samples:
        if sample.group is not None:
            firsts.setdefault((sample.group, sample.reason), sample)
    groups = dict.fromkeys(group for group, _ in firsts)
    pairs = [(firsts.get((group, _BEFORE)), firsts.get((group, _AFTER))) for group in groups]
    return [(before, after) for before, after in pairs if before is not None and after is not None]


def _merge_brackets(brackets: Sequence[tuple[_Sample, _Sample]]) -> list[tuple[_Sample, _Sample]]:
    """Merge brackets that overlap into one pair each."""
    joined: list[tuple[_Sample, _Sample]] = []
    for before, after in sorted(brackets, key=lambda bracket: bracket[0].time_ns):
        if joined and before.time_ns < joined[-1][1].time_ns:
            first, last = joined.pop()
            joined.append((first, max(last, after, key=lambda sample: sample.time_ns)))
        else:
            joined.append((before, after))
    return joined


class DeviceMoment(Struct, frozen=True, kw_only=True):
    """A rank's device at a named moment."""

    rank: int
    device: str
    name: str
    time_ns: int


def make_device_memory(
    moment: DeviceMoment, history: History, tenants: Mapping[Tenant, int], outside: OutsideTerms
) -> tuple[DeviceMemory, list[Gap]]:
    """Return the device's terms at a moment, and contradictions in the history as gaps.

    If the history contradicts itself, the free terms are unknown. Reserved memory is unknown, too, if it is
    smaller than the blocks in it.
    """
    terms = compute_terms(history, moment.time_ns)
    reserved = (
        terms.reserved_bytes
        if len(history.held_segments) and not _compute_missing_segment_bytes(terms)
        else None
    )
    leaf = DeviceMemory(
        rank=moment.rank,
        device=moment.device,
        moment=moment.name,
        live_bytes=terms.live_bytes,
        tenants=tenants,
        rounding_bytes=terms.rounding_bytes,
        awaiting_free_bytes=terms.awaiting_free_bytes,
        split_bytes=terms.split_bytes,
        free_segments_bytes=terms.free_segments_bytes,
        private_pools_bytes=terms.private_pools_bytes,
        reserved_bytes=reserved,
    )
    return add_outside_terms(leaf, outside), _list_contradiction_gaps(moment, history, terms, reserved)


def add_outside_terms(leaf: DeviceMemory, outside: OutsideTerms) -> DeviceMemory:
    """Add the terms outside the allocator to the leaf."""
    non_allocator, others, process = (
        outside.non_allocator_bytes,
        outside.other_processes_bytes,
        outside.process_bytes,
    )
    if leaf.reserved_bytes is not None and non_allocator is not None:
        process = leaf.reserved_bytes + non_allocator
    return replace(
        leaf,
        collectives_bytes=outside.collectives_bytes,
        context_bytes=outside.context_bytes,
        process_bytes=process,
        other_processes_bytes=others,
        device_used_bytes=outside.used_bytes if process is None or others is None else process + others,
        device_total_bytes=outside.total_bytes,
        apart_ns=outside.apart_ns,
    )


def _compute_missing_segment_bytes(terms: AllocatorTerms) -> int:
    """Return the bytes by which the held blocks exceed all segments; 0 if they fit."""
    block_bytes = terms.live_bytes + terms.rounding_bytes + terms.awaiting_free_bytes
    return max(0, block_bytes - terms.reserved_bytes)


def _list_contradiction_gaps(
    moment: DeviceMoment, history: History, terms: AllocatorTerms, reserved: int | None
) -> list[Gap]:
    if not len(history.held_segments):
        return [make_gap("snapshot_without_segments", rank=moment.rank, device=moment.device)]
    gaps = []
    if reserved is None:
        gaps.append(
            make_gap(
                "blocks_exceed_segments",
                rank=moment.rank,
                device=moment.device,
                moment=moment.name,
                segments=terms.reserved_bytes,
                excess=_compute_missing_segment_bytes(terms),
            )
        )
    if terms.contradiction_bytes:
        gaps.append(
            make_gap(
                "blocks_outside_segments",
                rank=moment.rank,
                device=moment.device,
                moment=moment.name,
                size=terms.contradiction_bytes,
            )
        )
    if history.blocks.understated_bytes:
        size = history.blocks.understated_bytes
        gaps.append(make_gap("blocks_below_request", rank=moment.rank, device=moment.device, size=size))
    return gaps


def find_reserved_peak_row(samples: Columns, device: str) -> dict[str, int] | None:
    """Return time and counters of the step boundary at which reserved memory is at its all-time peak.

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
    """Return the device's terms at a step boundary; None if its counters contradict each other."""
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
    """Return the reserved bytes at a moment between two step boundaries that agree, else None.

    Boundaries agree if their values are equal, no allocation was retried between them (a retry frees cached
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
    """Live memory at a moment: address, bytes and tenant (a position in PRECEDENCE, or UNTAGGED)."""

    address: Int
    bytes: Int
    tenant: Int


#: Returns the live memory at a moment.
OwnersAt = Callable[[int], LiveOwners]


def make_owners_lookup(lives: RankLives) -> OwnersAt:
    """Return a function that looks up live memory with the owners found by hooks."""

    def look_up(time_ns: int) -> LiveOwners:
        rows = find_live_segments(lives.segments, time_ns)
        return LiveOwners(
            address=lives.blocks.address[lives.segments.block[rows]],
            bytes=lives.segments.bytes[rows],
            tenant=lives.segments.tenant[rows],
        )

    return look_up


def match_tenants(blocks: HeldBlocks, rows: Int, owners: LiveOwners) -> Int:
    """Return the tenant of each live block of a history by address; UNTAGGED if unknown."""
    order = np.argsort(owners.address, kind="stable")
    known = owners.address[order]
    tenants = np.full(len(rows), UNTAGGED, dtype=np.int64)
    if len(known):
        position = np.minimum(np.searchsorted(known, blocks.address[rows]), len(known) - 1)
        is_match = known[position] == blocks.address[rows]
        tenants[is_match] = owners.tenant[order][position[is_match]]
    return tenants


class RecordedDevice(Struct, frozen=True, kw_only=True):
    """A rank's device at its peaks.

    ``reserved_unused_bytes``: reserved at the allocated peak but not live in the recording.
    ``non_pytorch_bytes``: process memory outside the allocator.
    """

    devices: tuple[DeviceMemory, ...] = ()
    reserved_unused_bytes: int | None = None
    non_pytorch_bytes: int | None = None
    gaps: tuple[Gap, ...] = ()


def analyse_recorded_device(
    run: Run, rank: int, device: str, peak_time_ns: int, tenants: OwnersAt
) -> RecordedDevice:
    """Return the leaves of one of a rank's accelerators.

    Args:
        run: The recording.
        rank: One of its ranks.
        device: Its name in the tables, such as ``cuda:0``.
        peak_time_ns: Time of the recording's maximum of live bytes.
        tenants: Returns the live memory of the recording at an instant, see :func:`make_owners_lookup`.

    Raises:
        BadInput: a table is damaged.
    """
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
        gaps.append(make_gap("live_above_reserved", rank=rank, device=device, size=-unused))
        unused = None
    return RecordedDevice(
        devices=tuple(leaves),
        reserved_unused_bytes=unused,
        non_pytorch_bytes=outside.non_allocator_bytes,
        gaps=tuple(dict.fromkeys([*outside.gaps, *gaps])),
    )


def sum_by_tenant_code(tenant: Int, sizes: Int) -> dict[Tenant, int]:
    """Return the bytes by tenant, without untagged bytes."""
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
    """Report a difference of live bytes between the recording (whole blocks) and the history (with
    rounding).
    """
    blocks, recorded = leaf.live_bytes + (leaf.rounding_bytes or 0), int(owners.bytes.sum())
    if abs(blocks - recorded) <= _TOLERANCE * max(blocks, recorded):
        return []
    return [
        make_gap(
            "history_disagrees",
            rank=moment.rank,
            device=moment.device,
            moment=moment.name,
            size=abs(blocks - recorded),
        )
    ]


def _describe_from_counters(
    run: Run, rank: int, device: str, peak_time_ns: int, tenants: OwnersAt, outside: OutsideTerms
) -> tuple[list[DeviceMemory], int | None, list[Gap]]:
    samples, owners = _read_optional_table(run, rank, "samples"), tenants(peak_time_ns)
    gaps = [make_gap("history_not_recorded", rank=rank, device=device)]
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
        gaps.append(make_gap("counters_disagree", rank=rank, device=device))
    return [leaf, *([] if reserved_peak is None else [reserved_peak])], reserved, gaps


def _read_optional_table(run: Run, rank: int, name: str) -> Columns | None:
    return read_checked_table(run, rank, name) if run.has_table(rank, name) else None
