"""ZP202 fragmentation: memory that the allocator holds and cannot use.

At the reserved peak, which is what an out-of-memory error is about:

    free parts of segments in use (split)  +  freed blocks that a stream still uses (awaiting free)

against what is reserved. Segments that are wholly free do not count: the allocator returns them before it
fails. Reported from 10 % of the reserved memory on: support cases with that signature were fixed by
expandable segments, by not recording streams, or by even sizes.
"""

from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_percent
from zprof.model.gaps import Gap
from zprof.model.memory import DeviceMemory
from zprof.rules.memory.largest_rank import (
    LargestRank,
    bytes_evidence,
    find_largest_rank,
    is_worth,
    limit_confidence,
    make_memory_finding,
    missing_device_gap,
)

_LOST_RATIO = 0.10
#: Expandable segments leave some free parts, in reported cases less than half.
_SURE_RATIO = 0.5

_SPLIT_FIX = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    "sizes that change from step to step: pad sequences to a few lengths"
)
_AWAITING_FIX = (
    "TORCH_NCCL_AVOID_RECORD_STREAMS=1, where this torch knows it: collectives then hold no blocks\n"
    "FSDP1: move to FSDP2 (fully_shard), which records no streams"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    reserved_bytes: int
    split_bytes: int
    awaiting_bytes: int
    free_segments_bytes: int | None
    whole: bool

    @property
    def bytes(self) -> int:
        return self.split_bytes + self.awaiting_bytes


def fragmentation(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the allocator holds much memory that it cannot use."""
    big = find_largest_rank(analysis)
    if big is None or not big.on_gpu:
        return None  # the CPU allocator caches nothing
    lost = _lost(big, big.at_reserved_peak())
    if lost is None:
        return missing_device_gap(Cause.FRAGMENTATION)
    is_there = lost.bytes >= _LOST_RATIO * lost.reserved_bytes and is_worth(lost.bytes, big)
    return _finding(big, lost) if is_there else None


def _lost(big: LargestRank, device: DeviceMemory | None) -> _Lost | None:
    if device and device.split_bytes is not None and device.reserved_bytes:
        return _Lost(
            reserved_bytes=device.reserved_bytes,
            split_bytes=device.split_bytes,
            awaiting_bytes=device.awaiting_free_bytes or 0,
            free_segments_bytes=device.free_segments_bytes,
            whole=True,
        )
    unused = big.memory.reserved_unused_bytes
    if unused is None:
        return None
    # Without the segments it is unknown which part of it lies in segments in use.
    return _Lost(
        reserved_bytes=big.memory.peak_bytes + unused,
        split_bytes=unused,
        awaiting_bytes=0,
        free_segments_bytes=None,
        whole=False,
    )


def _finding(big: LargestRank, lost: _Lost) -> Finding:
    parts = ((lost.split_bytes, _SPLIT_FIX), (lost.awaiting_bytes, _AWAITING_FIX))
    fixes = [fix for size, fix in parts if size >= lost.bytes / 4]
    confidence = Confidence.HIGH if lost.whole else Confidence.LOW
    evidence = [
        bytes_evidence(
            "reserved_at_reserved_peak", "reserved at the reserved peak", lost.reserved_bytes, big.rank
        ),
        bytes_evidence("free_split_bytes", "free parts of segments in use", lost.split_bytes, big.rank),
        bytes_evidence("awaiting_free", "freed, but a stream still uses it", lost.awaiting_bytes, big.rank),
    ]
    if lost.free_segments_bytes is not None:
        evidence.append(
            bytes_evidence(
                "free_segments", "segments wholly free (not counted)", lost.free_segments_bytes, big.rank
            )
        )
    return make_memory_finding(
        Cause.FRAGMENTATION,
        big,
        sentence=f"{format_bytes(lost.bytes)} of {format_bytes(lost.reserved_bytes)} reserved on rank "
        f"{big.rank} ({format_percent(lost.bytes / lost.reserved_bytes)}) are free and of no use: "
        f"{format_bytes(lost.split_bytes)} in pieces, {format_bytes(lost.awaiting_bytes)} awaiting a stream",
        evidence=evidence,
        saving_bytes=(_SURE_RATIO * lost.bytes if lost.whole else 0, lost.bytes),
        confidence=limit_confidence(confidence, big, 0.0),
        fix="\n".join(fixes),
        disprove="record with the setting: if reserved minus live stays at the reserved peak, the pieces "
        "have another cause",
    )
