"""Build the memory detail: kinds, phases, modules, largest allocations, rank differences, the device."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from zprof.model.formatting import format_bytes, format_ns, format_percent
from zprof.model.leaves import take_value
from zprof.model.memory import (
    Allocation,
    AllocatorCounters,
    Basis,
    DeviceMemory,
    FormulaCheck,
    Memory,
    MemoryPart,
    RankMemory,
)
from zprof.model.quantities import Unit, Value
from zprof.model.report import Report
from zprof.model.tenants import DISPLAY_ORDER
from zprof.reports.page import Note, Section, make_section
from zprof.reports.presenters.memory import TENANT_TITLES
from zprof.reports.presenters.memory_formatting import (
    DEVICE_TERMS,
    ORDER,
    get_tenant_class,
    largest_rank,
    make_tenant_cells,
    select_largest_ranks,
    select_user_frames,
    sort_by_peak,
    take_owned_bytes,
    tenant_name,
)
from zprof.reports.presenters.rank_spread import describe_spread
from zprof.reports.table import (
    MAX_ROWS,
    Bar,
    Cell,
    Column,
    Kind,
    Row,
    Table,
    make_name_column,
    make_number_columns,
    make_table,
    make_text_column,
)

_MAX_TEXT_ROWS, _MAX_TEXT_LARGEST, _MAX_TEXT_RANKS, _MAX_TEXT_PHASES = 12, 8, 4, 5
_MAX_FRAMES = 6
_MAX_DEVICES = 8
#: Fields of a formula check, up to the difference.
_FORMULA_TERMS = ("law_bytes", "measured_bytes", "padding_bytes", "scalar_bytes")
_COUNTERS = ("peak_allocated_bytes", "peak_reserved_bytes", "retries", "ooms")
_NO_STACK = "no stack: allocated before recording started, or outside Python"


def build_memory_detail_section(report: Report, *, detail: bool) -> tuple[Section, ...]:
    """Build the section on the peak beyond its tenants."""
    memory = report.memory
    rank = largest_rank(memory.per_rank)
    if rank is None:
        return ()
    return make_section(
        "memory-detail",
        "Memory in detail",
        "By kind, phase and module; the largest allocations; model states against the ZeRO formula.",
        _build_kind_table(rank),
        _build_phase_table(memory, rank),
        _build_module_table(memory, rank),
        None if memory.is_history(rank.rank) else _build_allocation_table(memory),
        _build_formula_table(memory.laws),
        *_build_spread_blocks(memory),
        detail=detail,
    )


def build_device_section(report: Report, *, detail: bool) -> tuple[Section, ...]:
    """Build the section on memory outside the allocator: device, host, and before the first step."""
    memory = report.memory
    return make_section(
        "device",
        "Memory outside the allocator",
        "The device, the host, and the peak before the first step.",
        *_build_device_tables(memory.devices),
        _build_counter_table(memory.counters),
        _build_peak_table(memory.init, "Before the first step", "peak since the program started"),
        _build_peak_table(memory.host, "Host memory", "ranks with a GPU"),
        detail=detail,
    )


def _build_kind_table(rank: RankMemory) -> Table | None:
    rows = []
    for part in sorted(_merge_kinds(rank.parts), key=lambda part: -part.bytes):
        share = part.bytes / max(1, rank.peak_bytes)
        name = ": ".join(name for name in (tenant_name(part.tenant), part.sub) if name)
        colour = get_tenant_class(part.tenant) if part.tenant in ORDER else "time-sum"
        bar = Bar(segments=((colour, 0.0, min(1.0, share)),), share=share)
        rows.append((name, take_owned_bytes(part), Value(share, Unit.RATIO), bar))
    columns = (
        make_name_column("kind"),
        *make_number_columns("size", unit="bytes"),
        *make_number_columns("of the peak", unit="%"),
        Column(title="share", kind=Kind.BAR),
    )
    note = f"rank {rank.rank} at its peak"
    return make_table("By kind", columns, rows, note=note, max_text_rows=_MAX_TEXT_ROWS, noun="kinds")


def _merge_kinds(parts: Sequence[MemoryPart]) -> list[MemoryPart]:
    """Return one part per tenant, kind and mark: why blocks belong to it is told by the table of owners."""
    merged: dict[tuple[str, str, bool], MemoryPart] = {}
    for part in parts:
        key = (part.tenant, part.sub, part.basis is Basis.SIZES)
        merged[key] = replace(part, bytes=part.bytes + (merged[key].bytes if key in merged else 0))
    return list(merged.values())


def _build_phase_table(memory: Memory, rank: RankMemory) -> Table | None:
    rows: list[tuple[Cell, ...]] = [
        (
            phase.phase,
            *(Value(phase.tenants.get(tenant, 0), Unit.BYTES) for tenant in DISPLAY_ORDER),
            take_value(phase, "untagged_bytes"),
            take_value(phase, "peak_bytes"),
            str(phase.step),
        )
        for phase in memory.phases
        if phase.rank == rank.rank
    ]
    return make_table(
        "Peak by phase",
        (
            make_name_column("phase"),
            *make_number_columns(*TENANT_TITLES[:-1], "= peak", unit="bytes"),
            *make_number_columns("in step"),
        ),
        rows,
        note=f"highest live bytes, rank {rank.rank}",
        max_text_rows=_MAX_TEXT_PHASES,
        noun="phases",
        transposed=True,
    )


def _build_module_table(memory: Memory, rank: RankMemory) -> Table | None:
    modules = [module for module in memory.modules if module.rank == rank.rank]
    rows = [
        (
            module.module or "(entire model)",
            take_value(module, "at_rank_peak_bytes"),
            take_value(module, "peak_bytes"),
        )
        for module in sorted(modules, key=lambda module: -module.at_rank_peak_bytes)
    ]
    return make_table(
        "By module",
        (
            make_name_column("module, including submodules"),
            *make_number_columns("at the peak of the rank", "own peak", unit="bytes"),
        ),
        rows,
        note=f"memory by allocating module, rank {rank.rank}",
        max_text_rows=10,
        noun="modules",
    )


def _build_allocation_table(memory: Memory) -> Table | None:
    """Build the table of allocations live at the peak with their call sites, largest rank first."""
    largest = largest_rank(memory.per_rank)
    top = memory.top
    order = sorted(
        range(len(top)), key=lambda index: (largest is None or top[index].rank != largest.rank, index)
    )
    peaks = {rank.rank: rank.peak_bytes for rank in memory.per_rank}
    return make_table(
        "Allocations live at the peak",
        (
            make_name_column("tenant"),
            make_name_column("module"),
            Column(title="rank"),
            *make_number_columns("size", unit="bytes"),
            Column(title="identical", unit="count"),
        ),
        [_build_allocation_row(top[index], peaks.get(top[index].rank, 0)) for index in order],
        max_text_rows=_MAX_TEXT_LARGEST,
        noun="allocations",
        below="where",
    )


def _build_allocation_row(entry: Allocation, peak_bytes: int) -> Row:
    frames = select_user_frames(entry.stack, _MAX_FRAMES)
    more = (f"of {len(entry.stack)} frames",) if len(entry.stack) > len(frames) else ()
    call_site = tuple(part for part in (entry.operator, *frames, *more) if part)
    identical = ""
    if entry.total_bytes is not None and entry.count > 1:
        share = format_percent(entry.total_bytes / max(1, peak_bytes))
        identical = f"{entry.count}: {format_bytes(entry.total_bytes)}, {share}"
    name = ": ".join(part for part in (tenant_name(entry.tenant), entry.sub) if part)
    cells = (name, entry.module or "-", str(entry.rank), take_owned_bytes(entry), identical)
    return Row(cells=cells, below=call_site or (_NO_STACK,))


def _build_formula_table(checks: Sequence[FormulaCheck]) -> Table | None:
    """Build the table of model states, largest difference from the formula first."""
    shown = sorted(checks, key=lambda state: -abs(state.unexplained_bytes))
    causes = dict.fromkeys(f"{tenant_name(state.tenant)}: {state.cause}" for state in shown if state.cause)
    return make_table(
        "Model states against the ZeRO formula",
        (
            make_text_column("state"),
            *make_number_columns("rank"),
            *make_number_columns("formula", "measured", "padding", "counters", "difference", unit="bytes"),
        ),
        [_make_formula_row(state) for state in shown],
        note="bytes per rank",
        notes=list(causes)[:MAX_ROWS],
        max_text_rows=_MAX_TEXT_ROWS,
        noun="rows, largest differences first",
    )


def _make_formula_row(state: FormulaCheck) -> tuple[Cell, ...]:
    return (
        tenant_name(state.tenant),
        str(state.rank),
        *(take_value(state, field) for field in _FORMULA_TERMS),
        Value(state.unexplained_bytes, Unit.BYTES, signed=True),
    )


def _build_spread_blocks(memory: Memory) -> Iterator[Table | Note | None]:
    spread = memory.spread
    if spread is None:
        return
    if not spread.difference_bytes:
        yield Note(text="All ranks have the same peak.")
        return
    rows = [
        (tenant_name(name), Value(delta, Unit.BYTES, signed=True))
        for name, delta in spread.delta_bytes.items()
        if delta
    ]
    columns = (make_name_column("tenant"), *make_number_columns("difference", unit="bytes"))
    yield make_table("Difference between ranks", columns, rows, note="largest peak minus smallest")
    yield Note(text=describe_spread(memory, spread))


def _build_device_tables(devices: Sequence[DeviceMemory]) -> Iterator[Table | None]:
    grouped = groupby(devices, key=lambda entry: (entry.rank, entry.device))
    by_device = [(key, list(moments)) for key, moments in grouped]
    for (rank, device), moments in by_device[:_MAX_DEVICES]:
        rows: list[tuple[Cell, ...]] = []
        for field, term in DEVICE_TERMS:
            values = [take_value(moment, field) for moment in moments]
            if any(value.number is not None for value in values):
                rows.append((term, *values))
        sample_distance_ns = max((moment.apart_ns or 0 for moment in moments), default=0)
        sampling_note = (
            f"The device was sampled up to {format_ns(sample_distance_ns)} before or after these moments."
        )
        omission_note = f"{_MAX_DEVICES} of {len(by_device):,} devices."
        yield make_table(
            "Device memory",
            (
                make_text_column("part"),
                *make_number_columns(*(moment.moment for moment in moments), unit="bytes"),
            ),
            rows,
            note=f"rank {rank}, {device}",
            notes=(
                *[sampling_note] * bool(sample_distance_ns),
                *[omission_note] * (len(by_device) > _MAX_DEVICES),
            ),
        )


def _build_counter_table(counters: Sequence[AllocatorCounters]) -> Table | None:
    counted = [entry for entry in counters if entry.peak_allocated_bytes is not None or entry.retries]
    rows: list[tuple[Cell, ...]] = [
        (
            f"rank {entry.rank}, {entry.device}",
            *(take_value(entry, field) for field in _COUNTERS),
        )
        for entry in counted
    ]
    columns = (
        make_name_column("device"),
        *make_number_columns("peak allocated", "peak reserved", unit="bytes"),
        *make_number_columns("retries", "out-of-memory errors", unit="count"),
    )
    note = "since the process started"
    return make_table(
        "Allocator counters",
        columns,
        rows,
        note=note,
        max_text_rows=_MAX_TEXT_RANKS,
        noun="devices",
    )


def _build_peak_table(ranks: Sequence[RankMemory], title: str, note: str) -> Table | None:
    shown = select_largest_ranks(ranks, MAX_ROWS)
    return make_table(
        title,
        (make_text_column("rank"), *make_number_columns(*TENANT_TITLES[:-1], "= peak", unit="bytes")),
        [(f"rank {rank.rank}", *make_tenant_cells(rank)) for rank in shown],
        note=note,
        max_text_rows=_MAX_TEXT_RANKS,
        order=sort_by_peak(shown),
        total=len(ranks),
        noun="ranks, largest peaks first",
        transposed=True,
    )
