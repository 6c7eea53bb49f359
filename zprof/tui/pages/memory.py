"""The bars of the memory screen: each rank at its own peak, one part a tenant, and the legend with bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from zprof.model.memory import Memory, RankMemory
from zprof.model.report import Report
from zprof.model.tenants import SHOWN, Tenant
from zprof.reports.shown.memory_names import (
    BY_RULE,
    UNKNOWN,
    basis_note,
    peak_mark,
    tenant_bytes,
    tenant_name,
)
from zprof.reports.shown.memory_presenter import largest_rank
from zprof.tui.figures import Figure, How, Unit, figure
from zprof.tui.pages.memory_missing import said_of_rank
from zprof.tui.session import Loaded, Selected
from zprof.tui.tables import Cell, Column, Line, Mark, Table, Word
from zprof.tui.theme.palette import NON_PYTORCH, RESERVED_UNUSED, UNTAGGED

RANKS = "memory.per_rank"
#: Bars that a page holds at most; a terminal shows as many of them as it has room for.
MOST_BARS = 32
#: Of the device's memory: with less allocated the bars would be too short to read beside it.
_WORTH_A_DEVICE = 0.1
_OUTSIDE = ((RESERVED_UNUSED, "reserved_unused_bytes"), (NON_PYTORCH, "non_pytorch_bytes"))
_NAMES = {UNTAGGED: "untagged", RESERVED_UNUSED: "reserved, unused", NON_PYTORCH: "outside PyTorch"}


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

    ``order``: all measured ranks, as up and down go through them.  ``total``: the line under the legend.
    """

    bars: tuple[RankBar, ...]
    order: tuple[int, ...]
    subject: int
    whole: Figure
    whole_is: str
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
        legend=legend_table(loaded, subject, place),
        total=_total(loaded, subject, place),
        notes=tuple(_notes(loaded, selected, subject)),
    )


def telling(ranks: Sequence[RankMemory], subject: int) -> list[int]:
    """Places of the ranks: the subject, the largest peak, the smallest, then by size."""
    by_size = sorted(range(len(ranks)), key=lambda place: (-ranks[place].peak_bytes, ranks[place].rank))
    return list(dict.fromkeys([subject, *by_size[:1], *by_size[-1:], *by_size]))


def _bar(loaded: Loaded, place: int, is_subject: bool) -> RankBar:
    rank = loaded.report.memory.per_rank[place]
    outside = [(name, getattr(rank, leaf) or 0) for name, leaf in _OUTSIDE]
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
    return _used_figure(loaded, largest), "the largest"


def _used(rank: RankMemory) -> int:
    return rank.peak_bytes + (rank.reserved_unused_bytes or 0) + (rank.non_pytorch_bytes or 0)


def _used_figure(loaded: Loaded, place: int) -> Figure:
    stem, rank = f"{RANKS}[{place}]", loaded.report.memory.per_rank[place]
    known = [f"{stem}.{leaf}" for _, leaf in _OUTSIDE if getattr(rank, leaf) is not None]
    if not known:
        return figure(loaded.tree, Unit.BYTES, f"{stem}.peak_bytes")
    return figure(loaded.tree, Unit.BYTES, f"{stem}.peak_bytes", *known, how=How.SUM)


def legend_table(loaded: Loaded, rank: RankMemory, place: int) -> Table:
    """Tenants of one rank with their bytes; the key of a line is the name of its paint."""
    stem, peak = f"{RANKS}[{place}]", f"{RANKS}[{place}].peak_bytes"
    leaves = [(tenant.value, f"{stem}.tenants.{tenant.value}", _rests_on(rank, tenant)) for tenant in SHOWN]
    leaves.append((UNTAGGED, f"{stem}.untagged_bytes", ""))
    lines = [
        Line(
            key=name,
            cells=(
                Word(label(name)),
                Word("unknown") if basis == UNKNOWN else figure(loaded.tree, Unit.BYTES, leaf),
                figure(loaded.tree, Unit.RATIO, leaf, peak, how=How.SHARE),
                Word(basis),
            ),
        )
        for name, leaf, basis in leaves
    ]
    lines += [
        Line(key=name, cells=(Word(label(name)), number, Word(""), Word("")))
        for name, leaf in _OUTSIDE
        if (number := figure(loaded.tree, Unit.BYTES, f"{stem}.{leaf}")).value is not None
    ]
    return Table(
        name="tenants",
        title=f"tenants of rank {rank.rank} at its peak",
        columns=(
            Column(title="tenant"),
            Column(title="size", numeric=True),
            Column(title="of the peak", numeric=True),
            Column(title="by", says=f"{BY_RULE}: told by a rule on stacks, not by what hooks or tags saw"),
        ),
        lines=tuple(lines),
        help=(
            "One bar a rank, each at its own peak. up and down: another rank; left and right: another tenant "
            "of it; enter: what its bytes are.\nThe six tenants and untagged sum to the allocated peak."
        ),
    )


def label(name: str) -> str:
    """A tenant's name, or that of what is none."""
    return _NAMES.get(name) or tenant_name(name)


def _rests_on(rank: RankMemory, tenant: Tenant) -> str:
    text = tenant_bytes(rank, tenant)
    return UNKNOWN if text == UNKNOWN else BY_RULE if text.startswith(BY_RULE) else ""


def _total(loaded: Loaded, rank: RankMemory, place: int) -> tuple[Cell, ...]:
    peak = figure(loaded.tree, Unit.BYTES, f"{RANKS}[{place}].peak_bytes")
    cells: tuple[Cell, ...] = (
        Word(f"sum {peak_mark(rank)}".rstrip(), Mark.TITLE),
        peak,
        Word(f"allocated, rank {rank.rank}"),
    )
    if all(getattr(rank, leaf) is None for _, leaf in _OUTSIDE):
        return (*cells, Word("· reserved, outside PyTorch: unknown (g)", Mark.MUTED))
    with_them = "reserved" if rank.non_pytorch_bytes is None else "used by the process"
    return (*cells, Word("·"), _used_figure(loaded, place), Word(with_them))


def _notes(loaded: Loaded, selected: Selected, subject: RankMemory) -> list[tuple[Cell, ...]]:
    notes: list[tuple[Cell, ...]] = []
    if selected.rank is not None and subject.rank != selected.rank:
        said = f"rank {selected.rank}: {said_of_rank(loaded.report, selected.rank)}"
        notes.append((Word(said, Mark.DOUBTFUL),))
    if note := basis_note(subject):
        notes.append((Word(note),))
    spread = loaded.report.memory.spread
    if spread is not None and spread.difference_bytes:
        more = figure(loaded.tree, Unit.BYTES, "memory.spread.difference_bytes")
        than = f"more than rank {spread.smallest_rank}"
        notes.append((Word(f"rank {spread.largest_rank} holds"), more, Word(than), *_most_of_it(loaded)))
    return notes


def _most_of_it(loaded: Loaded) -> tuple[Cell, ...]:
    """The tenant that differs most, and by how much; nothing where none has more."""
    spread = loaded.report.memory.spread
    if spread is None or not spread.tenant:
        return ()
    size = figure(loaded.tree, Unit.BYTES, f"memory.spread.delta_bytes.{spread.tenant}", signed=True)
    return (Word(f"· {label(spread.tenant)}"), size)
