"""Compute the memory of one device at one moment: the allocator's terms, and memory outside the allocator.

    process = reserved + collectives + context        device_used = process + other_processes

Only differences within an NVML sample are used, because samples are rarely taken at the exact moment.
collectives: growth of process - reserved over the first collective of each group; overlapping groups are
counted once.
NVML counts the driver's own reserve (ECC, page tables) as used; it cannot be separated from other processes.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Columns
from zprof.analysis.memory.history import AllocatorTerms, History, compute_terms
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.memory import DeviceMemory
from zprof.model.tenants import Tenant

_BEFORE, _AFTER = "before_group", "after_group"
ALLOCATED_PEAK, RESERVED_PEAK = "allocated peak", "reserved peak"


class OutsideTerms(Struct, frozen=True, kw_only=True):
    """Terms outside the allocator; None if unknown, with the reason in ``gaps``.

    ``non_allocator_bytes``: memory of the process outside its allocator, the sum of collectives and context.
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
    """A row of the table ``device``."""

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
    """Return the terms near a moment; ``device_table`` is the rank's table ``device``, or None."""
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
    """Split the process memory outside its allocator; return (collectives, context, gaps)."""
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
    """Return the first samples before and after each group's first collective."""
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
    """Device of a rank at a named instant."""

    rank: int
    device: str
    name: str
    time_ns: int


def make_device_memory(
    moment: DeviceMoment, history: History, tenants: Mapping[Tenant, int], outside: OutsideTerms
) -> tuple[DeviceMemory, list[Gap]]:
    """Return the device's terms at a moment, and the contradictions in the history as gaps.

    If the history contradicts itself, the free terms are unknown. Reserved memory is also unknown if it is
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
    """Return the leaf completed with the terms outside the allocator."""
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
