"""What a snapshot does not tell of a device's memory, as gaps."""

from collections.abc import Mapping

from zprof.analysis.memory.blocks.snapshot_device import SnapshotDevice
from zprof.model.gaps import Gap
from zprof.model.units import format_bytes, format_percent

_EARLIER = "call torch.cuda.memory._record_memory_history before the model is built"


def gaps_of(device: SnapshotDevice) -> list[Gap]:
    """All but those of the identity."""
    blocks, peak_bytes = device.history.blocks, device.peak_bytes
    gaps = [
        _gap(
            device,
            "memory outside the allocator",
            "a snapshot does not hold what NVML says of the device",
            "record the program with zprof record",
        )
    ]
    if device.peak_ns == device.history.begin_ns and bool(blocks.before[device.rows].any()):
        reason = "live memory is highest where the history begins: the true peak may be higher"
        gaps.append(_gap(device, "allocated peak", reason, _EARLIER))
    unknown = _untold(device)
    if unknown:
        told = ", ".join(f"{format_bytes(size)} {why}" for why, size in unknown.items())
        reason = f"no tag and no rule names the owner of {told}"
        gaps.append(
            _gap(
                device,
                f"tenants of {format_percent(sum(unknown.values()) / peak_bytes)} of the peak",
                reason,
                f"{_EARLIER}, or tag memory: torch.cuda.memory._set_memory_metadata('zprof:activations')",
            )
        )
    return gaps


def _untold(device: SnapshotDevice) -> Mapping[str, int]:
    """Bytes of the peak without an owner, by why."""
    blocks, names = device.history.blocks, device.names
    rows = device.rows[names.rule[device.rows] == -1]
    before = blocks.before[rows]
    sizes = {
        "from before the history": int(blocks.requested_bytes[rows[before]].sum()),
        "made within it": int(blocks.requested_bytes[rows[~before]].sum()),
    }
    return {why: size for why, size in sizes.items() if size}


def unshown(own: SnapshotDevice, other: SnapshotDevice) -> Gap:
    """A device that the report leaves out."""
    reason = (
        f"the snapshot has several devices; the report shows the fullest, {own.history.device}; the peak of "
        f"{other.history.device} is {format_bytes(other.peak_bytes)}"
    )
    return Gap(
        what=f"memory of {other.history.device}",
        rank=own.rank,
        reason=reason,
        remedy="read the tables with zprof.load",
    )


def _gap(device: SnapshotDevice, what: str, reason: str, remedy: str) -> Gap:
    return Gap(what=what, rank=device.rank, reason=f"{device.history.device}: {reason}", remedy=remedy)
