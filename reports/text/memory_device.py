"""The memory pages beside the allocator: the whole device, the host, and the time before the first step."""

from collections.abc import Sequence
from itertools import groupby

from zprof.model.memory import AllocatorCounters, DeviceMemory, Memory, RankMemory
from zprof.model.printable import printable, shorten
from zprof.model.tenants import SHOWN
from zprof.model.units import format_bytes, format_ns
from zprof.reports.shown.memory_names import DEVICE_TERMS, peak_text, tenant_bytes, tenant_name
from zprof.reports.shown.presenter import shown_ranks
from zprof.reports.text.layout import heading, table, wrap

_RANKS = 4
_COLUMN = 16


def memory_devices(memory: Memory) -> list[str]:
    """Pages without rows are left out."""
    return [
        *_identity(memory.devices),
        *_counters(memory.counters),
        *_peaks(memory.init, "BEFORE THE FIRST STEP", "peak from the start of the program"),
        *_peaks(memory.host, "HOST MEMORY", "of ranks that have a GPU"),
    ]


def _identity(devices: Sequence[DeviceMemory]) -> list[str]:
    lines: list[str] = []
    for (rank, device), entries in groupby(devices, key=lambda entry: (entry.rank, entry.device)):
        if len(lines) > _RANKS * len(DEVICE_TERMS):
            lines += wrap("the other ranks: -f json")
            break
        moments = list(entries)
        rows = [["", *[shorten(printable(moment.moment), _COLUMN) for moment in moments]]]
        for field, name in DEVICE_TERMS:
            values = [getattr(moment, field) for moment in moments]
            if any(value is not None for value in values):
                rows.append([name, *["unknown" if v is None else format_bytes(v) for v in values]])
        lines += ["", heading("THE WHOLE DEVICE", printable(f"rank {rank}, {device}")), *table(rows)]
        apart = max((moment.apart_ns or 0 for moment in moments), default=0)
        if apart:
            lines += wrap(f"the device was sampled up to {format_ns(apart)} away from these moments")
    return lines


def _counters(counters: Sequence[AllocatorCounters]) -> list[str]:
    known = [entry for entry in counters if entry.peak_allocated_bytes is not None or entry.retries]
    if not known:
        return []
    rows = [["", "peak allocated", "peak reserved", "retries", "out of memory"]]
    for entry in known[:_RANKS]:
        sizes = (entry.peak_allocated_bytes, entry.peak_reserved_bytes)
        counts = (entry.retries, entry.ooms)
        rows.append(
            [
                printable(f"rank {entry.rank}, {entry.device}"),
                *["unknown" if size is None else format_bytes(size) for size in sizes],
                *["unknown" if count is None else str(count) for count in counts],
            ]
        )
    return ["", heading("THE ALLOCATOR'S OWN COUNTERS", "since the process began"), *table(rows)]


def _peaks(ranks: Sequence[RankMemory], title: str, note: str) -> list[str]:
    shown = shown_ranks(ranks, _RANKS)
    if not shown:
        return []
    rows = [["", *[f"rank {rank.rank}" for rank in shown]]]
    rows += [[tenant_name(tenant.value), *[tenant_bytes(rank, tenant) for rank in shown]] for tenant in SHOWN]
    rows.append(["untagged", *[format_bytes(rank.untagged_bytes) for rank in shown]])
    rows.append(["= peak", *[peak_text(rank) for rank in shown]])
    return ["", heading(title, note), *table(rows)]
