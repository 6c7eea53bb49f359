"""Make gaps for what a snapshot does not contain, or contradicts."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice

import numpy as np

from zprof.collectors.snapshot.columns import format_name
from zprof.collectors.snapshot.device import DeviceTables
from zprof.model.gaps import Gap, GapKind

_NS_PER_S = 1_000_000_000
_MAX_BACKWARDS_NS = 1_000_000
_EARLIER = (
    "call torch.cuda.memory._record_memory_history before the model is built, with a larger max_entries"
)
_AGAIN = "dump the snapshot again, with a current torch"


def list_snapshot_gaps(devices: Sequence[DeviceTables]) -> Iterator[Gap]:
    """Yield all gaps, device by device."""
    for device in devices:
        yield from _iter_history_gaps(device)
        yield from _iter_unknown_entry_gaps(device)
        yield from _iter_contradiction_gaps(device)
        yield from _iter_clock_gaps(device)
        yield from _iter_skipped_entry_gaps(device)
        yield from _iter_size_gaps(device)


def _iter_history_gaps(device: DeviceTables) -> Iterator[Gap]:
    if not len(device.trace.rows):
        reason = f"{device.name}: the snapshot has no trace of it, only what was held when it was taken"
        yield Gap(kind=GapKind.BEFORE_HISTORY, what="allocator history", reason=reason, remedy=_EARLIER)
        return
    before = np.asarray(device.block["before_history"])
    if before.any():
        there = int(np.asarray(device.block["requested_bytes"])[before].sum())
        when = _format_time(device.begin_ns) if device.trace.timed else "its first entry"
        yield Gap(
            kind=GapKind.BEFORE_HISTORY,
            what="allocator history",
            reason=f"{device.name}: it begins at {when}; blocks that were there already: "
            f"{int(before.sum())} ({there} bytes); where they came from, and any peak before, is not in it",
            remedy=_EARLIER,
        )


def _format_time(time_ns: int) -> str:
    seconds, rest = divmod(time_ns + 1, _NS_PER_S)
    try:
        day = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ns} ns"
    return f"{day}.{rest // 1000:06d} UTC"


def _iter_unknown_entry_gaps(device: DeviceTables) -> Iterator[Gap]:
    unknown = device.trace.unknown
    if unknown:
        names = ", ".join(repr(format_name(name)) for name in islice(unknown, 3))
        count = sum(unknown.values())
        reason = f"{device.name}: entries of kinds that this version does not know: {count} ({names})"
        yield Gap(
            kind=GapKind.ALLOCATOR_HISTORY, what="allocator history", reason=reason, remedy="upgrade zprof"
        )


def _iter_contradiction_gaps(device: DeviceTables) -> Iterator[Gap]:
    lives, counts = device.lives, []
    if lives.overlaps:
        counts.append(f"blocks allocated where one was still in use: {lives.overlaps}")
    if lives.not_held and len(device.held.address):
        counts.append(f"blocks in use that the segments do not have: {lives.not_held}")
    if lives.resized:
        counts.append(f"blocks of another size than in the segments: {lives.resized}")
    if device.odd_segments and len(device.held.address):
        counts.append(f"entries about segments that do not fit them: {device.odd_segments}")
    if counts:
        reason = f"{device.name}: the trace and the segments disagree: {'; '.join(counts)}"
        yield Gap(
            kind=GapKind.ALLOCATOR_HISTORY, what="allocator history disagrees", reason=reason, remedy=_AGAIN
        )
    if not len(device.held.address) and len(device.trace.rows):
        reason = (
            f"{device.name}: the snapshot has no segments, so its trace could not be checked against them"
        )
        yield Gap(kind=GapKind.ALLOCATOR_HISTORY, what="allocator state", reason=reason, remedy=_AGAIN)


def _iter_clock_gaps(device: DeviceTables) -> Iterator[Gap]:
    if not device.trace.timed:
        reason = f"{device.name}: entries without a time; their order stands in for it"
        yield Gap(
            kind=GapKind.ALLOCATOR_HISTORY,
            what="times of the allocator history",
            reason=reason,
            remedy=_AGAIN,
        )
    if device.trace.backwards_ns > _MAX_BACKWARDS_NS:
        reason = f"{device.name}: the clock of the trace runs back by {device.trace.backwards_ns} ns"
        yield Gap(
            kind=GapKind.ALLOCATOR_HISTORY,
            what="times of the allocator history",
            reason=reason,
            remedy=_AGAIN,
        )


def _iter_skipped_entry_gaps(device: DeviceTables) -> Iterator[Gap]:
    lost = {
        "free_requested": ("given back: taken as when it was free again", device.lives.requests_lost),
        "free_completed": ("free again: taken as when it was given back", device.lives.completions_lost),
    }
    for name, (means, is_lost) in lost.items():
        if is_lost:
            reason = f"{device.name}: the trace has no {name} entries, which say when a block was {means}"
            yield Gap(
                kind=GapKind.ALLOCATOR_HISTORY,
                what="blocks awaiting free",
                reason=reason,
                remedy="leave skip_actions out",
            )


def _iter_size_gaps(device: DeviceTables) -> Iterator[Gap]:
    if device.other_sizes:
        reason = (
            f"{device.name}: blocks in use of another size than torch's rule gives: {device.other_sizes}; "
            "so what freed blocks took of their segments is an estimate"
        )
        yield Gap(
            kind=GapKind.ALLOCATOR_HISTORY,
            what="sizes of freed blocks",
            reason=reason,
            remedy="compare the peak with the allocator's own",
        )
