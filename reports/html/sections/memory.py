"""Tenants of each rank at its peak as stacked bars, the law of the stage below each, and as a table."""

from collections.abc import Iterator, Sequence

from zprof.model.memory import RankMemory, StateLaw
from zprof.model.report import Report
from zprof.model.tenants import SHOWN, Tenant
from zprof.model.units import format_bytes
from zprof.reports.html import words
from zprof.reports.html.blocks import Bars, Block, Column, Notes, Segment, StackedBar
from zprof.reports.shown.memory_names import (
    BESIDE,
    basis_note,
    peak_text,
    signed_bytes,
    tenant_bytes,
    tenant_name,
)
from zprof.reports.shown.presenter import peak_bytes, shown_ranks
from zprof.reports.shown.state_words import state_lines

_BARS, _BARS_COMPARED = 32, 16
_ROWS = 200
_NOTED = 4


def memory(report: Report) -> Sequence[Block]:
    """Nothing where no rank's memory was measured: the gaps say why."""
    ranks = report.memory.per_rank
    if not ranks:
        return ()
    return (_bars(report), *_table(report), *_change(report), *_notes(report))


def _bars(report: Report) -> Bars:
    before = report.comparison.baseline_memory if report.comparison else ()
    most = _BARS_COMPARED if before else _BARS
    now = shown_ranks(report.memory.per_rank, most)
    was = shown_ranks(before, most)
    scale = max(1, peak_bytes([*now, *was]), *(_law_bytes(rank) for rank in (*now, *was)))
    who = f"{words.name(report.comparison.baseline, 40)}, " if report.comparison else ""
    mine = f"{words.name(report.run.name, 40)}, " if was else ""
    bars = [*(_bar(rank, who, scale) for rank in was), *(_bar(rank, mine, scale) for rank in now)]
    left = words.left_out(len(now), len(report.memory.per_rank), "ranks, those with the largest peaks")
    law = "the thin bar is what the law of the stage gives the states of a rank"
    return Bars(
        caption="Live bytes in the allocator at each rank's peak",
        bars=tuple(bars),
        legend=words.LEGEND,
        notes=(*((law,) if any(bar.law for bar in bars) else ()), *left),
    )


def _bar(rank: RankMemory, who: str, scale: int) -> StackedBar:
    laid = [
        *((tenant.value, rank.tenants.get(tenant, 0), tenant_bytes(rank, tenant)) for tenant in SHOWN),
        (words.UNTAGGED, rank.untagged_bytes, format_bytes(rank.untagged_bytes)),
    ]
    return StackedBar(
        name=f"{who}rank {rank.rank}",
        note=peak_text(rank),
        segments=tuple(_segments(laid, scale)),
        law=tuple(_segments(_law(rank.formula), scale)) if rank.formula else (),
    )


def _law(law: StateLaw) -> list[tuple[str, int, str]]:
    states = (
        (Tenant.PARAMETERS, law.parameters),
        (Tenant.GRADIENTS, law.gradients),
        (Tenant.OPTIMIZER_STATE, law.optimizer_state),
    )
    return [(tenant.value, size, format_bytes(size)) for tenant, size in states]


def _law_bytes(rank: RankMemory) -> int:
    return sum(size for _, size, _ in _law(rank.formula)) if rank.formula else 0


def _segments(sizes: Sequence[tuple[str, int, str]], scale: int) -> Iterator[Segment]:
    """Pieces (name, bytes, how that reads) one after the other; none for nothing."""
    begin = 0
    for name, size, said in sizes:
        if size > 0:
            yield Segment(
                kind=words.tenant_kind(name),
                letter=words.LETTERS[name],
                text=f"{tenant_name(name)} {said}",
                begin=round(100 * begin / scale, 3),
                width=round(100 * size / scale, 3),
            )
        begin += size


def _table(report: Report) -> Sequence[Block]:
    ranks = shown_ranks(report.memory.per_rank, _ROWS)
    beside = [
        (leaf, title) for leaf, title in BESIDE if any(getattr(rank, leaf) is not None for rank in ranks)
    ]
    columns = (
        Column(title="rank"),
        *(_bytes(f"{words.LETTERS[name]} {tenant_name(name)}") for name in words.ORDER),
        _bytes("= peak"),
        Column(title="peak in"),
        *(_bytes(title) for _, title in beside),
    )
    rows = [(*_row(rank), *(_known(getattr(rank, leaf)) for leaf, _ in beside)) for rank in ranks]
    left = words.left_out(len(ranks), len(report.memory.per_rank), "ranks, those with the largest peaks")
    return words.table("Tenants at the peak, by rank", columns, rows, left)


def _bytes(title: str) -> Column:
    return Column(title=title, unit="bytes", numeric=True)


def _row(rank: RankMemory) -> tuple[str, ...]:
    return (
        str(rank.rank),
        *(tenant_bytes(rank, tenant) for tenant in SHOWN),
        format_bytes(rank.untagged_bytes),
        peak_text(rank),
        moment(rank) or words.NOTHING,
    )


def _known(size: int | None) -> str:
    return "unknown" if size is None else format_bytes(size)


def moment(rank: RankMemory) -> str:
    """When a rank peaks; empty where nobody knows."""
    phase = words.name(rank.peak_phase)
    return f"{phase} of step {rank.peak_step}" if phase and rank.peak_step >= 0 else phase


def _change(report: Report) -> Sequence[Block]:
    delta = report.comparison.memory_delta if report.comparison else {}
    names = [*words.ORDER[:-1], "untagged_bytes", "peak_bytes"]
    titles = {"untagged_bytes": "untagged", "peak_bytes": "= peak"}
    rows = [
        (titles.get(name, tenant_name(name)), signed_bytes(delta[name])) for name in names if name in delta
    ]
    return words.table("Change of the largest rank's peak", (Column(title="tenant"), _bytes("change")), rows)


def _notes(report: Report) -> Sequence[Block]:
    lines = [words.sentence(note) for rank in report.memory.per_rank[:_NOTED] if (note := basis_note(rank))]
    lines += state_lines(report.memory.laws, _NOTED)
    return (Notes(lines=tuple(lines)),) if lines else ()
