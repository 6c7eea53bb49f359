"""Build memory by tenant at each rank's peak, by kind, phase and module, and from a snapshot's history."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from zprof.base.formatting import format_bytes, format_ns, format_percent
from zprof.model.cursor import Cursor, get, get_path, read
from zprof.model.memory import Basis, DeviceMemory, Memory, MemoryPart, PeakGrowth, RankMemory, StateFormula
from zprof.model.metrics import METRICS
from zprof.model.quantities import ESTIMATE_SIGN, Aggregation, Unit, Value
from zprof.model.report import Report
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.reports.page import Bars, Block, Note, Paragraph, Section, StackedBar, make_section
from zprof.reports.pages.memory_allocations import (
    build_allocation_table,
    build_group_table,
    describe_reason,
    name_place,
    strip_wrappers,
)
from zprof.reports.pages.memory_changes import list_spread_blocks
from zprof.reports.pages.memory_formulas import build_formula_table, describe_states
from zprof.reports.pages.tenants import (
    CONFIDENCE_WORDS,
    ORDER,
    OUTSIDE_LIVE_TERMS,
    PEAK,
    SHARE,
    SIZE,
    UNTAGGED,
    build_tenant_legend,
    find_largest_rank,
    get_tenant_class,
    largest_rank,
    make_peak_columns,
    peak_bytes,
    read_owned,
    read_peak,
    read_tenant,
    select_largest_ranks,
    sort_by_peak,
    stack_segments,
    tenant_name,
)
from zprof.reports.table import (
    MAX_LINES,
    MAX_ROWS,
    UNKNOWN,
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

PHASE_TITLE, MODULE_TITLE = "Peak by phase", "Memory by module"
_MAX_BARS, _MAX_BARS_COMPARED = 32, 16
#: Maximum number of ranks in a terminal table, without and with a comparison, and in notes.
_MAX_TEXT_RANKS, _MAX_TEXT_RANKS_COMPARED = 4, 2
_MAX_NOTE_RANKS = 4
_MAX_TEXT_ROWS, _MAX_TEXT_MODULES, _MAX_TEXT_PHASES = 12, 10, 5
#: Maximum reasons shown per tenant, largest first.
_MAX_REASONS = 4
#: Free memory inside the allocator.
_UNUSED_TERMS = (
    "split_bytes",
    "free_segments_bytes",
    "private_pools_bytes",
    "awaiting_free_bytes",
    "rounding_bytes",
)


def build_memory_section(
    report: Report, *, short: bool = False, with_largest: bool = True
) -> tuple[Section, ...]:
    """Build the memory section; empty if no rank was measured (the gaps give the reason)."""
    if not report.memory.per_rank:
        return ()
    blocks: list[Block | None] = [_build_rank_table(report), *_list_notes(report)]
    if not short:
        largest = build_allocation_table(report, brief=True) if with_largest else None
        blocks = [_build_tenant_bars(report), *blocks, largest]
    return make_section("memory", "Memory", "Memory by tenant at each rank's peak.", *blocks)


def build_memory_detail_section(report: Report, *, detail: bool) -> tuple[Section, ...]:
    """Build the section on the peak in more detail than by tenant."""
    place = find_largest_rank(Cursor(report).memory.per_rank)
    if place is None:
        return ()
    rank: RankMemory = get(place)
    return make_section(
        "memory-detail",
        "Memory in detail",
        "By kind, phase and module; the largest allocations; model states against the ZeRO formula.",
        _build_kind_table(place),
        build_phase_table(report, rank.rank),
        build_module_table(report, rank.rank),
        None if report.memory.is_history(rank.rank) else build_allocation_table(report),
        build_formula_table(report),
        *list_spread_blocks(report),
        detail=detail,
    )


def _build_rank_table(report: Report) -> Table | None:
    """Build one row per rank of the run and the baseline, and the change on the largest rank."""
    ranks, baseline_ranks = Cursor(report).memory.per_rank, Cursor(report).comparison.baseline_memory
    now = [ranks[at] for at in select_largest_ranks(get(ranks), MAX_ROWS)]
    before = [
        baseline_ranks[at] for at in select_largest_ranks(get(baseline_ranks) or (), _MAX_BARS_COMPARED)
    ]
    outside = [
        name for name in OUTSIDE_LIVE_TERMS if any(getattr(get(rank), name) is not None for rank in now)
    ]
    rows: list[tuple[Cell, ...]] = [
        (
            f"{prefix}rank {get(rank).rank}",
            *read_peak(rank),
            format_peak_time(get(rank)) or "-",
            *(read(rank[name]) for name in outside),
        )
        for prefix, group in (("baseline ", before), ("", now))
        for rank in group
    ]
    max_ranks = _MAX_TEXT_RANKS_COMPARED if before else _MAX_TEXT_RANKS
    order = [len(before) + index for index in sort_by_peak([get(rank) for rank in now])]
    if before:
        rows.append(("change of max", *_read_change(report), "", *[""] * len(outside)))
        first, rest = order[:max_ranks], order[max_ranks:]
        baseline = list(sort_by_peak([get(rank) for rank in before]))
        order = [len(rows) - 1, *baseline[:max_ranks], *first, *baseline[max_ranks:], *rest]
    return make_table(
        "Memory at each rank's peak",
        (
            make_text_column("rank"),
            *make_peak_columns(),
            Column(title="peak in", kind=Kind.TEXT, wide=True),
            *make_number_columns(
                *(METRICS[f"memory.per_rank[].{name}"].title for name in outside), unit="bytes"
            ),
        ),
        rows,
        note="live bytes in the allocator",
        max_text_rows=2 * max_ranks + 1 if before else max_ranks,
        order=order,
        total=len(report.memory.per_rank) + len(rows) - len(now),
        noun="ranks, largest peaks first",
        transposed=True,
    )


def _read_change(report: Report) -> Iterator[Cell]:
    """Yield the changes on the largest rank, in the order of the peak columns."""
    delta = Cursor(report).comparison.memory_delta
    for name in (*(tenant.value for tenant in DISPLAY_ORDER), "untagged_bytes", "peak_bytes"):
        change = read(delta[name], signed=True)
        yield "" if change.number is None else change


def format_peak_time(rank: RankMemory) -> str:
    """Format the phase and step of a rank's peak; empty if unknown."""
    phase, step = rank.peak_phase, rank.peak_step
    return f"{phase} of step {step}" if phase and step >= 0 else phase


def describe_attribution(rank: RankMemory) -> str:
    """Describe how a rank's memory was attributed; empty for hooks or tags alone."""
    basis = rank.basis_bytes or {}
    if not rank.peak_bytes or not (basis.get(Basis.RULE) or basis.get(Basis.SIZES)):
        return ""
    parts = [
        f"{format_percent(basis.get(kind, 0) / rank.peak_bytes)} {what}"
        for kind, what in (
            (Basis.TAGGED, "by tags"),
            (Basis.RULE, "by stacks and lifetimes"),
            (Basis.SIZES, f"by sizes alone ({ESTIMATE_SIGN})"),
            (Basis.UNKNOWN, "unknown"),
        )
        if basis.get(kind) or kind is Basis.UNKNOWN
    ]
    return f"Owners of rank {rank.rank}'s memory: {', '.join(parts)}."


def _list_notes(report: Report) -> Iterator[Note]:
    per_rank = report.memory.per_rank
    ranks = [per_rank[at] for at in select_largest_ranks(per_rank, _MAX_NOTE_RANKS)]
    time_by_rank = {rank.rank: format_peak_time(rank) for rank in ranks}
    if len(set(time_by_rank.values())) == 1 and (peak_time := format_peak_time(ranks[0])):
        yield Note(text=f"The peak is in the {peak_time}.")
    elif any(time_by_rank.values()):
        peak_times = ", ".join(
            f"rank {rank} in the {peak_time}" for rank, peak_time in time_by_rank.items() if peak_time
        )
        yield Note(text=f"Peak times: {peak_times}.")
    for rank in ranks:
        if note := describe_attribution(rank):
            yield Note(text=note)
    for line in describe_states(report.memory.formulas, _MAX_NOTE_RANKS):
        yield Note(text=line)


def _build_tenant_bars(report: Report) -> Bars:
    ranks, baseline_ranks = Cursor(report).memory.per_rank, Cursor(report).comparison.baseline_memory
    before = get(baseline_ranks) or ()
    max_ranks = _MAX_BARS_COMPARED if before else _MAX_BARS
    now = [ranks[at] for at in select_largest_ranks(get(ranks), max_ranks)]
    baseline_bars = [baseline_ranks[at] for at in select_largest_ranks(before, max_ranks)]
    shown = [get(rank) for rank in (*now, *baseline_bars)]
    formulas = [_list_formula_parts(rank.formula) for rank in shown if rank.formula]
    scale = max(1, peak_bytes(shown), *(sum(size for _, size, _ in parts) for parts in formulas))
    baseline_prefix = f"{report.comparison.baseline}, " if report.comparison else ""
    run_prefix = f"{report.run.name}, " if baseline_bars else ""
    bars = [
        *(_build_tenant_bar(rank, baseline_prefix, scale) for rank in baseline_bars),
        *(_build_tenant_bar(rank, run_prefix, scale) for rank in now),
    ]
    notes = []
    if any(bar.reference for bar in bars):
        notes.append("The thin bar shows the model states expected from the ZeRO formula.")
    if len(now) < len(report.memory.per_rank):
        notes.append(
            f"Showing the {len(now)} of {len(report.memory.per_rank):,} ranks with the largest peaks."
        )
    return Bars(
        title="Live bytes in the allocator at each rank's peak",
        bars=tuple(bars),
        legend=build_tenant_legend(),
        notes=tuple(notes),
    )


def _build_tenant_bar(place: Cursor, prefix: str, scale: int) -> StackedBar:
    rank: RankMemory = get(place)
    *sizes, peak = read_peak(place)
    parts = [(name, int(size.number or 0), size.text) for name, size in zip(ORDER, sizes, strict=True)]
    return StackedBar(
        name=f"{prefix}rank {rank.rank}",
        note=peak.text,
        segments=stack_segments(parts, scale),
        reference=stack_segments(_list_formula_parts(rank.formula), scale) if rank.formula else (),
    )


def _list_formula_parts(state: StateFormula) -> list[tuple[str, int, str]]:
    states = (
        (Tenant.PARAMETERS, state.parameters),
        (Tenant.GRADIENTS, state.gradients),
        (Tenant.OPTIMIZER_STATE, state.optimizer_state),
    )
    return [(tenant.value, size, format_bytes(size)) for tenant, size in states]


def build_tenant_table(rank: Cursor) -> Table:
    """Build the table of a rank's tenants at its peak, with bytes and the source of ownership.

    Row keys are tenants, or names of memory outside the allocator's live bytes.
    """
    entry: RankMemory = get(rank)
    rows = [_build_tenant_row(rank, name) for name in ORDER]
    rows.append(Row(key="peak", cells=(PEAK, read(rank.peak_bytes), "", ""), total=True))
    rows += [
        Row(key=name.removesuffix("_bytes"), cells=(METRICS[f"memory.per_rank[].{name}"].title, size, "", ""))
        for name in OUTSIDE_LIVE_TERMS
        if (size := read(rank[name])).number is not None
    ]
    return Table(
        name="tenants",
        title=f"Tenants at the peak, rank {entry.rank}",
        columns=(make_text_column("tenant"), SIZE, SHARE, Column(title="blocks", unit="count")),
        rows=tuple(rows),
        help=(
            "One bar per rank, each at its own peak. Press up and down to select a rank, left and right to "
            "select a tenant, and enter to explain its bytes.\nThe six tenants and untagged sum to the "
            "allocated peak."
        ),
        below="how it is known",
        below_separator="; ",
    )


def _build_tenant_row(rank: Cursor, name: str) -> Row:
    place = rank.untagged_bytes if name == UNTAGGED else rank.tenants[name]
    size = read(place) if name == UNTAGGED else read_tenant(rank, Tenant(name))
    if size.number is None:
        return Row(key=name, cells=(tenant_name(name), size, "", ""))
    parts = [part for part in rank.parts if get(part).tenant == name]
    blocks = read(*(part.blocks for part in parts), how=Aggregation.SUM) if parts else None
    return Row(
        key=name,
        cells=(
            tenant_name(name),
            size,
            read(place, rank.peak_bytes, how=Aggregation.SHARE),
            blocks if blocks and blocks.number else "",
        ),
        below=tuple(_describe_parts(parts, int(blocks.number or 0) if blocks else 0)),
    )


def _describe_parts(parts: Sequence[Cursor], blocks: int) -> Iterator[str]:
    """Yield size, reason, blocks and confidence of an owner's largest parts."""
    known = sorted(
        (place for place in parts if get(place).basis is not Basis.UNKNOWN),
        key=lambda place: -get(place).bytes,
    )
    for place in known[:_MAX_REASONS]:
        part: MemoryPart = get(place)
        reason = describe_reason(part.reason) or part.sub.replace("_", " ")
        count = "" if part.blocks is None else f", {part.blocks:,} of {blocks:,} blocks"
        word = f" ({CONFIDENCE_WORDS[part.confidence]})" if part.confidence else ""
        yield f"{read_owned(place).text}: {reason}{count}{word}"
    rest = sum(get(place).bytes for place in known[_MAX_REASONS:])
    if rest:
        ways = len(known) - _MAX_REASONS
        yield f"{format_bytes(rest)} in {ways} other way{'' if ways == 1 else 's'}"


def _build_kind_table(rank: Cursor) -> Table | None:
    """Build the table of a rank's peak by kind; the tenant table gives the reasons for ownership."""
    merged: dict[tuple[str, str, bool], list[Cursor]] = {}
    for place in rank.parts:
        part: MemoryPart = get(place)
        merged.setdefault((part.tenant, part.sub, part.basis is Basis.SIZES), []).append(place)
    rows = []
    for (tenant, sub, by_sizes), places in merged.items():
        size = replace(read(*(place.bytes for place in places), how=Aggregation.SUM), is_estimate=by_sizes)
        ratio = (size.number or 0) / max(1, get(rank).peak_bytes)
        share = Value(ratio, Unit.RATIO)
        if len(places) == 1:
            share = read(places[0].bytes, rank.peak_bytes, how=Aggregation.SHARE)
        name = ": ".join(name for name in (tenant_name(tenant), sub) if name)
        colour = get_tenant_class(tenant) if tenant in ORDER else "time-sum"
        bar = Bar(segments=((colour, 0.0, min(1.0, ratio)),), share=ratio)
        rows.append((name, size, share, bar))
    rows.sort(key=lambda row: -(row[1].number or 0))
    return make_table(
        "By kind",
        (make_name_column("kind"), SIZE, SHARE, Column(title="share", kind=Kind.BAR)),
        rows,
        note=f"rank {get(rank).rank} at its peak",
        max_text_rows=_MAX_TEXT_ROWS,
        noun="kinds",
    )


def build_phase_table(report: Report, rank: int, *, with_others: bool = False) -> Table | None:
    """Build the table of a rank's peak in each phase.

    ``with_others``: include rows for the time before the first step and for host memory, which have their own
    tables in static outputs.
    """
    memory = Cursor(report).memory
    peaks = [(get(peak).phase, get(peak).step, peak) for peak in memory.phases if get(peak).rank == rank]
    if with_others:
        peaks += [
            (name, get(peak).peak_step, peak)
            for name, peaks_of_ranks in (("before step 1", memory.init), ("host memory", memory.host))
            for peak in peaks_of_ranks
            if get(peak).rank == rank
        ]
    rows = [
        Row(key=str(get_path(peak)), cells=(name, *read_peak(peak), "" if step < 0 else str(step)))
        for name, step, peak in peaks
    ]
    return make_table(
        f"{PHASE_TITLE}, rank {rank}",
        (make_name_column("phase"), *make_peak_columns(), Column(title="step")),
        rows,
        name="phases",
        help="Maximum of live bytes in each phase over the steps of the window. The tenants and untagged "
        "sum to the peak.",
        note="highest live bytes",
        max_text_rows=_MAX_TEXT_PHASES,
        noun="phases",
        transposed=True,
    )


def build_module_table(report: Report, rank: int) -> Table | None:
    """Build the table of memory allocated by a rank's modules, each including its submodules."""
    memory = Cursor(report).memory
    peak = next((entry.peak_bytes for entry in memory.per_rank if get(entry).rank == rank), None)
    modules = [(at, module) for at, module in enumerate(memory.modules) if get(module).rank == rank]
    modules.sort(key=lambda item: -get(item[1]).at_rank_peak_bytes)
    rows = [
        Row(
            key=str(at),
            cells=(
                # A wrapped model appears twice: with and without its wrapper.
                strip_wrappers(get(module).module)
                or ("(wrapped model)" if get(module).module else "(entire model)"),
                read(module.at_rank_peak_bytes),
                "" if peak is None else read(module.at_rank_peak_bytes, peak, how=Aggregation.SHARE),
                read(module.peak_bytes),
            ),
        )
        for at, module in modules
    ]
    return make_table(
        f"{MODULE_TITLE}, rank {rank}",
        (
            Column(title="module", kind=Kind.NAME),
            Column(title="at the peak", unit="bytes", help="live at the rank's own peak"),
            SHARE,
            Column(title="own peak", unit="bytes", help="maximum of the module's live bytes"),
        ),
        rows,
        name="modules",
        help="Each module includes its submodules, so the rows do not add up.",
        note="allocated by each, including its submodules",
        max_rows=MAX_LINES,
        max_text_rows=_MAX_TEXT_MODULES,
        noun="modules",
    )


def find_history_rank(memory: Memory) -> RankMemory | None:
    """Return the largest rank if its memory comes from a snapshot, else None."""
    rank = largest_rank(memory.per_rank)
    return rank if rank and memory.is_history(rank.rank) else None


def build_history_sections(report: Report, *, short: bool = False) -> tuple[Section, ...]:
    """Build the sections on a snapshot's peak: groups, owners, unused memory and growth."""
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
    """Describe how much live memory grew up to the peak, by tenant and allocation site."""
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
    """Describe which bytes the page counts, and the value of torch's own counter at the allocated peak."""
    basis = "Sizes are requested bytes; torch.cuda.max_memory_allocated counts them rounded to blocks"
    if device.rounding_bytes is None:
        return f"{basis}: how much that was is unknown."
    counted_bytes = device.live_bytes + device.rounding_bytes
    more = f", {format_bytes(device.rounding_bytes)} more than requested" if device.rounding_bytes else ""
    return f"{basis}: {format_bytes(counted_bytes)} at the {device.moment}{more}."


def _describe_unused(device: DeviceMemory) -> str:
    """Describe the memory that the allocator holds in addition to live bytes, and its form."""
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
