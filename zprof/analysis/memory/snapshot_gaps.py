"""State what is missing in a snapshot, except for the terms of reserved memory."""

from zprof.analysis.memory.snapshot_device import SnapshotDevice
from zprof.analysis.memory.tables import UNTAGGED
from zprof.model.formatting import format_bytes, format_percent
from zprof.model.gaps import Gap, GapKind

#: Smaller shares of the peak without an owner round to 0.0 %: nothing worth a remedy is missing.
_MIN_UNOWNED_RATIO = 0.0005
_RECORD_EARLIER = "call torch.cuda.memory._record_memory_history before the model is built"


def list_snapshot_gaps(device: SnapshotDevice) -> list[Gap]:
    """Return all gaps, except those of the terms of reserved memory."""
    blocks, peak_bytes = device.history.blocks, device.peak_bytes
    gaps = [
        _make_device_gap(
            device,
            "memory outside the allocator",
            "a snapshot does not include NVML samples",
            "record the program with zprof record",
        )
    ]
    if device.peak_ns == device.history.begin_ns and bool(blocks.before[device.rows].any()):
        reason = "live memory is highest at the start of the history: the actual peak may be higher"
        gaps.append(_make_device_gap(device, "allocated peak", reason, _RECORD_EARLIER))
    unowned = device.rows[device.names.tenant[device.rows] == UNTAGGED]
    is_before, sizes = blocks.before[unowned], blocks.requested_bytes[unowned]
    unowned_bytes = int(sizes.sum())
    if unowned_bytes >= _MIN_UNOWNED_RATIO * max(1, peak_bytes):
        parts = ((int(sizes[is_before].sum()), "before"), (int(sizes[~is_before].sum()), "during"))
        sizes_by_time = (f"{format_bytes(size)} allocated {when} the history" for size, when in parts if size)
        reason = f"no tag or rule identifies the owner of {', '.join(sizes_by_time)}"
        gaps.append(
            _make_device_gap(
                device,
                f"tenants of {format_percent(unowned_bytes / peak_bytes)} of the peak",
                reason,
                f"{_RECORD_EARLIER}, or tag memory: "
                "torch.cuda.memory._set_memory_metadata('zprof:activations')",
            )
        )
    return gaps


def make_hidden_device_gap(own: SnapshotDevice, other: SnapshotDevice) -> Gap:
    """Report a device that the report leaves out."""
    reason = (
        f"the snapshot has several devices; the report shows the one with the largest peak, "
        f"{own.history.device}; the peak of {other.history.device} is {format_bytes(other.peak_bytes)}"
    )
    return Gap(
        kind=GapKind.DEVICE_MEMORY,
        what=f"memory of {other.history.device}",
        rank=own.rank,
        reason=reason,
        remedy="read the tables with zprof.load",
    )


def _make_device_gap(device: SnapshotDevice, what: str, reason: str, remedy: str) -> Gap:
    return Gap(
        kind=GapKind.DEVICE_MEMORY,
        what=what,
        rank=device.rank,
        reason=f"{device.history.device}: {reason}",
        remedy=remedy,
    )
