"""Build what a snapshot says about its peak: groups, owners and how they are known, unused memory, growth."""

from collections.abc import Iterator

from zprof.model.cursor import Cursor
from zprof.model.formatting import format_bytes, format_ns
from zprof.model.memory import Basis, DeviceMemory, Memory, PeakGrowth, RankMemory
from zprof.model.metrics import METRICS
from zprof.model.quantities import ESTIMATE_SIGN, Unit, Value
from zprof.model.report import Report
from zprof.model.tenants import DISPLAY_ORDER
from zprof.reports.page import Note, Paragraph, Section, make_section
from zprof.reports.pages.memory import build_tenant_table, describe_attribution, format_peak_time
from zprof.reports.pages.memory_allocations import build_group_table, name_place
from zprof.reports.pages.tenants import find_largest_rank, largest_rank, tenant_name
from zprof.reports.table import UNKNOWN

#: Free memory inside the allocator.
_UNUSED_TERMS = (
    "split_bytes",
    "free_segments_bytes",
    "private_pools_bytes",
    "awaiting_free_bytes",
    "rounding_bytes",
)


def find_history_rank(memory: Memory) -> RankMemory | None:
    """Return the largest rank if its memory comes from a snapshot, else None."""
    rank = largest_rank(memory.per_rank)
    return rank if rank and memory.is_history(rank.rank) else None


def build_history_sections(report: Report, *, short: bool = False) -> tuple[Section, ...]:
    """Build the sections on the peak of a snapshot: groups, owners, unused memory and growth."""
    place = find_largest_rank(Cursor(report).memory.per_rank)
    rank = find_history_rank(report.memory)
    if rank is None or place is None:
        return ()
    lead = "What is live at the peak, by owner and place of allocation."
    return (
        *make_section("groups", "Largest groups", lead, build_group_table(report, short=short)),
        *make_section(
            "owners",
            "Owners",
            "Who owns the memory at the peak, and how that is known.",
            build_tenant_table(place),
            _build_owner_note(rank),
        ),
        *make_section(
            "peak",
            "The peak",
            "What grew to the peak, and what is held unused.",
            *_describe_peak(report, rank),
        ),
    )


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
    terms = [(getattr(device, field), METRICS[f"memory.devices[].{field}"].title) for field in _UNUSED_TERMS]
    parts = [f"{format_bytes(size)} {name}" for size, name in terms if size]
    listed = f": {', '.join(parts)}" if parts else ""
    unknown = " (its form is unknown)" if device.split_bytes is None else ""
    return (
        f"At the {device.moment} the allocator holds {format_bytes(device.reserved_bytes)}, "
        f"{format_bytes(unused)} of it unused{unknown}{listed}."
    )
