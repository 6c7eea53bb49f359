"""Memory at each rank's peak: tenants as bars and a table, model states against the ZeRO formula."""

from collections.abc import Iterator, Sequence

from zprof.model.formatting import format_bytes
from zprof.model.memory import RankMemory, StateFormula
from zprof.model.report import Report
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.reports.page import (
    MAX_ROWS,
    Bars,
    Block,
    Column,
    Kind,
    Note,
    Section,
    Segment,
    StackedBar,
    Table,
    make_name_column,
    make_number_columns,
    make_section,
    make_table,
    make_text_column,
)
from zprof.reports.presenters.memory_figures import (
    LETTERS,
    OUTSIDE_LIVE_TERMS,
    UNTAGGED,
    basis_note,
    build_tenant_legend,
    describe_states,
    format_marked_size,
    format_optional_bytes,
    format_peak,
    format_peak_time,
    format_signed_bytes,
    format_tenant_cells,
    get_tenant_class,
    peak_bytes,
    select_largest_ranks,
    sort_by_peak,
    tenant_bytes,
    tenant_name,
)

_MAX_BARS, _MAX_BARS_COMPARED = 32, 16
#: Ranks side by side in a terminal, alone and on each side of a comparison; ranks in sentences.
_MAX_TEXT_RANKS, _MAX_TEXT_RANKS_COMPARED = 4, 2
_MAX_STATED = 4
_MAX_TEXT_TOP = 4
TENANT_TITLES = (*(tenant_name(tenant) for tenant in DISPLAY_ORDER), UNTAGGED, "= allocated peak")


def build_memory_section(
    report: Report, *, short: bool = False, with_largest: bool = True
) -> tuple[Section, ...]:
    """Return who owns the bytes at the peak; nothing if no rank was measured: the gaps say why."""
    if not report.memory.per_rank:
        return ()
    blocks: list[Block | None] = [_tenant_table(report), *_notes(report)]
    if not short:
        blocks = [_tenant_bars(report), *blocks, _top_table(report) if with_largest else None]
    return make_section("memory", "Memory", "Who owns the bytes at each rank's peak.", *blocks)


def _tenant_table(report: Report) -> Table | None:
    """Return a row per rank, of the baseline too, and the change of the largest."""
    now, before = _ranks(report, MAX_ROWS)
    beside = [
        (leaf, name)
        for leaf, name in OUTSIDE_LIVE_TERMS
        if any(getattr(rank, leaf) is not None for rank in now)
    ]
    rows = [_tenant_row(f"baseline rank {rank.rank}", rank, beside) for rank in before]
    rows += [_tenant_row(f"rank {rank.rank}", rank, beside) for rank in now]
    most = _MAX_TEXT_RANKS_COMPARED if before else _MAX_TEXT_RANKS
    order = [len(before) + at for at in sort_by_peak(now)]
    if before:
        rows.append(_change_row(report, len(beside)))
        first, rest = order[:most], order[most:]
        baseline = list(sort_by_peak(before))
        order = [len(rows) - 1, *baseline[:most], *first, *baseline[most:], *rest]
    return make_table(
        "Memory at each rank's peak",
        (
            make_text_column("rank"),
            *make_number_columns(*TENANT_TITLES, unit="bytes"),
            Column(title="peak in", kind=Kind.TEXT, wide=True),
            *make_number_columns(*(name for _, name in beside), unit="bytes"),
        ),
        rows,
        note="bytes live in the allocator",
        max_text_rows=2 * most + 1 if before else most,
        order=order,
        total=len(report.memory.per_rank) + len(rows) - len(now),
        noun="ranks, those with the largest peaks",
        transposed=True,
    )


def _ranks(report: Report, most: int) -> tuple[tuple[RankMemory, ...], tuple[RankMemory, ...]]:
    before = report.comparison.baseline_memory if report.comparison else ()
    return select_largest_ranks(report.memory.per_rank, most), select_largest_ranks(
        before, _MAX_BARS_COMPARED
    )


def _tenant_row(name: str, rank: RankMemory, beside: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    outside = (format_optional_bytes(getattr(rank, leaf)) for leaf, _ in beside)
    return (name, *format_tenant_cells(rank), format_peak_time(rank) or "-", *outside)


def _change_row(report: Report, beside: int) -> tuple[str, ...]:
    delta = report.comparison.memory_delta if report.comparison else {}
    names = (*(tenant.value for tenant in DISPLAY_ORDER), "untagged_bytes", "peak_bytes")
    changes = (format_signed_bytes(delta[name]) if name in delta else "" for name in names)
    return ("change of the largest", *changes, "", *[""] * beside)


def _notes(report: Report) -> Iterator[Note]:
    ranks = select_largest_ranks(report.memory.per_rank, _MAX_STATED)
    moments = {rank.rank: format_peak_time(rank) for rank in ranks}
    if len(set(moments.values())) == 1 and (moment := format_peak_time(ranks[0])):
        yield Note(text=f"The peak is in the {moment}.")
    elif any(moments.values()):
        said = ", ".join(f"rank {rank} in the {moment}" for rank, moment in moments.items() if moment)
        yield Note(text=f"Peaks: {said}.")
    for rank in ranks:
        if note := basis_note(rank):
            yield Note(text=note)
    for line in describe_states(report.memory.laws, _MAX_STATED):
        yield Note(text=line)


def _top_table(report: Report) -> Table | None:
    """Return the largest allocations of all ranks in short; where they were made is a detail."""
    rows = [
        (
            ": ".join(part for part in (entry.module, entry.sub) if part) or "(unknown)",
            tenant_name(entry.tenant),
            str(entry.rank),
            format_marked_size(entry),
        )
        for entry in report.memory.top[:8]
    ]
    return make_table(
        "Largest live at the peak",
        (
            make_name_column("allocation"),
            make_text_column("tenant"),
            Column(title="rank"),
            Column(title="size", unit="bytes"),
        ),
        rows,
        max_text_rows=_MAX_TEXT_TOP,
        total=len(report.memory.top),
        noun="allocations, the largest",
    )


def _tenant_bars(report: Report) -> Bars:
    before = report.comparison.baseline_memory if report.comparison else ()
    most = _MAX_BARS_COMPARED if before else _MAX_BARS
    now, was = select_largest_ranks(report.memory.per_rank, most), select_largest_ranks(before, most)
    scale = max(1, peak_bytes([*now, *was]), *(_formula_bytes(rank) for rank in (*now, *was)))
    theirs = f"{report.comparison.baseline}, " if report.comparison else ""
    ours = f"{report.run.name}, " if was else ""
    bars = [
        *(_tenant_bar(rank, theirs, scale) for rank in was),
        *(_tenant_bar(rank, ours, scale) for rank in now),
    ]
    notes = []
    if any(bar.reference for bar in bars):
        notes.append("The thin bar is what the ZeRO formula gives the model states of a rank.")
    if len(now) < len(report.memory.per_rank):
        notes.append(f"{len(now)} of {len(report.memory.per_rank):,} ranks, those with the largest peaks.")
    return Bars(
        title="Live bytes in the allocator at each rank's peak",
        bars=tuple(bars),
        legend=build_tenant_legend(),
        notes=tuple(notes),
    )


def _tenant_bar(rank: RankMemory, whose: str, scale: int) -> StackedBar:
    parts = [
        *(
            (tenant.value, rank.tenants.get(tenant, 0), tenant_bytes(rank, tenant))
            for tenant in DISPLAY_ORDER
        ),
        (UNTAGGED, rank.untagged_bytes, format_bytes(rank.untagged_bytes)),
    ]
    return StackedBar(
        name=f"{whose}rank {rank.rank}",
        note=format_peak(rank),
        segments=stack_segments(parts, scale),
        reference=stack_segments(_formula_parts(rank.formula), scale) if rank.formula else (),
    )


def _formula_parts(state: StateFormula) -> list[tuple[str, int, str]]:
    states = (
        (Tenant.PARAMETERS, state.parameters),
        (Tenant.GRADIENTS, state.gradients),
        (Tenant.OPTIMIZER_STATE, state.optimizer_state),
    )
    return [(tenant.value, size, format_bytes(size)) for tenant, size in states]


def _formula_bytes(rank: RankMemory) -> int:
    return sum(size for _, size, _ in _formula_parts(rank.formula)) if rank.formula else 0


def stack_segments(parts: Sequence[tuple[str, int, str]], scale: int) -> tuple[Segment, ...]:
    """Return pieces (tenant, bytes, how that reads) one after the other; none for nothing."""
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
