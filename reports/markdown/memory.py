"""The memory part of a report in Markdown: tenants of each rank at its peak, the law, the largest pieces."""

from collections.abc import Callable, Sequence

from zprof.model.memory import Allocation, LawCheck, RankMemory
from zprof.model.report import Report
from zprof.model.units import format_bytes, format_percent
from zprof.reports.escape_markdown import code, prose
from zprof.reports.markdown.blocks import left_out, table
from zprof.reports.shown.memory_names import (
    DEVICE_TERMS,
    basis_note,
    beside_words,
    peak_text,
    signed_bytes,
    sized,
    tenant_bytes,
    tenant_name,
)
from zprof.reports.shown.memory_presenter import largest_rank, shares
from zprof.reports.shown.presenter import (
    MAX_RANKS_COMPARED,
    shown_ranks,
    shown_tenants,
)
from zprof.reports.shown.state_words import state_lines

_MAX_RANKS = 8
_TOP = 8
_PARTS = 12
_DEVICES = 4
_PHASES = 8


def memory_blocks(report: Report) -> list[str]:
    """Nothing where no rank's memory was measured: the gaps say why."""
    ranks = report.memory.per_rank
    if not ranks:
        return []
    return [_tenants(report), *_notes(report), *_states(report.memory.laws), *_largest(report.memory.top)]


def memory_detail_blocks(report: Report) -> list[str]:
    """What the largest peak consists of, by phase too, and where the rest of the device is."""
    return [*_parts(report), *_phases(report), *_devices(report)]


def _before(report: Report) -> Sequence[RankMemory]:
    return report.comparison.baseline_memory if report.comparison else ()


def _sides(report: Report) -> tuple[tuple[RankMemory, ...], tuple[RankMemory, ...]]:
    """Ranks of the baseline and of this run that have room."""
    before = _before(report)
    most = MAX_RANKS_COMPARED if before else _MAX_RANKS
    return shown_ranks(before, most), shown_ranks(report.memory.per_rank, most)


def _tenants(report: Report) -> str:
    before, after = _sides(report)
    delta = report.comparison.memory_delta if report.comparison and before else {}

    def row(name: str, key: str, show: Callable[[RankMemory], str]) -> list[str]:
        change = [signed_bytes(delta[key]) if key in delta else ""] if before else []
        return [name, *[show(rank) for rank in (*before, *after)], *change]

    head = ["", *[f"baseline rank {rank.rank}" for rank in before], *[f"rank {rank.rank}" for rank in after]]
    rows = [
        row(tenant_name(tenant), tenant.value, lambda rank, tenant=tenant: tenant_bytes(rank, tenant))  # type: ignore[misc]
        for tenant in shown_tenants(report.memory.per_rank)
    ]
    rows.append(row("untagged", "untagged_bytes", lambda rank: format_bytes(rank.untagged_bytes)))
    total = row("= allocated peak", "peak_bytes", peak_text)
    rows.append([f"**{cell}**" if cell else "" for cell in total])
    return table([*head, *(["largest, change"] if before else [])], rows)


def _notes(report: Report) -> list[str]:
    _, shown = _sides(report)
    moments = dict.fromkeys(_moment(rank) for rank in shown)
    notes = [f"The peak is in {' and in '.join(list(moments)[:4])}."] if any(moments) else []
    notes += [f"{prose(note)}." for rank in shown if (note := basis_note(rank))]
    for rank in shown:
        if beside := beside_words(rank):
            notes.append(f"Beside it on rank {rank.rank}: {beside}.")
    if len(shown) < len(report.memory.per_rank):
        notes.append(f"{len(shown)} of {len(report.memory.per_rank)} ranks, the largest peaks.")
    return notes


def _moment(rank: RankMemory) -> str:
    phase, step = prose(rank.peak_phase, 60), rank.peak_step
    return f"the {phase} of step {step}" if phase and step >= 0 else phase


def _states(laws: Sequence[LawCheck]) -> list[str]:
    return [f"{said[0].upper()}{said[1:]}." for said in state_lines(laws, _MAX_RANKS)]


def _largest(top: Sequence[Allocation]) -> list[str]:
    if not top:
        return []
    rows = [
        [
            code(": ".join(part for part in (entry.module, entry.sub) if part), 80) or "(unknown)",
            prose(tenant_name(entry.tenant), 60),
            str(entry.rank),
            sized(entry),
        ]
        for entry in top[:_TOP]
    ]
    return [
        table(["largest live at the peak", "tenant", "rank", "size"], rows, words=(0, 1)),
        *left_out(len(rows), len(top), "allocations, the largest"),
    ]


def _parts(report: Report) -> list[str]:
    rank = largest_rank(report.memory.per_rank)
    if rank is None or not rank.parts:
        return []
    parts = sorted(rank.parts, key=lambda part: -part.bytes)[:_PARTS]
    rows = [
        [
            prose(": ".join(name for name in (tenant_name(part.tenant), part.sub) if name), 80),
            sized(part),
            format_percent(share),
        ]
        for part, share in zip(parts, shares(parts, rank.peak_bytes), strict=True)
    ]
    return [
        table([f"kind, rank {rank.rank} at its peak", "size", "share"], rows),
        *left_out(len(rows), len(rank.parts), "kinds, the largest"),
    ]


def _phases(report: Report) -> list[str]:
    rank = largest_rank(report.memory.per_rank)
    phases = [phase for phase in report.memory.phases if rank is not None and phase.rank == rank.rank]
    if not phases or rank is None:
        return []
    rows = [
        [prose(phase.phase, 60), str(phase.step), format_bytes(phase.peak_bytes)]
        for phase in phases[:_PHASES]
    ]
    return [
        table([f"phase, rank {rank.rank}", "step", "peak"], rows),
        *left_out(len(rows), len(phases), "phases"),
    ]


def _devices(report: Report) -> list[str]:
    devices = report.memory.devices[:_DEVICES]
    if not devices:
        return []
    head = ["", *[f"rank {entry.rank}, {prose(entry.moment, 40)}" for entry in devices]]
    rows = []
    for field, name in DEVICE_TERMS:
        values = [getattr(entry, field) for entry in devices]
        if any(value is not None for value in values):
            rows.append([name, *["unknown" if value is None else format_bytes(value) for value in values]])
    known = len(report.memory.devices)
    return [table(head, rows), *left_out(len(devices), known, "moments of devices")]
