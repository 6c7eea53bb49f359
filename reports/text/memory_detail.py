"""The memory pages that need room: by kind, phase and module, the largest allocations, laws and ranks.

They are printed where the report has no time side: ``--only memory``, and an imported snapshot.
"""

from collections.abc import Sequence

from zprof.model.memory import Allocation, LawCheck, Memory, RankMemory, RankSpread
from zprof.model.printable import printable, shorten
from zprof.model.tenants import SHOWN
from zprof.model.units import format_bytes, format_percent
from zprof.reports.shown.memory_names import BY_RULE, signed_bytes, sized, tenant_name
from zprof.reports.shown.memory_presenter import largest_rank, of_largest_rank, shares, telling_frames
from zprof.reports.text.layout import bar, heading, table, wrap

_PARTS = 12
_MODULES = 10
_LARGEST = 8
_FRAMES = 4
_LAWS = 12
_PHASES = 5
_COLUMN = 10
_BAR = 12


def memory_details(memory: Memory) -> list[str]:
    """All that is known beyond the table of tenants; pages without rows are left out."""
    rank = largest_rank(memory.per_rank)
    if rank is None:
        return []
    return [
        *_kinds(rank),
        *_phases(memory, rank),
        *_modules(memory, rank),
        *_largest(of_largest_rank(memory.top, memory), rank.peak_bytes),
        *_laws(memory.laws),
        *_spread(memory.spread),
    ]


def _kinds(rank: RankMemory) -> list[str]:
    parts = sorted(rank.parts, key=lambda part: -part.bytes)[:_PARTS]
    if not parts:
        return []
    rows = [["kind", "size", "share", ""]]
    for part, share in zip(parts, shares(parts, rank.peak_bytes), strict=True):
        name = ": ".join(name for name in (tenant_name(part.tenant), part.sub) if name)
        rows.append([printable(name), sized(part), format_percent(share), bar(share, _BAR)])
    return ["", heading("WHAT IT IS", f"rank {rank.rank} at its peak"), *table(rows)]


def _phases(memory: Memory, rank: RankMemory) -> list[str]:
    phases = [phase for phase in memory.phases if phase.rank == rank.rank]
    if not phases:
        return []
    phases = phases[:_PHASES]
    rows = [["", *[shorten(printable(phase.phase), _COLUMN) for phase in phases]]]
    rows += [
        [tenant_name(tenant.value), *[format_bytes(phase.tenants.get(tenant, 0)) for phase in phases]]
        for tenant in SHOWN
    ]
    rows.append(["untagged", *[format_bytes(phase.untagged_bytes) for phase in phases]])
    rows.append(["= peak", *[format_bytes(phase.peak_bytes) for phase in phases]])
    rows.append(["in step", *[str(phase.step) for phase in phases]])
    return ["", heading("PEAK BY PHASE", f"highest live bytes, rank {rank.rank}"), *table(rows)]


def _modules(memory: Memory, rank: RankMemory) -> list[str]:
    modules = [module for module in memory.modules if module.rank == rank.rank]
    modules = sorted(modules, key=lambda module: -module.at_rank_peak_bytes)[:_MODULES]
    if not modules:
        return []
    rows = [["module, with all inside of it", "at the peak", "most at one time"]]
    rows += [
        [
            printable(module.module or "(the whole model)"),
            format_bytes(module.at_rank_peak_bytes),
            format_bytes(module.peak_bytes),
        ]
        for module in modules
    ]
    return ["", heading("WHO ALLOCATED IT", f"rank {rank.rank}"), *table(rows)]


def _largest(top: Sequence[Allocation], peak_bytes: int) -> list[str]:
    """What is live at the peak, by where it was made; equal ones in one line, with their count and share."""
    if not top:
        return []
    lines = ["", heading("LARGEST LIVE AT THE PEAK", f"rank {top[0].rank}")]
    for entry in top[:_LARGEST]:
        mark = BY_RULE if entry.basis == "rule" else ""
        name = ": ".join(part for part in (tenant_name(entry.tenant), entry.sub) if part)
        row = [printable(f"{mark}{name}  {entry.module}".rstrip()), format_bytes(entry.bytes)]
        if entry.total_bytes is not None and entry.count > 1:
            share = format_percent(entry.total_bytes / max(1, peak_bytes))
            largest = f"{entry.count} of at most {format_bytes(entry.bytes)}"
            row = [row[0], format_bytes(entry.total_bytes), share, largest]
        rows = [row]
        lines += table(rows)
        if entry.operator:
            lines += wrap(printable(entry.operator), first="      ")
        shown = telling_frames(entry.stack, _FRAMES)
        for frame in shown:
            lines += wrap(printable(frame), first="      ")
        if len(entry.stack) > len(shown):
            lines.append(f"      of {len(entry.stack)} frames: -f json")
        if not entry.stack and not entry.operator:
            lines.append("      no stack: made before it was watched, or outside of Python")
    return lines


def _laws(laws: Sequence[LawCheck]) -> list[str]:
    if not laws:
        return []
    rows = [["state", "rank", "law", "measured", "padding", "counters", "difference"]]
    lines = ["", heading("STATES AGAINST THE LAW OF THE STAGE", "bytes of a rank")]
    for law in laws[:_LAWS]:
        sizes = (law.law_bytes, law.measured_bytes, law.padding_bytes, law.scalar_bytes)
        rest = signed_bytes(law.unexplained_bytes) if law.unexplained_bytes else "0 B"
        rows.append([tenant_name(law.tenant), str(law.rank), *[format_bytes(size) for size in sizes], rest])
    lines += table(rows)
    said = dict.fromkeys((tenant_name(law.tenant), law.cause) for law in laws if law.cause)
    for tenant, cause in said:
        lines += wrap(printable(f"{tenant}: {cause}"))
    if len(laws) > _LAWS:
        lines += wrap(f"{_LAWS} of {len(laws)} rows; all of them: -f json")
    return lines


def _spread(spread: RankSpread | None) -> list[str]:
    if spread is None:
        return []
    lines = ["", heading("DIFFERENCE BETWEEN RANKS", "largest peak minus smallest")]
    if not spread.difference_bytes:
        return [*lines, "  none: all ranks have the same peak"]
    lines += wrap(
        f"rank {spread.largest_rank} holds {format_bytes(spread.difference_bytes)} more than rank "
        f"{spread.smallest_rank}, most of it {tenant_name(printable(spread.tenant))}"
    )
    changed = [(name, delta) for name, delta in spread.delta_bytes.items() if delta]
    rows = [[tenant_name(printable(name)), signed_bytes(delta)] for name, delta in changed]
    return lines + (table(rows) if rows else [])
