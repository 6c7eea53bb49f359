"""ZP202 fragmentation: the allocator holds memory that it cannot reuse.

At the reserved peak, the figure that an out-of-memory error refers to:

    free parts of segments in use (split)  +  freed blocks that a stream still uses (awaiting free)

divided by the reserved bytes. Completely free segments do not count: the allocator returns them before it
fails. Reported if it is at least 10 % of the reserved memory: reported issues with that pattern were fixed by
expandable segments, by not recording streams, or by uniform sizes.
"""

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.fix import Fix, choose_fix
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_percent
from zprof.model.gaps import Gap
from zprof.model.memory import DeviceMemory
from zprof.model.training import Engine
from zprof.rules.evidence import make_fact
from zprof.rules.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
    make_memory_finding,
    missing_device_gap,
)

_MIN_UNUSABLE_RATIO = 0.10
#: Expandable segments recover only part of it: more than half in the reported cases.
_MIN_RECOVERED_RATIO = 0.5

_SPLIT_FIX = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    "if sizes vary from step to step, pad sequences to a few lengths"
)
_AVOID_RECORD_STREAMS = (
    "TORCH_NCCL_AVOID_RECORD_STREAMS=1, if your torch version supports it: collectives then hold no blocks"
)
_AWAITING_FIX = Fix(
    forms={
        Engine.FSDP1: f"{_AVOID_RECORD_STREAMS}\n"
        "or FSDP2 (fully_shard) instead of FSDP1, which does not record streams",
    },
    general=_AVOID_RECORD_STREAMS,
)


class _UnusableMemory(Struct, frozen=True, kw_only=True):
    reserved_bytes: int
    split_bytes: int
    awaiting_bytes: int
    free_segments_bytes: int | None
    has_segments: bool

    @property
    def bytes(self) -> int:
        return self.split_bytes + self.awaiting_bytes


def fragmentation(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the allocator holds a significant amount of memory that it cannot use."""
    largest = find_largest_rank(analysis)
    if largest is None or not largest.on_gpu:
        return None  # the CPU allocator caches nothing
    lost = _measure_unusable(largest, largest.at_reserved_peak())
    if lost is None:
        return missing_device_gap(Cause.FRAGMENTATION)
    is_significant = lost.bytes >= _MIN_UNUSABLE_RATIO * lost.reserved_bytes and is_worth(lost.bytes, largest)
    return _finding(analysis, largest, lost) if is_significant else None


def _measure_unusable(largest: LargestRank, device: DeviceMemory | None) -> _UnusableMemory | None:
    if device and device.split_bytes is not None and device.reserved_bytes:
        return _UnusableMemory(
            reserved_bytes=device.reserved_bytes,
            split_bytes=device.split_bytes,
            awaiting_bytes=device.awaiting_free_bytes or 0,
            free_segments_bytes=device.free_segments_bytes,
            has_segments=True,
        )
    unused = largest.memory.reserved_unused_bytes
    if unused is None:
        return None
    # Without the segments it is unknown how much of it is in segments in use.
    return _UnusableMemory(
        reserved_bytes=largest.memory.peak_bytes + unused,
        split_bytes=unused,
        awaiting_bytes=0,
        free_segments_bytes=None,
        has_segments=False,
    )


def _finding(analysis: RunAnalysis, largest: LargestRank, lost: _UnusableMemory) -> Finding:
    parts = ((lost.split_bytes, _SPLIT_FIX), (lost.awaiting_bytes, choose_fix(analysis, _AWAITING_FIX)))
    fixes = [fix for size, fix in parts if size >= lost.bytes / 4]
    confidence = Confidence.HIGH if lost.has_segments else Confidence.LOW
    evidence = [
        make_fact("reserved_at_reserved_peak", lost.reserved_bytes, rank=largest.rank),
        make_fact("free_split_bytes", lost.split_bytes, rank=largest.rank),
        make_fact("awaiting_free", lost.awaiting_bytes, rank=largest.rank),
    ]
    if lost.free_segments_bytes is not None:
        evidence.append(make_fact("free_segments/not_counted", lost.free_segments_bytes, rank=largest.rank))
    return make_memory_finding(
        analysis,
        Cause.FRAGMENTATION,
        largest,
        sentence=f"{format_bytes(lost.bytes)} of {format_bytes(lost.reserved_bytes)} reserved on rank "
        f"{largest.rank} ({format_percent(lost.bytes / lost.reserved_bytes)}) are free but unusable: "
        f"{format_bytes(lost.split_bytes)} in fragments, {format_bytes(lost.awaiting_bytes)} awaiting a "
        "stream",
        evidence=evidence,
        saving_bytes=(_MIN_RECOVERED_RATIO * lost.bytes if lost.has_segments else 0, lost.bytes),
        confidence=limit_confidence(confidence, largest, 0.0),
        fix="\n".join(fixes),
        disprove="record with the setting: if reserved minus live does not shrink at the reserved peak, the "
        "fragmentation has a different cause",
    )
