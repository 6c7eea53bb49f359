"""Build memory outside the allocator's live bytes: the device, its counters, the host, failed allocations."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from zprof.base.formatting import format_bytes, format_ns, format_percent
from zprof.model.cursor import Cursor, get, read
from zprof.model.endings import OutOfMemory
from zprof.model.memory import RankMemory
from zprof.model.metrics import METRICS
from zprof.model.quantities import ESTIMATE_SIGN, Unit, Value
from zprof.model.report import Report
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.reports.page import Note, Section, make_section
from zprof.reports.pages.memory_allocations import select_user_frames
from zprof.reports.pages.tenants import (
    CONFIDENCE_WORDS,
    UNTAGGED,
    make_peak_columns,
    read_peak,
    select_largest_ranks,
    sort_by_peak,
    tenant_name,
)
from zprof.reports.table import (
    MAX_ROWS,
    Cell,
    Column,
    Mark,
    Row,
    Table,
    make_name_column,
    make_number_columns,
    make_table,
    make_text_column,
)

_MAX_DEVICES, _MAX_TEXT_RANKS = 8, 4
#: Terms of device memory, each sum after its terms.
_DEVICE_TERMS = (
    "live_bytes",
    "rounding_bytes",
    "awaiting_free_bytes",
    "split_bytes",
    "free_segments_bytes",
    "private_pools_bytes",
    "reserved_bytes",
    "collectives_bytes",
    "context_bytes",
    "process_bytes",
    "other_processes_bytes",
    "device_used_bytes",
    "device_total_bytes",
)
_COUNTERS = ("peak_allocated_bytes", "peak_reserved_bytes", "retries", "ooms")
_COUNTER_NOTE = "since the process started"
_MAX_FAILURES, _MAX_FRAMES = 4, 4
#: Terms of a failed allocation; terms without a name are terms of device memory.
_FAILURE_TERMS = (
    ("live_bytes", "= live"),
    ("allocated_bytes", "allocated (rounded to blocks)"),
    ("awaiting_free_bytes", ""),
    ("split_bytes", ""),
    ("free_segments_bytes", ""),
    ("private_pools_bytes", ""),
    ("reserved_bytes", ""),
    ("device_free_bytes", "free on the device"),
    ("outside_allocator_bytes", "outside the allocator"),
    ("requested_bytes", "requested"),
    ("driver_bytes", "asked of the driver, at most"),
    ("largest_free_bytes", "largest free piece"),
    ("short_bytes", "short, if defragmented"),
)


def build_device_section(report: Report, *, detail: bool) -> tuple[Section, ...]:
    """Build the section on memory outside the allocator: device, host, and before the first step."""
    devices = list(dict.fromkeys((entry.rank, entry.device) for entry in report.memory.devices))
    omission = (f"{_MAX_DEVICES} of {len(devices):,} devices.",) * (len(devices) > _MAX_DEVICES)
    tables = [
        build_device_table(report, rank, device, notes=omission) for rank, device in devices[:_MAX_DEVICES]
    ]
    return make_section(
        "device",
        "Memory outside the allocator",
        "The device, the host, and the peak before the first step.",
        *tables,
        _build_counter_table(report),
        _build_peak_table(
            Cursor(report).memory.init, "Before the first step", "peak since the program started"
        ),
        _build_peak_table(Cursor(report).memory.host, "Host memory", "ranks with a GPU"),
        detail=detail,
    )


def name_term(field: str) -> str:
    """Return the name of a device memory term; names of sums start with ``=``."""
    metric = METRICS[f"memory.devices[].{field}"]
    return f"{'= ' * bool(metric.inputs)}{metric.title}"


def build_device_table(
    report: Report, rank: int, device: str = "", *, notes: Sequence[str] = (), with_counters: bool = False
) -> Table | None:
    """Build the table of device memory at each moment; None if not measured.

    An empty ``device`` selects the first device of the rank. ``with_counters``: append the allocator
    counters.
    """
    memory = Cursor(report).memory
    every_moment = [entry for entry in memory.devices if get(entry).rank == rank]
    every_counter = [entry for entry in memory.counters if with_counters and get(entry).rank == rank]
    device = device or next((get(entry).device for entry in (*every_moment, *every_counter)), "")
    moments = [entry for entry in every_moment if get(entry).device == device]
    rows = [
        Row(key=field, cells=(name, *values), mark=Mark.TITLE if name.startswith("=") else Mark.PLAIN)
        for field in _DEVICE_TERMS
        for name, values in ((name_term(field), [read(moment[field]) for moment in moments]),)
        if any(value.number is not None for value in values)
    ]
    blank: list[Cell] = [""] * (len(moments) - 1)
    rows += [
        Row(
            key=f"{at}.{field}",
            cells=(METRICS[f"memory.counters[].{field}"].title, read(entry[field]), *blank),
        )
        for at, entry in enumerate(every_counter)
        for field in _COUNTERS
        if getattr(get(entry), field) is not None
    ]
    sampled_ns = max((get(moment).apart_ns or 0 for moment in moments), default=0)
    sampled = f"The device was sampled up to {format_ns(sampled_ns)} before or after these moments."
    titles = [get(moment).moment for moment in moments] or [_COUNTER_NOTE]
    return make_table(
        f"Device memory, rank {rank}",
        (
            make_text_column("part"),
            *(Column(title=title, unit="bytes", help="moment of the measurement") for title in titles),
        ),
        rows,
        name="device",
        help="Each sum (=) follows its terms. The reserved peak decides whether the device runs out of "
        "memory. The counters are the allocator's own, since the process started.",
        note=device,
        notes=(*[sampled] * bool(sampled_ns), *notes),
    )


def _build_counter_table(report: Report) -> Table | None:
    rows: list[tuple[Cell, ...]] = [
        (f"rank {get(entry).rank}, {get(entry).device}", *(read(entry[field]) for field in _COUNTERS))
        for entry in Cursor(report).memory.counters
        if get(entry).peak_allocated_bytes is not None or get(entry).retries
    ]
    metrics = [METRICS[f"memory.counters[].{field}"] for field in _COUNTERS]
    return make_table(
        "Allocator counters",
        (
            make_name_column("device"),
            *(Column(title=metric.title, unit=metric.unit.value, help=metric.help) for metric in metrics),
        ),
        rows,
        note=_COUNTER_NOTE,
        max_text_rows=_MAX_TEXT_RANKS,
        noun="devices",
    )


def _build_peak_table(ranks: Cursor, title: str, note: str) -> Table | None:
    entries: Sequence[RankMemory] = get(ranks)
    shown = select_largest_ranks(entries, MAX_ROWS)
    return make_table(
        title,
        (make_text_column("rank"), *make_peak_columns()),
        [(f"rank {entries[at].rank}", *read_peak(ranks[at])) for at in shown],
        note=note,
        max_text_rows=_MAX_TEXT_RANKS,
        order=sort_by_peak([entries[at] for at in shown]),
        total=len(entries),
        noun="ranks, largest peaks first",
        transposed=True,
    )


def build_out_of_memory_section(report: Report) -> tuple[Section, ...]:
    """Build the section on failed allocations; empty if no allocation failed."""
    failures = list(Cursor(report).memory.out_of_memory)
    if not failures:
        return ()
    shown = failures[-_MAX_FAILURES:]
    return make_section(
        "out-of-memory",
        "Out of memory",
        "What filled the device when an allocation failed.",
        _build_failure_table(shown, len(failures)),
        *_list_notes([get(failure) for failure in shown]),
    )


def _build_failure_table(shown: Sequence[Cursor], total: int) -> Table | None:
    rows: list[tuple[Cell, ...]] = [
        (tenant_name(tenant.value), *(_read_tenant(failure, tenant) for failure in shown))
        for tenant in DISPLAY_ORDER
    ]
    rows.append((UNTAGGED, *(read(failure.untagged_bytes) for failure in shown)))
    for field, name in _FAILURE_TERMS:
        values = [read(failure[field]) for failure in shown]
        if any(value.number is not None for value in values):
            rows.append((name or name_term(field), *values))
    return make_table(
        "Memory at the failed allocation",
        (
            make_text_column("part"),
            *make_number_columns(*(_name_failure(get(failure)) for failure in shown), unit="bytes"),
        ),
        rows,
        notes=(f"The last {len(shown)} of {total} failed allocations.",) * (total > len(shown)),
    )


def _read_tenant(place: Cursor, tenant: Tenant) -> Value:
    failure: OutOfMemory = get(place)
    if tenant in failure.unknown_tenants:
        return Value(None, Unit.BYTES)
    if tenant not in failure.tenants:
        return Value(0, Unit.BYTES)  # nothing of it is live
    size = read(place.tenants[tenant.value])
    return replace(size, is_estimate=tenant in failure.inferred_tenants)


def _name_failure(failure: OutOfMemory) -> str:
    return f"rank {failure.rank}, {failure.device}"


def _list_notes(shown: Sequence[OutOfMemory]) -> Iterator[Note]:
    for failure in shown:
        if failure.would_fit_defragmented is None:
            text = "it is unknown if the free memory, in one piece, would have been enough."
        elif failure.would_fit_defragmented:
            text = "the free memory would have been enough in one piece."
        else:
            text = f"even in one piece the free memory is {format_bytes(failure.short_bytes or 0)} short."
        limited = " The device had room: a limit of the process refused the request." * failure.is_limited
        yield Note(text=f"{_name_failure(failure)}: {text}{limited}{_describe_owners(failure)}")
    frames = next((select_user_frames(entry.stack, _MAX_FRAMES) for entry in shown if entry.stack), ())
    if frames:
        yield Note(text=f"requested by {', '.join(frames)}")


def _describe_owners(failure: OutOfMemory) -> str:
    """Describe how certain the owners of live bytes are; empty if they come from tags or are unknown."""
    total = max(1, failure.live_bytes)
    shares = ", ".join(
        f"{format_percent(failure.confidence_bytes[level] / total)} {word}"
        for level, word in CONFIDENCE_WORDS.items()
        if failure.confidence_bytes.get(level)
    )
    mark = f" ({ESTIMATE_SIGN}: known by sizes alone)" if failure.inferred_tenants else ""
    return f" Owners of what is live: {shares}{mark}." if shares else ""
