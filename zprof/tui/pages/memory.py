"""The bars of the memory screen: each rank at its own peak, one part a tenant."""

from collections.abc import Sequence
from dataclasses import dataclass

from zprof.model.memory import Memory, RankMemory
from zprof.model.report import Report
from zprof.model.tenants import SHOWN
from zprof.reports.presenters.memory_figures import largest_rank, peak_mark
from zprof.tui.figures import Figure, Unit, figure
from zprof.tui.pages.memory_legend import OUTSIDE, RANKS, legend_table, notes_of, total_of, used_figure
from zprof.tui.session import Loaded, Selected
from zprof.tui.tables import Cell, Table
from zprof.tui.theme.palette import UNTAGGED

#: Bars that a page holds at most; a terminal shows as many of them as it has room for.
MOST_BARS = 32
#: Of the device's memory: with less allocated the bars would be too short to read beside it.
_WORTH_A_DEVICE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBar:
    """One rank at its peak.  ``parts``: name of the paint, and bytes; ``bound``: what stands before the peak.

    ``moment`` is when it peaks.
    """

    rank: int
    parts: tuple[tuple[str, int], ...]
    peak: Figure
    bound: str
    moment: str
    is_subject: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """Bars, the most telling first, on one scale; the legend is of the rank ``subject``.

    ``window``: the steps that memory was recorded in, as far as they are known.
    ``order``: all measured ranks, as up and down go through them.  ``total``: the line under the legend.
    """

    bars: tuple[RankBar, ...]
    order: tuple[int, ...]
    subject: int
    whole: Figure
    whole_is: str
    window: str
    legend: Table
    total: tuple[Cell, ...]
    notes: tuple[tuple[Cell, ...], ...]


def subject_of(report: Report, selected: Selected) -> RankMemory | None:
    """The selected rank, or where it was not measured the one with the largest peak."""
    ranks = report.memory.per_rank
    return next((rank for rank in ranks if rank.rank == selected.rank), None) or largest_rank(ranks)


def stacks(loaded: Loaded, selected: Selected) -> Stacks | None:
    """The bars; None where no memory was measured."""
    memory = loaded.report.memory
    subject = subject_of(loaded.report, selected)
    if subject is None:
        return None
    place = memory.per_rank.index(subject)
    whole, whole_is = _whole(loaded, memory)
    return Stacks(
        bars=tuple(_bar(loaded, at, at == place) for at in telling(memory.per_rank, place)[:MOST_BARS]),
        order=tuple(sorted(rank.rank for rank in memory.per_rank)),
        subject=subject.rank,
        whole=whole,
        whole_is=whole_is,
        window=window_of(loaded.report),
        legend=legend_table(loaded, subject, place),
        total=total_of(loaded, subject, place),
        notes=tuple(notes_of(loaded, selected, subject)),
    )


def window_of(report: Report) -> str:
    """``steps 2-3``; empty where they are not known."""
    steps = report.run.memory_steps
    if not steps:
        return ""
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {min(steps)}-{max(steps)}"


def telling(ranks: Sequence[RankMemory], subject: int) -> list[int]:
    """Places of the ranks: the subject, the largest peak, the smallest, then by size."""
    by_size = sorted(range(len(ranks)), key=lambda place: (-ranks[place].peak_bytes, ranks[place].rank))
    return list(dict.fromkeys([subject, *by_size[:1], *by_size[-1:], *by_size]))


def _bar(loaded: Loaded, place: int, is_subject: bool) -> RankBar:
    rank = loaded.report.memory.per_rank[place]
    outside = [(name, getattr(rank, leaf) or 0) for name, leaf in OUTSIDE]
    tenants = [(tenant.value, rank.tenants.get(tenant, 0)) for tenant in SHOWN]
    return RankBar(
        rank=rank.rank,
        parts=(*tenants, (UNTAGGED, rank.untagged_bytes), *outside),
        peak=figure(loaded.tree, Unit.BYTES, f"{RANKS}[{place}].peak_bytes"),
        bound=peak_mark(rank),
        moment=moment_of(rank.peak_step, rank.peak_phase),
        is_subject=is_subject,
    )


def moment_of(step: int, phase: str) -> str:
    """``step 4 backward``, as far as it is known."""
    return " ".join(part for part in (f"step {step}" if step >= 0 else "", phase) if part)


def _whole(loaded: Loaded, memory: Memory) -> tuple[Figure, str]:
    """What a full bar is: the device, or the most that any rank uses."""
    sizes = [_used(rank) for rank in memory.per_rank]
    largest = sizes.index(max(sizes))
    totals = [entry.device_total_bytes or 0 for entry in memory.devices]
    peak = max(rank.peak_bytes for rank in memory.per_rank)
    if totals and max(totals) * _WORTH_A_DEVICE <= peak and max(sizes) <= max(totals):
        leaf = f"memory.devices[{totals.index(max(totals))}].device_total_bytes"
        return figure(loaded.tree, Unit.BYTES, leaf), "what the device has"
    return used_figure(loaded, largest), "the largest"


def _used(rank: RankMemory) -> int:
    return rank.peak_bytes + (rank.reserved_unused_bytes or 0) + (rank.non_pytorch_bytes or 0)
