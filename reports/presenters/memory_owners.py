"""Build what a snapshot says about its peak: the owners and why, unused memory, and what grew."""

from collections.abc import Iterator, Sequence

from zprof.model.formatting import format_bytes, format_ns
from zprof.model.leaves import take_value
from zprof.model.memory import Basis, DeviceMemory, Memory, MemoryPart, PeakGrowth, RankMemory
from zprof.model.quantities import ESTIMATE_SIGN, Unit, Value
from zprof.model.report import Report
from zprof.model.tenants import DISPLAY_ORDER
from zprof.reports.page import Note, Paragraph, Section, make_section
from zprof.reports.presenters.memory_formatting import (
    CONFIDENCE_WORDS,
    UNTAGGED,
    describe_attribution,
    format_peak_time,
    largest_rank,
    take_owned_bytes,
    take_tenant_bytes,
    tenant_name,
)
from zprof.reports.presenters.memory_groups import build_group_table, name_place
from zprof.reports.presenters.memory_reasons import describe_reason
from zprof.reports.table import UNKNOWN, Row, Table, make_name_column, make_number_columns, make_table

#: Reasons of a tenant that are shown, largest first.
_MAX_REASONS = 4
#: Free memory inside the allocator: field, description.
_UNUSED_TERMS = (
    ("split_bytes", "free parts of segments in use (fragmentation)"),
    ("free_segments_bytes", "free segments, which it can return"),
    ("private_pools_bytes", "free in pools of CUDA graphs"),
    ("awaiting_free_bytes", "freed, but a stream still uses it"),
    ("rounding_bytes", "rounding to blocks"),
)


def find_history_rank(memory: Memory) -> RankMemory | None:
    """Return the largest rank if its memory comes from a snapshot, else None."""
    rank = largest_rank(memory.per_rank)
    return rank if rank and memory.is_history(rank.rank) else None


def build_history_sections(report: Report, *, short: bool = False) -> tuple[Section, ...]:
    """Build the sections on the peak of a snapshot: groups, owners, unused memory and growth."""
    rank = find_history_rank(report.memory)
    if rank is None:
        return ()
    lead = "What is live at the peak, by owner and place of allocation."
    return (
        *make_section("groups", "Largest groups", lead, build_group_table(report, short=short)),
        *make_section(
            "owners",
            "Owners",
            "Who owns the memory at the peak, and how that is known.",
            _build_owner_table(rank),
            _build_owner_note(rank),
        ),
        *make_section(
            "peak",
            "The peak",
            "What grew to the peak, and what is held unused.",
            *_describe_peak(report, rank),
        ),
    )


def _build_owner_table(rank: RankMemory) -> Table | None:
    rows = []
    for tenant in DISPLAY_ORDER:
        parts = [part for part in rank.parts if part.tenant == tenant.value]
        rows.append(_build_owner_row(tenant.value, take_tenant_bytes(rank, tenant), parts, rank))
    untagged = [part for part in rank.parts if part.tenant == UNTAGGED]
    rows.append(_build_owner_row(UNTAGGED, take_value(rank, "untagged_bytes"), untagged, rank))
    rows.append(Row(cells=("allocated peak", take_value(rank, "peak_bytes"), "", ""), total=True))
    return make_table(
        "Owners at the peak",
        (
            make_name_column("owner"),
            *make_number_columns("size", unit="bytes"),
            *make_number_columns("of the peak", unit="%"),
            *make_number_columns("blocks", unit="count"),
        ),
        rows,
        note=f"rank {rank.rank}",
        below="how it is known",
        below_separator="; ",
    )


def _build_owner_row(name: str, size: Value, parts: Sequence[MemoryPart], rank: RankMemory) -> Row:
    if size.number is None:
        return Row(cells=(tenant_name(name), size, "", ""))
    held_bytes, blocks = sum(part.bytes for part in parts), sum(part.blocks or 0 for part in parts)
    share = Value(held_bytes / max(1, rank.peak_bytes), Unit.RATIO)
    return Row(
        cells=(tenant_name(name), size, share, f"{blocks:,}" if blocks else ""),
        below=tuple(_describe_parts(parts, blocks)),
    )


def _describe_parts(parts: Sequence[MemoryPart], blocks: int) -> Iterator[str]:
    """Yield size, reason, blocks and confidence of the largest parts of an owner."""
    known = sorted((part for part in parts if part.basis is not Basis.UNKNOWN), key=lambda part: -part.bytes)
    for part in known[:_MAX_REASONS]:
        reason = describe_reason(part.reason) or part.sub.replace("_", " ")
        count = "" if part.blocks is None else f", {part.blocks:,} of {blocks:,} blocks"
        word = f" ({CONFIDENCE_WORDS[part.confidence]})" if part.confidence else ""
        yield f"{take_owned_bytes(part).text}: {reason}{count}{word}"
    rest = sum(part.bytes for part in known[_MAX_REASONS:])
    if rest:
        ways = len(known) - _MAX_REASONS
        yield f"{format_bytes(rest)} in {ways} other way{'' if ways == 1 else 's'}"


def _build_owner_note(rank: RankMemory) -> Note:
    marks = (
        (
            ESTIMATE_SIGN,
            "known by the sizes of its blocks alone",
            bool((rank.basis_bytes or {}).get(Basis.SIZES)),
        ),
        (UNKNOWN, "unknown, not zero", any(map(rank.is_unknown, DISPLAY_ORDER))),
    )
    legend = "; ".join(f"{mark}: {meaning}" for mark, meaning, is_used in marks if is_used)
    return Note(text=" ".join(filter(None, (describe_attribution(rank), legend and f"{legend}."))))


def _describe_peak(report: Report, rank: RankMemory) -> Iterator[Paragraph | Note]:
    moment = format_peak_time(rank)
    if moment:
        yield Note(text=f"The peak is in the {moment}.")
    for growth in report.memory.growth:
        if growth.rank == rank.rank:
            yield Paragraph(text=_describe_growth(growth))
    reserved = [entry for entry in report.memory.devices if entry.rank == rank.rank]
    if reserved:
        yield Paragraph(text=_describe_unused(reserved[-1]))
        yield Note(text=_describe_size_basis(reserved[0]))


def _describe_growth(growth: PeakGrowth) -> str:
    """Describe by how much live memory grew to the peak, of which tenants and from which places."""
    grown = growth.peak_bytes - growth.start_bytes
    if grown <= 0:
        return "The live memory is highest at the start of the history: what led to it is unknown."
    changes = sorted(growth.grown_bytes.items(), key=lambda change: -abs(change[1]))
    tenants = ", ".join(
        f"{tenant_name(name)} {Value(size, Unit.BYTES, signed=True).text}" for name, size in changes if size
    )
    sizes: dict[str, int] = {}
    for entry in growth.largest:
        sizes[name_place(entry)] = sizes.get(name_place(entry), 0) + entry.held_bytes
    largest = sorted(sizes.items(), key=lambda entry: -entry[1])
    places = "; ".join(f"{place} ({format_bytes(size)})" for place, size in largest)
    return (
        f"In the {format_ns(growth.peak_ns - growth.start_ns)} before the peak, live memory grew by "
        f"{format_bytes(grown)} from {format_bytes(growth.start_bytes)}: {tenants}."
        f"{f' Largest: {places}.' if places else ''}"
    )


def _describe_size_basis(device: DeviceMemory) -> str:
    """Describe which bytes the page counts, and what torch's own counter showed at the allocated peak."""
    basis = "Sizes are requested bytes; torch.cuda.max_memory_allocated counts them rounded to blocks"
    if device.rounding_bytes is None:
        return f"{basis}: how much that was is unknown."
    counted_bytes = device.live_bytes + device.rounding_bytes
    more = f", {format_bytes(device.rounding_bytes)} more than requested" if device.rounding_bytes else ""
    return f"{basis}: {format_bytes(counted_bytes)} at the {device.moment}{more}."


def _describe_unused(device: DeviceMemory) -> str:
    """Describe what the allocator holds beyond the live bytes, and in what form."""
    if device.reserved_bytes is None:
        return "How much memory the allocator reserved is unknown."
    unused = device.reserved_bytes - device.live_bytes
    terms = [(getattr(device, field), what) for field, what in _UNUSED_TERMS]
    parts = [f"{format_bytes(size)} {what}" for size, what in terms if size]
    listed = f": {', '.join(parts)}" if parts else ""
    unknown = " (its form is unknown)" if device.split_bytes is None else ""
    return (
        f"At the {device.moment} the allocator holds {format_bytes(device.reserved_bytes)}, "
        f"{format_bytes(unused)} of it unused{unknown}{listed}."
    )
