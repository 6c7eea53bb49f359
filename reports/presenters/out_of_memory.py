"""Build the section on failed allocations: what was requested, what filled the device, and what was free."""

from collections.abc import Iterator, Sequence

from zprof.model.formatting import format_bytes, format_percent
from zprof.model.leaves import take_value
from zprof.model.out_of_memory import OutOfMemory
from zprof.model.quantities import ESTIMATE_SIGN, Unit, Value
from zprof.model.report import Report
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.reports.page import Note, Section, make_section
from zprof.reports.presenters.memory_formatting import (
    CONFIDENCE_WORDS,
    UNTAGGED,
    select_user_frames,
    tenant_name,
)
from zprof.reports.table import Cell, Table, make_number_columns, make_table, make_text_column

_MAX_FAILURES = 4
_MAX_FRAMES = 4
#: Field and name of each term below the tenants; a term that is unknown everywhere is left out.
_TERMS = (
    ("live_bytes", "= live"),
    ("allocated_bytes", "allocated (rounded to blocks)"),
    ("awaiting_free_bytes", "freed, awaiting a stream"),
    ("split_bytes", "free parts of segments in use"),
    ("free_segments_bytes", "entirely free segments"),
    ("private_pools_bytes", "free in private pools"),
    ("reserved_bytes", "= reserved"),
    ("device_free_bytes", "free on the device"),
    ("outside_allocator_bytes", "outside the allocator"),
    ("requested_bytes", "requested"),
    ("driver_bytes", "asked of the driver, at most"),
    ("largest_free_bytes", "largest free piece"),
    ("short_bytes", "short, if defragmented"),
)


def build_out_of_memory_section(report: Report) -> tuple[Section, ...]:
    """Build the section; empty if no allocation failed."""
    failures = report.memory.out_of_memory
    if not failures:
        return ()
    shown = failures[-_MAX_FAILURES:]
    return make_section(
        "out-of-memory",
        "Out of memory",
        "What filled the device when an allocation failed.",
        _build_term_table(shown, len(failures)),
        *_list_notes(shown),
    )


def _build_term_table(shown: Sequence[OutOfMemory], total: int) -> Table | None:
    rows: list[tuple[Cell, ...]] = [
        (tenant_name(tenant.value), *(_take_tenant_bytes(entry, tenant) for entry in shown))
        for tenant in DISPLAY_ORDER
    ]
    rows.append((UNTAGGED, *(take_value(entry, "untagged_bytes") for entry in shown)))
    for field, name in _TERMS:
        values = [take_value(entry, field) for entry in shown]
        if any(value.number is not None for value in values):
            rows.append((name, *values))
    return make_table(
        "Memory at the failed allocation",
        (make_text_column("part"), *make_number_columns(*map(_name_column, shown), unit="bytes")),
        rows,
        notes=(f"The last {len(shown)} of {total} failed allocations.",) * (total > len(shown)),
    )


def _take_tenant_bytes(failure: OutOfMemory, tenant: Tenant) -> Value:
    size = None if tenant in failure.unknown_tenants else failure.tenants.get(tenant, 0)
    return Value(size, Unit.BYTES, is_estimate=tenant in failure.inferred_tenants)


def _name_column(failure: OutOfMemory) -> str:
    return f"rank {failure.rank}, {failure.device}"


def _list_notes(shown: Sequence[OutOfMemory]) -> Iterator[Note]:
    for failure in shown:
        yield Note(text=f"{_name_column(failure)}: {_describe_room(failure)}{_describe_owners(failure)}")
    frames = next((select_user_frames(entry.stack, _MAX_FRAMES) for entry in shown if entry.stack), ())
    if frames:
        yield Note(text=f"requested by {', '.join(frames)}")


def _describe_room(failure: OutOfMemory) -> str:
    if failure.would_fit_defragmented is None:
        text = "it is unknown if the free memory, in one piece, would have been enough."
    elif failure.would_fit_defragmented:
        text = "the free memory would have been enough in one piece."
    else:
        text = f"even in one piece the free memory is {format_bytes(failure.short_bytes or 0)} short."
    limited = " The device had room: a limit of the process refused the request." * failure.is_limited
    return text + limited


def _describe_owners(failure: OutOfMemory) -> str:
    """Describe how sure the owners of the live bytes are; empty if tags say them, or nothing is known."""
    total = max(1, failure.live_bytes)
    shares = ", ".join(
        f"{format_percent(failure.confidence_bytes[level] / total)} {word}"
        for level, word in CONFIDENCE_WORDS.items()
        if failure.confidence_bytes.get(level)
    )
    mark = f" ({ESTIMATE_SIGN}: known by sizes alone)" if failure.inferred_tenants else ""
    return f" Owners of what is live: {shares}{mark}." if shares else ""
