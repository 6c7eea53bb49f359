"""The memory part of the text report: tenants of each rank at its peak, and the state law."""

from collections.abc import Callable, Sequence

from zprof.model.memory import Allocation, RankMemory
from zprof.model.printable import printable
from zprof.model.report import Report
from zprof.model.units import format_bytes as _bytes
from zprof.reports.shown.memory_names import (
    basis_note,
    beside_words,
    peak_text,
    signed_bytes,
    sized,
    tenant_bytes,
    tenant_name,
)
from zprof.reports.shown.presenter import (
    MAX_RANKS,
    MAX_RANKS_COMPARED,
    shown_ranks,
    shown_tenants,
)
from zprof.reports.shown.state_words import state_lines
from zprof.reports.text.layout import heading, table, wrap

_TOP = 4


def memory(report: Report) -> list[str]:
    """Nothing where no rank's memory was measured: the gaps say why."""
    if not report.memory.per_rank:
        return []
    return [
        "",
        heading("MEMORY AT EACH RANK'S PEAK", "bytes live in the allocator"),
        *table(_rows(report)),
        *_notes(report),
        *[line for said in state_lines(report.memory.laws, MAX_RANKS) for line in wrap(said)],
    ]


def _rows(report: Report) -> list[list[str]]:
    ranks = report.memory.per_rank
    before = report.comparison.baseline_memory if report.comparison else ()
    most = MAX_RANKS_COMPARED if before else MAX_RANKS
    shown = [*shown_ranks(before, most), *shown_ranks(ranks, most)]
    change = _change_of(report)
    rows = [["", *[f"rank {rank.rank}" for rank in shown], "change"]]
    rows += [
        [tenant_name(tenant), *[tenant_bytes(rank, tenant) for rank in shown], change(tenant.value)]
        for tenant in shown_tenants(ranks)
    ]
    rows.append(["untagged", *[_bytes(rank.untagged_bytes) for rank in shown], change("untagged_bytes")])
    rows.append(["= allocated peak", *[peak_text(rank) for rank in shown], change("peak_bytes")])
    if not before:
        return [row[:-1] for row in rows]
    sides = ["baseline"] * len(shown_ranks(before, most)) + ["this run"] * len(shown_ranks(ranks, most))
    return [["", *sides, "largest"], *rows]


def _change_of(report: Report) -> Callable[[str], str]:
    delta = report.comparison.memory_delta if report.comparison else {}
    return lambda name: signed_bytes(delta[name]) if name in delta else ""


def _notes(report: Report) -> list[str]:
    """What stands outside the allocator's live bytes, and how many ranks the table leaves out."""
    ranks = report.memory.per_rank
    most = MAX_RANKS_COMPARED if report.comparison and report.comparison.baseline_memory else MAX_RANKS
    shown = shown_ranks(ranks, most)
    lines = _when(shown)
    for rank in shown:
        lines += wrap(note) if (note := basis_note(rank)) else []
        if beside := beside_words(rank):
            lines += wrap(f"beside it on rank {rank.rank}: {beside}")
    if len(shown) < len(ranks):
        lines += wrap(f"{len(shown)} of {len(ranks)} ranks, the largest peaks; all of them: -f json")
    return lines


def _when(shown: Sequence[RankMemory]) -> list[str]:
    """When the ranks peak: once where all peak alike."""
    moments = {rank.rank: _moment(rank) for rank in shown}
    if not any(moments.values()):
        return []
    if len(set(moments.values())) == 1:
        return wrap(f"the peak is in the {next(iter(moments.values()))}")
    return wrap("peaks: " + ", ".join(f"rank {rank} {moment}" for rank, moment in moments.items()))


def _moment(rank: RankMemory) -> str:
    phase, step = printable(rank.peak_phase), rank.peak_step
    return f"{phase} of step {step}" if phase and step >= 0 else phase


def largest(top: Sequence[Allocation]) -> list[str]:
    """The largest allocations of all ranks, in short."""
    if not top:
        return []
    rows = [["largest live at the peak", "tenant", "rank", "size"]]
    for entry in top[:_TOP]:
        name = ": ".join(part for part in (entry.module, entry.sub) if part) or "(unknown)"
        rows.append([printable(name), printable(entry.tenant), str(entry.rank), sized(entry)])
    return ["", *table(rows)]
