"""Build the memory section: tenants at each rank's peak as bars and a table, model states vs. the formula."""

from collections.abc import Iterator, Sequence

from zprof.model.formatting import format_bytes
from zprof.model.leaves import take_value
from zprof.model.memory import RankMemory, StateFormula
from zprof.model.metrics.catalogue import METRICS
from zprof.model.quantities import Unit, Value
from zprof.model.report import Report
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.reports.page import Bars, Block, Note, Section, Segment, StackedBar, make_section
from zprof.reports.presenters.memory_formatting import (
    LETTERS,
    OUTSIDE_LIVE_TERMS,
    UNTAGGED,
    build_tenant_legend,
    describe_attribution,
    describe_states,
    format_peak_time,
    get_tenant_class,
    make_tenant_cells,
    peak_bytes,
    select_largest_ranks,
    sort_by_peak,
    take_owned_bytes,
    take_tenant_bytes,
    tenant_name,
)
from zprof.reports.table import (
    MAX_ROWS,
    Cell,
    Column,
    Kind,
    Table,
    make_name_column,
    make_number_columns,
    make_table,
    make_text_column,
)

_MAX_BARS, _MAX_BARS_COMPARED = 32, 16
#: Maximum number of ranks in a terminal table, without and with a comparison; and in notes.
_MAX_TEXT_RANKS, _MAX_TEXT_RANKS_COMPARED = 4, 2
_MAX_NOTE_RANKS = 4
_MAX_TEXT_TOP = 4
TENANT_TITLES = (*(tenant_name(tenant) for tenant in DISPLAY_ORDER), UNTAGGED, "= allocated peak")


def build_memory_section(
    report: Report, *, short: bool = False, with_largest: bool = True
) -> tuple[Section, ...]:
    """Build the section; empty if no rank was measured (the gaps give the reason)."""
    if not report.memory.per_rank:
        return ()
    blocks: list[Block | None] = [_build_tenant_table(report), *_list_notes(report)]
    if not short:
        blocks = [_build_tenant_bars(report), *blocks, _build_top_table(report) if with_largest else None]
    return make_section("memory", "Memory", "Memory by tenant at each rank's peak.", *blocks)


def _build_tenant_table(report: Report) -> Table | None:
    """Build one row per rank of the run and the baseline, and the change of the largest rank."""
    now, before = _select_ranks(report, MAX_ROWS)
    outside_terms = [
        field for field in OUTSIDE_LIVE_TERMS if any(getattr(rank, field) is not None for rank in now)
    ]
    rows = [_make_tenant_row(f"baseline rank {rank.rank}", rank, outside_terms) for rank in before]
    rows += [_make_tenant_row(f"rank {rank.rank}", rank, outside_terms) for rank in now]
    max_ranks = _MAX_TEXT_RANKS_COMPARED if before else _MAX_TEXT_RANKS
    order = [len(before) + index for index in sort_by_peak(now)]
    if before:
        rows.append(_make_change_row(report, len(outside_terms)))
        first, rest = order[:max_ranks], order[max_ranks:]
        baseline = list(sort_by_peak(before))
        order = [len(rows) - 1, *baseline[:max_ranks], *first, *baseline[max_ranks:], *rest]
    return make_table(
        "Memory at each rank's peak",
        (
            make_text_column("rank"),
            *make_number_columns(*TENANT_TITLES, unit="bytes"),
            Column(title="peak in", kind=Kind.TEXT, wide=True),
            *make_number_columns(
                *(METRICS[f"memory.per_rank[].{field}"].title for field in outside_terms), unit="bytes"
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


def _select_ranks(report: Report, max_ranks: int) -> tuple[tuple[RankMemory, ...], tuple[RankMemory, ...]]:
    before = report.comparison.baseline_memory if report.comparison else ()
    return select_largest_ranks(report.memory.per_rank, max_ranks), select_largest_ranks(
        before, _MAX_BARS_COMPARED
    )


def _make_tenant_row(name: str, rank: RankMemory, outside_terms: Sequence[str]) -> tuple[Cell, ...]:
    outside = (take_value(rank, field) for field in outside_terms)
    return (name, *make_tenant_cells(rank), format_peak_time(rank) or "-", *outside)


def _make_change_row(report: Report, outside_terms: int) -> tuple[Cell, ...]:
    delta = report.comparison.memory_delta if report.comparison else {}
    names = (*(tenant.value for tenant in DISPLAY_ORDER), "untagged_bytes", "peak_bytes")
    changes = (Value(delta[name], Unit.BYTES, signed=True) if name in delta else "" for name in names)
    return ("change of max", *changes, "", *[""] * outside_terms)


def _list_notes(report: Report) -> Iterator[Note]:
    ranks = select_largest_ranks(report.memory.per_rank, _MAX_NOTE_RANKS)
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
    for line in describe_states(report.memory.laws, _MAX_NOTE_RANKS):
        yield Note(text=line)


def _build_top_table(report: Report) -> Table | None:
    """Build a short table of the largest allocations; the detail section has their call sites."""
    rows = [
        (
            ": ".join(part for part in (entry.module, entry.sub) if part) or "(unknown)",
            tenant_name(entry.tenant),
            str(entry.rank),
            take_owned_bytes(entry),
        )
        for entry in report.memory.top[:8]
    ]
    return make_table(
        "Largest live allocations at the peak",
        (
            make_name_column("allocation"),
            make_text_column("tenant"),
            Column(title="rank"),
            Column(title="size", unit="bytes"),
        ),
        rows,
        max_text_rows=_MAX_TEXT_TOP,
        total=len(report.memory.top),
        noun="allocations, largest first",
    )


def _build_tenant_bars(report: Report) -> Bars:
    before = report.comparison.baseline_memory if report.comparison else ()
    max_ranks = _MAX_BARS_COMPARED if before else _MAX_BARS
    now, baseline_bars = (
        select_largest_ranks(report.memory.per_rank, max_ranks),
        select_largest_ranks(before, max_ranks),
    )
    scale = max(
        1, peak_bytes([*now, *baseline_bars]), *(_sum_formula_bytes(rank) for rank in (*now, *baseline_bars))
    )
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


def _build_tenant_bar(rank: RankMemory, prefix: str, scale: int) -> StackedBar:
    parts = [
        *(
            (tenant.value, rank.tenants.get(tenant, 0), take_tenant_bytes(rank, tenant).text)
            for tenant in DISPLAY_ORDER
        ),
        (UNTAGGED, rank.untagged_bytes, format_bytes(rank.untagged_bytes)),
    ]
    return StackedBar(
        name=f"{prefix}rank {rank.rank}",
        note=take_value(rank, "peak_bytes").text,
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


def _sum_formula_bytes(rank: RankMemory) -> int:
    return sum(size for _, size, _ in _list_formula_parts(rank.formula)) if rank.formula else 0


def stack_segments(parts: Sequence[tuple[str, int, str]], scale: int) -> tuple[Segment, ...]:
    """Lay out (tenant, bytes, text) parts end to end; parts of zero bytes are skipped."""
    segments, start = [], 0
    for name, size, text in parts:
        if size > 0:
            segments.append(
                Segment(
                    colour=get_tenant_class(name),
                    letter=LETTERS[name],
                    text=f"{tenant_name(name)} {text}",
                    start=round(100 * start / scale, 3),
                    width=round(100 * size / scale, 3),
                )
            )
        start += size
    return tuple(segments)
