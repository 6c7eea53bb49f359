"""Compute the memory of one device at one moment: the allocator's terms, and memory outside of it.

    process = reserved + collectives + context        device_used = process + other_processes

Only differences of an NVML sample are used, because it is rarely taken at the exact moment. collectives:
growth of process - reserved over the first collective of each group; overlapping groups are counted once.
NVML counts the driver's own reserve (ECC, page tables) as used; it cannot be separated from other processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from zprof.analysis.memory.history import AllocatorTerms, History, compute_terms
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap, GapKind
from zprof.model.memory import DeviceMemory
from zprof.model.tenants import Tenant

_BEFORE, _AFTER = "before_group", "after_group"
_OUTSIDE, _GROUPS = "memory outside the allocator", "memory of collectives"
_AGAIN = "record again; if it stays, please report it"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideTerms:
    """Terms outside of the allocator; None is unknown, and ``gaps`` say why.

    ``beside_bytes``: memory of the process outside of its allocator, that is collectives and context
    together.
    """

    beside_bytes: int | None = None
    collectives_bytes: int | None = None
    context_bytes: int | None = None
    process_bytes: int | None = None
    other_processes_bytes: int | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    apart_ns: int | None = None
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True)
class _Sample:
    """A row of the table ``device``."""

    time_ns: int
    reason: str
    group: str | None
    process: int | None
    reserved: int | None
    used: int | None
    total: int | None

    @property
    def beside(self) -> int | None:
        return None if self.process is None or self.reserved is None else self.process - self.reserved


@dataclass(frozen=True, slots=True)
class _RankDevice:
    """Rank and device of the samples, for gaps."""

    rank: int
    device: str

    def gap(self, what: str, reason: str, remedy: str) -> Gap:
        return Gap(
            kind=GapKind.DEVICE_MEMORY,
            what=what,
            rank=self.rank,
            reason=f"{self.device}: {reason}",
            remedy=remedy,
        )

    def contradiction(self, what: str, size: int) -> Gap:
        return self.gap(
            _OUTSIDE, f"{what}, by {format_bytes(size)}: the samples contradict each other", _AGAIN
        )


def compute_outside_terms(
    device_table: pd.DataFrame | None, rank: int, device: str, time_ns: int
) -> OutsideTerms:
    """Return the terms near a moment; ``device_table`` is the rank's table ``device``, or None."""
    samples, place = _read_samples(device_table, device), _RankDevice(rank, device)
    if not samples:
        gap = place.gap(_OUTSIDE, "no sample of the device was taken", "record with NVML at hand")
        return OutsideTerms(gaps=(gap,))
    known = [sample for sample in samples if sample.beside is not None]
    sample = min(known or samples, key=lambda each: abs(each.time_ns - time_ns))
    apart_ns = abs(sample.time_ns - time_ns)
    if sample.process is None or sample.beside is None:
        reason = "NVML does not say what this process has (a container, MIG or WDDM)"
        gap = place.gap(_OUTSIDE, reason, "run where NVML sees the numbers of this host's processes")
        return OutsideTerms(total_bytes=sample.total, used_bytes=sample.used, apart_ns=apart_ns, gaps=(gap,))
    collectives, context, gaps = _split_collectives(samples, sample.beside, place, time_ns)
    others = None if sample.used is None else sample.used - sample.process
    if others is not None and others < 0:
        gaps.append(place.contradiction("the device has less in use than this process", -others))
        others = None
    return OutsideTerms(
        beside_bytes=sample.beside if sample.beside >= 0 else None,
        collectives_bytes=collectives,
        context_bytes=context,
        process_bytes=sample.process,
        other_processes_bytes=others,
        total_bytes=sample.total,
        used_bytes=sample.used,
        apart_ns=apart_ns,
        gaps=tuple(gaps),
    )


def _read_samples(table: pd.DataFrame | None, device: str) -> list[_Sample]:
    if table is None:
        return []
    rows = table[table["device"].astype(str) == device].sort_values("time_ns", kind="stable")
    columns = ("process_bytes", "reserved_bytes", "used_bytes", "total_bytes")
    numbers = zip(*(_to_numbers(rows[column]) for column in columns), strict=True)
    words = zip(rows["time_ns"].tolist(), rows["reason"].tolist(), rows["group"].tolist(), strict=True)
    return [
        _Sample(int(time_ns), str(reason), None if pd.isna(group) else str(group), *values)
        for (time_ns, reason, group), values in zip(words, numbers, strict=True)
    ]


def _to_numbers(column: "pd.Series[int]") -> list[int | None]:
    return [None if pd.isna(value) else int(value) for value in column.tolist()]


def _split_collectives(
    samples: Sequence[_Sample], beside: int, place: _RankDevice, time_ns: int
) -> tuple[int | None, int | None, list[Gap]]:
    """Return (collectives, context, gaps): memory of the process outside of its allocator, split in two."""
    grown = 0
    for before, after in _merge_brackets(
        _bracket_groups([each for each in samples if each.time_ns <= time_ns])
    ):
        if before.beside is None or after.beside is None:
            reason = "NVML did not answer at the first collective of a group"
            return None, None, [place.gap(_GROUPS, reason, "record again")]
        if after.beside < before.beside:
            what = "memory shrank at the first collective of a group"
            return None, None, [place.contradiction(what, before.beside - after.beside)]
        grown += after.beside - before.beside
    if beside < grown:
        what = "this process has less beside its allocator than its collectives took"
        return None, None, [place.contradiction(what, grown - beside)]
    return grown, beside - grown, []


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


ALLOCATED_PEAK, RESERVED_PEAK = "allocated peak", "reserved peak"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMoment:
    """Device of a rank at a named instant."""

    rank: int
    device: str
    name: str
    time_ns: int


def make_device_memory(
    moment: DeviceMoment, history: History, tenants: Mapping[Tenant, int], outside: OutsideTerms
) -> tuple[DeviceMemory, list[Gap]]:
    """Return the device's terms at a moment, with the gaps of contradictions in the history.

    If the history contradicts itself, the free terms are unknown. Reserved memory is also unknown if it is
    less than the blocks in it.
    """
    terms = compute_terms(history, moment.time_ns)
    reserved = terms.reserved_bytes if len(history.stretches) and not _missing_segment_bytes(terms) else None
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
    return add_outside_terms(leaf, outside), _contradiction_gaps(moment, history, terms, reserved)


def add_outside_terms(leaf: DeviceMemory, outside: OutsideTerms) -> DeviceMemory:
    """Return the terms completed with those outside of the allocator."""
    beside, others, process = outside.beside_bytes, outside.other_processes_bytes, outside.process_bytes
    if leaf.reserved_bytes is not None and beside is not None:
        process = leaf.reserved_bytes + beside
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


def _missing_segment_bytes(terms: AllocatorTerms) -> int:
    """Return by how much the held blocks exceed all segments; 0 if they fit."""
    held = terms.live_bytes + terms.rounding_bytes + terms.awaiting_free_bytes
    return max(0, held - terms.reserved_bytes)


def _contradiction_gaps(
    moment: DeviceMoment, history: History, terms: AllocatorTerms, reserved: int | None
) -> list[Gap]:
    if not len(history.stretches):
        reason = f"{moment.device}: the history has no segments"
        return [_device_gap(moment, "reserved memory", reason, "dump the snapshot with a current torch")]
    gaps = []
    if reserved is None:
        reason = (
            f"{moment.device}: at the {moment.name} blocks are "
            f"{format_bytes(_missing_segment_bytes(terms))} more than "
            f"the segments of the snapshot, which are {format_bytes(terms.reserved_bytes)}"
        )
        gaps.append(_device_gap(moment, "reserved memory", reason, "record from the program's start"))
    if terms.contradiction_bytes:
        reason = (
            f"{moment.device}: at the {moment.name} blocks of {format_bytes(terms.contradiction_bytes)} lie "
            "outside of the segments or in each other, so that its free parts cannot be told"
        )
        gaps.append(
            _device_gap(moment, "free memory within segments", reason, "record from the program's start")
        )
    if history.blocks.understated_bytes:
        size = format_bytes(history.blocks.understated_bytes)
        reason = f"{moment.device}: blocks are smaller than what was asked for, by {size} in all"
        gaps.append(
            _device_gap(moment, "rounding of blocks", reason, "record again; if it stays, please report it")
        )
    return gaps


def _device_gap(moment: DeviceMoment, what: str, reason: str, remedy: str) -> Gap:
    return Gap(kind=GapKind.DEVICE_MEMORY, what=what, rank=moment.rank, reason=reason, remedy=remedy)
