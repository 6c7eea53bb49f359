"""Memory beside the allocator: the whole device, its counters, the host, before the first step."""

from collections.abc import Sequence
from itertools import groupby

from zprof.model.memory import AllocatorCounters, DeviceMemory, RankMemory
from zprof.model.report import Report
from zprof.model.tenants import SHOWN
from zprof.model.units import format_bytes, format_ns
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, Column
from zprof.reports.shown.memory_names import DEVICE_TERMS, peak_text, tenant_bytes, tenant_name
from zprof.reports.shown.presenter import shown_ranks

_DEVICES = 8
_MOST = 200


def memory_device(report: Report) -> Sequence[Block]:
    """Tables without rows are left out."""
    memory = report.memory
    return (
        *_identities(memory.devices),
        *_counters(memory.counters),
        *_peaks(memory.init, "Before the first step: peak from the start of the program"),
        *_peaks(memory.host, "Host memory of ranks that have a GPU"),
    )


def _identities(devices: Sequence[DeviceMemory]) -> Sequence[Block]:
    grouped = groupby(devices, key=lambda entry: (entry.rank, entry.device))
    found = [(key, list(moments)) for key, moments in grouped]
    tables: list[Block] = []
    for (rank, device), moments in found[:_DEVICES]:
        tables += _identity(words.name(f"The whole device: rank {rank}, {device}"), moments, len(found))
    return tables


def _identity(caption: str, moments: Sequence[DeviceMemory], devices: int) -> Sequence[Block]:
    columns = (Column(title="part"), *words.numbers([words.name(m.moment, 40) for m in moments], "bytes"))
    known = [
        (term, [getattr(moment, field) for moment in moments])
        for field, term in DEVICE_TERMS
        if any(getattr(moment, field) is not None for moment in moments)
    ]
    rows = [(term, *("unknown" if v is None else format_bytes(v) for v in values)) for term, values in known]
    apart = max((moment.apart_ns or 0 for moment in moments), default=0)
    sampled = f"the device was sampled up to {format_ns(apart)} away from these moments"
    notes = (*((sampled,) if apart else ()), *words.left_out(min(_DEVICES, devices), devices, "devices"))
    return words.table(caption, columns, rows, notes)


def _counters(counters: Sequence[AllocatorCounters]) -> Sequence[Block]:
    known = [entry for entry in counters if entry.peak_allocated_bytes is not None or entry.retries]
    rows = [
        (
            words.name(f"rank {entry.rank}, {entry.device}"),
            *(
                "unknown" if size is None else format_bytes(size)
                for size in (entry.peak_allocated_bytes, entry.peak_reserved_bytes)
            ),
            *("unknown" if number is None else str(number) for number in (entry.retries, entry.ooms)),
        )
        for entry in known[:_MOST]
    ]
    columns = (
        Column(title="device"),
        *words.numbers(("peak allocated", "peak reserved"), "bytes"),
        *words.numbers(("retries", "out of memory"), "count"),
    )
    left = words.left_out(len(rows), len(known), "devices")
    return words.table("The allocator's own counters, since the process began", columns, rows, left)


def _peaks(ranks: Sequence[RankMemory], caption: str) -> Sequence[Block]:
    shown = shown_ranks(ranks, _MOST)
    columns = (
        Column(title="rank"),
        *words.numbers((*(tenant_name(tenant.value) for tenant in SHOWN), "untagged", "= peak"), "bytes"),
    )
    rows = [
        (
            str(rank.rank),
            *(tenant_bytes(rank, tenant) for tenant in SHOWN),
            format_bytes(rank.untagged_bytes),
            peak_text(rank),
        )
        for rank in shown
    ]
    left = words.left_out(len(shown), len(ranks), "ranks, those with the largest peaks")
    return words.table(caption, columns, rows, left)
