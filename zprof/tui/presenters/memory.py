"""Build the bars of the memory screen: each rank at its own peak by tenant, and the legend of one rank.

It also explains why memory was not measured.
"""

import textwrap
from collections.abc import Collection, Sequence

from msgspec import Struct

from zprof.model.gaps import Gap, GapKind
from zprof.model.leaves import read_value
from zprof.model.memory import Memory, RankMemory
from zprof.model.quantities import BOUND_SIGNS, ESTIMATE_SIGN, Aggregation, Value
from zprof.model.report import Report
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.reports.presenters.memory_formatting import (
    describe_attribution,
    largest_rank,
    take_tenant_bytes,
    tenant_name,
)
from zprof.reports.table import UNKNOWN, Cell, Column, Kind, Mark, Marked, Opens, Row, Table
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.theme import NON_PYTORCH, RESERVED_UNUSED, UNTAGGED

#: Limit on the bars of a page; a terminal shows as many of them as fit.
MAX_BARS = 32
#: Minimum share of the device's memory to scale bars by the device; shorter bars would be unreadable.
_MIN_DEVICE_RATIO = 0.1


class RankBar(Struct, frozen=True, kw_only=True):
    """One rank at its peak.

    ``parts``: name of the colour, and bytes. ``bound``: bound sign of the peak. ``moment``: step and phase of
    the peak.
    """

    rank: int
    parts: tuple[tuple[str, int], ...]
    peak: Value
    bound: str
    moment: str
    is_subject: bool


class Stacks(Struct, frozen=True, kw_only=True):
    """Bars in order of interest, on one scale, and the legend of the rank ``subject``.

    ``window``: steps in which memory was recorded, as far as known. ``order``: all measured ranks, in the
    order of the up and down keys. ``total``: cells of the line below the legend.
    """

    bars: tuple[RankBar, ...]
    order: tuple[int, ...]
    subject: int
    whole: Value
    whole_is: str
    window: str
    legend: Table
    total: tuple[Cell, ...]
    notes: tuple[tuple[Cell, ...], ...]


def find_subject(report: Report, selected: Selection) -> RankMemory | None:
    """Return the selected rank, or if it was not measured the one with the largest peak."""
    ranks = report.memory.per_rank
    return next((rank for rank in ranks if rank.rank == selected.rank), None) or largest_rank(ranks)


def build_stacks(loaded: LoadedRun, selected: Selection) -> Stacks | None:
    """Return the bars, or None if no memory was measured."""
    memory = loaded.report.memory
    subject = find_subject(loaded.report, selected)
    if subject is None:
        return None
    subject_index = memory.per_rank.index(subject)
    whole, whole_is = _find_scale(loaded, memory)
    return Stacks(
        bars=tuple(
            _build_bar(loaded, index, index == subject_index)
            for index in sort_indices(memory.per_rank, subject_index)[:MAX_BARS]
        ),
        order=tuple(sorted(rank.rank for rank in memory.per_rank)),
        subject=subject.rank,
        whole=whole,
        whole_is=whole_is,
        window=format_window(loaded.report),
        legend=build_legend_table(loaded, subject, subject_index),
        total=build_total(loaded, subject, subject_index),
        notes=tuple(build_notes(loaded, selected, subject)),
    )


def format_window(report: Report) -> str:
    """Format the steps of the memory window as ``steps 2-3``; empty if unknown."""
    steps = report.run.memory_steps
    if not steps:
        return ""
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {min(steps)}-{max(steps)}"


def sort_indices(ranks: Sequence[RankMemory], subject: int) -> list[int]:
    """Sort the indices of the ranks: the subject, the largest peak, the smallest, then by size."""
    by_size = sorted(range(len(ranks)), key=lambda index: (-ranks[index].peak_bytes, ranks[index].rank))
    return list(dict.fromkeys([subject, *by_size[:1], *by_size[-1:], *by_size]))


def _build_bar(loaded: LoadedRun, index: int, is_subject: bool) -> RankBar:
    rank = loaded.report.memory.per_rank[index]
    peak = read_value(loaded.report, f"{RANKS}[{index}].peak_bytes")
    outside = [(name, getattr(rank, leaf) or 0) for name, leaf in OUTSIDE]
    tenants = [(tenant.value, rank.tenants.get(tenant, 0)) for tenant in DISPLAY_ORDER]
    return RankBar(
        rank=rank.rank,
        parts=(*tenants, (UNTAGGED, rank.untagged_bytes), *outside),
        peak=peak,
        bound=BOUND_SIGNS[peak.bound],
        moment=format_moment(rank.peak_step, rank.peak_phase),
        is_subject=is_subject,
    )


def format_moment(step: int, phase: str) -> str:
    """Format a moment as ``step 4 backward``, omitting unknown parts."""
    return " ".join(part for part in (f"step {step}" if step >= 0 else "", phase) if part)


def _find_scale(loaded: LoadedRun, memory: Memory) -> tuple[Value, str]:
    """Return the size of a full bar and its name: the device, or the largest use of any rank."""
    sizes = [_sum_used(rank) for rank in memory.per_rank]
    largest = sizes.index(max(sizes))
    totals = [entry.device_total_bytes or 0 for entry in memory.devices]
    peak = max(rank.peak_bytes for rank in memory.per_rank)
    if totals and max(totals) * _MIN_DEVICE_RATIO <= peak and max(sizes) <= max(totals):
        leaf = f"memory.devices[{totals.index(max(totals))}].device_total_bytes"
        return read_value(loaded.report, leaf), "device memory"
    return make_used_figure(loaded, largest), "the largest rank"


def _sum_used(rank: RankMemory) -> int:
    return rank.peak_bytes + (rank.reserved_unused_bytes or 0) + (rank.non_pytorch_bytes or 0)


RANKS = "memory.per_rank"
OUTSIDE = ((RESERVED_UNUSED, "reserved_unused_bytes"), (NON_PYTORCH, "non_pytorch_bytes"))
_NAMES = {UNTAGGED: "untagged", RESERVED_UNUSED: "reserved, unused", NON_PYTORCH: "outside PyTorch"}


def make_used_figure(loaded: LoadedRun, index: int) -> Value:
    """Return the total memory of a rank's process, as far as it is known."""
    stem, rank = f"{RANKS}[{index}]", loaded.report.memory.per_rank[index]
    known = [f"{stem}.{leaf}" for _, leaf in OUTSIDE if getattr(rank, leaf) is not None]
    if not known:
        return read_value(loaded.report, f"{stem}.peak_bytes")
    return read_value(loaded.report, f"{stem}.peak_bytes", *known, how=Aggregation.SUM)


def build_legend_table(loaded: LoadedRun, rank: RankMemory, index: int) -> Table:
    """Build the table of one rank's tenants with their bytes; a line's key is the name of its colour."""
    stem, peak = f"{RANKS}[{index}]", f"{RANKS}[{index}].peak_bytes"
    leaves = [
        (tenant.value, f"{stem}.tenants.{tenant.value}", _find_basis(rank, tenant))
        for tenant in DISPLAY_ORDER
    ]
    leaves.append((UNTAGGED, f"{stem}.untagged_bytes", ""))
    lines = [
        Row(
            key=name,
            cells=(
                name_tenant(name),
                "unknown" if basis == UNKNOWN else read_value(loaded.report, leaf),
                read_value(loaded.report, leaf, peak, how=Aggregation.SHARE),
                basis,
            ),
        )
        for name, leaf, basis in leaves
    ]
    lines += [
        Row(key=name, cells=(name_tenant(name), number, "", ""))
        for name, leaf in OUTSIDE
        if (number := read_value(loaded.report, f"{stem}.{leaf}")).number is not None
    ]
    return Table(
        name="tenants",
        title=f"tenants of rank {rank.rank} at its peak",
        columns=(
            Column(title="tenant", kind=Kind.TEXT),
            Column(
                title="size",
            ),
            Column(
                title="of the peak",
            ),
            Column(
                title="by", kind=Kind.TEXT, help=f"{ESTIMATE_SIGN}: known by the sizes of the blocks alone"
            ),
        ),
        rows=tuple(lines),
        help=(
            "One bar per rank, each at its own peak. Press up and down to select a rank, left and right to "
            "select a tenant, and enter to explain its bytes.\nThe six tenants and untagged sum to the "
            "allocated peak."
        ),
    )


def name_tenant(name: str) -> str:
    """Return the display name of a tenant, or of memory outside the tenants."""
    return _NAMES.get(name) or tenant_name(name)


def _find_basis(rank: RankMemory, tenant: Tenant) -> str:
    size = take_tenant_bytes(rank, tenant)
    return UNKNOWN if size.number is None else ESTIMATE_SIGN * size.is_estimate


def build_total(loaded: LoadedRun, rank: RankMemory, index: int) -> tuple[Cell, ...]:
    """Build the cells of the line below the legend: the sum of the tenants, and the process total."""
    peak = read_value(loaded.report, f"{RANKS}[{index}].peak_bytes")
    cells: tuple[Cell, ...] = (
        Marked(f"sum {BOUND_SIGNS[peak.bound]}".rstrip(), Mark.TITLE),
        peak,
        f"allocated, rank {rank.rank}",
    )
    if all(getattr(rank, leaf) is None for _, leaf in OUTSIDE):
        return (*cells, Marked("· reserved, outside PyTorch: unknown (g)", Mark.MUTED))
    total_name = "reserved" if rank.non_pytorch_bytes is None else "used by the process"
    return (*cells, "·", make_used_figure(loaded, index), total_name)


def build_notes(loaded: LoadedRun, selected: Selection, subject: RankMemory) -> list[tuple[Cell, ...]]:
    """Build notes on the rank and its bars, as cells."""
    notes: list[tuple[Cell, ...]] = []
    if selected.rank is not None and subject.rank != selected.rank:
        text = f"rank {selected.rank}: {explain_missing_rank(loaded.report, selected.rank)}"
        notes.append((Marked(text, Mark.DOUBTFUL),))
    if note := describe_attribution(subject):
        notes.append((note,))
    spread = loaded.report.memory.spread
    if spread is not None and spread.difference_bytes:
        difference = read_value(loaded.report, "memory.spread.difference_bytes")
        notes.append(
            (
                f"rank {spread.largest_rank} uses",
                difference,
                f"more than rank {spread.smallest_rank}",
                *_find_largest_difference(loaded),
            )
        )
    return notes


def _find_largest_difference(loaded: LoadedRun) -> tuple[Cell, ...]:
    """Return the tenant with the largest difference between ranks and its size, or nothing."""
    spread = loaded.report.memory.spread
    if spread is None or not spread.tenant:
        return ()
    size = read_value(loaded.report, f"memory.spread.delta_bytes.{spread.tenant}", signed=True)
    return (f"· {name_tenant(spread.tenant)}", size)


_WIDTH = 72
_RECORD = "record the job including memory: zprof record -o RUN -- python ..."


def explain_missing_rank(report: Report, rank: int) -> str:
    """Explain in one line why a rank has no memory data."""
    gap = _find_gap(report, (GapKind.MEMORY,), rank) or _find_gap(
        report, (GapKind.RANK_MISSING, GapKind.RANK_CUT_SHORT), rank
    )
    return f"not measured: {gap.reason}. {gap.remedy}" if gap else f"not measured. {_RECORD}"


def explain_missing_memory(report: Report) -> list[str]:
    """Explain in a few lines why there is no memory to show."""
    gaps = [gap for gap in report.gaps if gap.kind is GapKind.MEMORY]
    reasons = dict.fromkeys((gap.reason, gap.remedy) for gap in gaps)
    lines = ["memory was not measured"]
    for reason, remedy in list(reasons or {("it was not recorded", _RECORD): None})[:3]:
        lines += ["", *textwrap.wrap(reason, _WIDTH), *textwrap.wrap(f"remedy: {remedy}", _WIDTH)]
    return lines


def build_missing_table(
    report: Report, name: str, title: str, kind: GapKind | None, reason: str, remedy: str
) -> Table:
    """Build a table that explains why it has no rows.

    ``kind``: the gap that gives reason and remedy; without such a gap the arguments are used.
    """
    gap = _find_gap(report, (kind,), None) if kind else None
    if gap:
        reason, remedy = gap.reason, gap.remedy
    texts = [*textwrap.wrap(reason, _WIDTH), *textwrap.wrap(f"remedy: {remedy}", _WIDTH)]
    lines = [
        Row(key=str(number), cells=(text,), opens=Opens.GAP, target=number)
        for number, text in enumerate(texts)
    ]
    return Table(
        name=name, title=title, columns=(Column(title="not measured", kind=Kind.TEXT),), rows=tuple(lines)
    )


def _find_gap(report: Report, kinds: Collection[GapKind], rank: int | None) -> Gap | None:
    gaps = [gap for gap in report.gaps if gap.kind in kinds]
    rank_gaps = [gap for gap in gaps if gap.rank in (None, rank)] if rank is not None else gaps
    return next(iter(rank_gaps), None)
