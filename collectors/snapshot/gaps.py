"""Make gaps for missing and contradictory parts of a snapshot."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice

import numpy as np

from zprof.collectors.pickle_sandbox import format_name
from zprof.collectors.snapshot.device import DeviceTables
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap, GapKind

_NS_PER_S = 1_000_000_000
_MAX_BACKSTEP_NS = 1_000_000
_RECORD_EARLIER = (
    "call torch.cuda.memory._record_memory_history before the model is built, with a larger max_entries"
)
_DUMP_AGAIN = "dump the snapshot again, with a current torch"


def list_snapshot_gaps(devices: Sequence[DeviceTables]) -> Iterator[Gap]:
    """Yield all gaps, device by device."""
    for device in devices:
        yield from _iter_history_gaps(device)
        unknown = device.trace.unknown
        if unknown:
            names = ", ".join(repr(format_name(name)) for name in islice(unknown, 3))
            count = sum(unknown.values())
            reason = (
                f"{device.name}: {count} entries are of kinds that this version does not support ({names})"
            )
            yield Gap(
                kind=GapKind.ALLOCATOR_HISTORY,
                what="allocator history",
                reason=reason,
                remedy="upgrade zprof",
            )
        yield from _iter_contradiction_gaps(device)
        yield from _iter_clock_gaps(device)
        yield from _iter_skipped_entry_gaps(device)
        yield from _iter_size_gaps(device)


def _iter_history_gaps(device: DeviceTables) -> Iterator[Gap]:
    if not len(device.trace.rows):
        reason = (
            f"{device.name}: the snapshot has no trace for this device, only its memory at the time of the "
            "snapshot"
        )
        yield Gap(
            kind=GapKind.BEFORE_HISTORY, what="allocator history", reason=reason, remedy=_RECORD_EARLIER
        )
        return
    before = np.asarray(device.block["before_history"])
    if before.any():
        bytes_before = int(np.asarray(device.block["requested_bytes"])[before].sum())
        start_text = _format_time(device.begin_ns) if device.trace.has_times else "its first entry"
        yield Gap(
            kind=GapKind.BEFORE_HISTORY,
            what="allocator history",
            reason=f"{device.name}: the history starts at {start_text}; any earlier peak and the origin of "
            f"{int(before.sum()):,} blocks ({format_bytes(bytes_before)}) are unknown",
            remedy=_RECORD_EARLIER,
        )


def _format_time(time_ns: int) -> str:
    seconds, remainder_ns = divmod(time_ns + 1, _NS_PER_S)
    try:
        day = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ns} ns"
    return f"{day}.{remainder_ns // 1000:06d} UTC"


def _iter_contradiction_gaps(device: DeviceTables) -> Iterator[Gap]:
    lifetimes, counts = device.lifetimes, []
    if lifetimes.overlaps:
        counts.append(f"{lifetimes.overlaps} blocks allocated at an address in use")
    if lifetimes.missing_in_segments and len(device.final_segments.address):
        counts.append(f"{lifetimes.missing_in_segments} blocks in use that are missing in the segments")
    if lifetimes.resized:
        counts.append(f"{lifetimes.resized} blocks with a different size in the segments")
    if device.inconsistent_segments and len(device.final_segments.address):
        counts.append(f"{device.inconsistent_segments} entries that contradict the segments")
    if counts:
        reason = f"{device.name}: the trace and the segments disagree: {'; '.join(counts)}"
        yield Gap(
            kind=GapKind.ALLOCATOR_HISTORY,
            what="allocator history disagrees",
            reason=reason,
            remedy=_DUMP_AGAIN,
        )
    if not len(device.final_segments.address) and len(device.trace.rows):
        reason = (
            f"{device.name}: the snapshot has no segments, so its trace could not be checked against them"
        )
        yield Gap(kind=GapKind.ALLOCATOR_HISTORY, what="allocator state", reason=reason, remedy=_DUMP_AGAIN)


def _iter_clock_gaps(device: DeviceTables) -> Iterator[Gap]:
    if not device.trace.has_times:
        reason = f"{device.name}: some entries have no time; their order is used instead"
        yield Gap(
            kind=GapKind.ALLOCATOR_HISTORY,
            what="times of the allocator history",
            reason=reason,
            remedy=_DUMP_AGAIN,
        )
    if device.trace.max_backstep_ns > _MAX_BACKSTEP_NS:
        reason = (
            f"{device.name}: the clock of the trace jumps back by up to {device.trace.max_backstep_ns} ns"
        )
        yield Gap(
            kind=GapKind.ALLOCATOR_HISTORY,
            what="times of the allocator history",
            reason=reason,
            remedy=_DUMP_AGAIN,
        )


def _iter_skipped_entry_gaps(device: DeviceTables) -> Iterator[Gap]:
    missing_kinds = {
        "free_requested": ("so the time of free_completed is used", device.lifetimes.has_no_requests),
        "free_completed": (
            "so the time of free_requested is used",
            device.lifetimes.has_no_completions,
        ),
    }
    for name, (meaning, is_missing) in missing_kinds.items():
        if is_missing:
            reason = f"{device.name}: the trace has no {name} entries, {meaning}"
            yield Gap(
                kind=GapKind.ALLOCATOR_HISTORY,
                what="blocks awaiting free",
                reason=reason,
                remedy="record without skip_actions",
            )


def _iter_size_gaps(device: DeviceTables) -> Iterator[Gap]:
    if device.size_mismatches:
        reason = (
            f"{device.name}: {device.size_mismatches} blocks in use differ in size from torch's rounding "
            "rule; the sizes of freed blocks within their segments are estimates"
        )
        yield Gap(
            kind=GapKind.ALLOCATOR_HISTORY,
            what="sizes of freed blocks",
            reason=reason,
            remedy="compare the peak with the allocator's counters",
        )
