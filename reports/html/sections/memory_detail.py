"""Memory of the largest rank by kind, phase and module, its largest allocations; states by law; ranks."""

from collections.abc import Sequence

from zprof.model.memory import Allocation, LawCheck, Memory, RankMemory, RankSpread
from zprof.model.report import Report
from zprof.model.tenants import SHOWN
from zprof.model.units import format_bytes, format_percent
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, Column, Notes
from zprof.reports.shown.memory_names import signed_bytes, sized, tenant_name
from zprof.reports.shown.memory_presenter import largest_rank, shares, telling_frames

_MOST = 200
_PHASES = 8
_FRAMES = 6


def memory_detail(report: Report) -> Sequence[Block]:
    """Tables without rows are left out."""
    memory = report.memory
    rank = largest_rank(memory.per_rank)
    if rank is None:
        return ()
    return (
        *_kinds(rank),
        *_phases(memory, rank),
        *_modules(memory, rank),
        *_largest(memory.top),
        *_laws(memory.laws),
        *_spread(memory.spread),
    )


def _bytes(*titles: str) -> tuple[Column, ...]:
    return words.numbers(titles, "bytes")


def _kinds(rank: RankMemory) -> Sequence[Block]:
    parts = sorted(rank.parts, key=lambda part: -part.bytes)[:_MOST]
    rows = [
        (
            words.name(": ".join(name for name in (tenant_name(part.tenant), part.sub) if name)),
            sized(part),
            format_percent(share),
        )
        for part, share in zip(parts, shares(parts, rank.peak_bytes), strict=True)
    ]
    columns = (Column(title="kind"), *_bytes("size"), *words.numbers(("of the peak",), "%"))
    return words.table(f"What it is: rank {rank.rank} at its peak", columns, rows)


def _phases(memory: Memory, rank: RankMemory) -> Sequence[Block]:
    phases = [phase for phase in memory.phases if phase.rank == rank.rank][:_PHASES]
    columns = (
        Column(title="phase"),
        Column(title="in step", numeric=True),
        *_bytes(*(tenant_name(tenant.value) for tenant in SHOWN), "untagged", "= peak"),
    )
    rows = [
        (
            words.name(phase.phase, 40),
            str(phase.step),
            *(format_bytes(phase.tenants.get(tenant, 0)) for tenant in SHOWN),
            format_bytes(phase.untagged_bytes),
            format_bytes(phase.peak_bytes),
        )
        for phase in phases
    ]
    return words.table(f"Peak by phase: rank {rank.rank}", columns, rows)


def _modules(memory: Memory, rank: RankMemory) -> Sequence[Block]:
    found = [module for module in memory.modules if module.rank == rank.rank]
    shown = sorted(found, key=lambda module: -module.at_rank_peak_bytes)[:_MOST]
    rows = [
        (
            words.name(module.module or "(the whole model)"),
            format_bytes(module.at_rank_peak_bytes),
            format_bytes(module.peak_bytes),
        )
        for module in shown
    ]
    columns = (Column(title="module, with all inside of it"), *_bytes("at the peak", "most at one time"))
    return words.table(
        f"Who allocated it: rank {rank.rank}", columns, rows, words.left_out(len(rows), len(found), "modules")
    )


def _largest(top: Sequence[Allocation]) -> Sequence[Block]:
    shown = top[:_MOST]
    columns = (
        Column(title="tenant"),
        Column(title="module"),
        Column(title="rank", numeric=True),
        *_bytes("size"),
        Column(title="where"),
    )
    return words.table(
        "Largest live at the peak of their rank",
        columns,
        [_allocation(entry) for entry in shown],
        words.left_out(len(shown), len(top), "allocations"),
    )


def _allocation(entry: Allocation) -> tuple[str, ...]:
    frames = telling_frames(entry.stack, _FRAMES)
    more = (f"of {len(entry.stack)} frames",) if len(entry.stack) > len(frames) else ()
    where = " ← ".join(part for part in (entry.operator, *frames, *more) if part)
    return (
        words.name(": ".join(part for part in (tenant_name(entry.tenant), entry.sub) if part)),
        words.name(entry.module) or words.NOTHING,
        str(entry.rank),
        sized(entry),
        words.sentence(where) or "no stack: made before it was watched, or outside of Python",
    )


def _laws(laws: Sequence[LawCheck]) -> Sequence[Block]:
    """The states that are furthest from their law first."""
    shown = sorted(laws, key=lambda law: -abs(law.unexplained_bytes))[:_MOST]
    columns = (
        Column(title="state"),
        Column(title="rank", numeric=True),
        *_bytes("law", "measured", "padding", "counters", "difference"),
    )
    said = dict.fromkeys(
        words.sentence(f"{tenant_name(law.tenant)}: {law.cause}") for law in shown if law.cause
    )
    notes = (*list(said)[:_MOST], *words.left_out(len(shown), len(laws), "rows, the largest differences"))
    return words.table("States against the law of the stage", columns, [_law(law) for law in shown], notes)


def _law(law: LawCheck) -> tuple[str, ...]:
    sizes = (law.law_bytes, law.measured_bytes, law.padding_bytes, law.scalar_bytes)
    rest = signed_bytes(law.unexplained_bytes)
    return (tenant_name(law.tenant), str(law.rank), *(format_bytes(size) for size in sizes), rest)


def _spread(spread: RankSpread | None) -> Sequence[Block]:
    if spread is None:
        return ()
    if not spread.difference_bytes:
        return (Notes(lines=("all ranks have the same peak",)),)
    lead = words.sentence(
        f"rank {spread.largest_rank} holds {format_bytes(spread.difference_bytes)} more than rank "
        f"{spread.smallest_rank}, most of it {tenant_name(spread.tenant)}"
    )
    rows = [
        (words.name(tenant_name(name)), signed_bytes(delta))
        for name, delta in spread.delta_bytes.items()
        if delta
    ]
    columns = (Column(title="tenant"), *_bytes("difference"))
    return words.table("Largest peak of a rank minus smallest", columns, rows, (lead,))
