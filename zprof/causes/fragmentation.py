"""ZP202: the allocator holds memory that it cannot reuse.

At the reserved peak, the figure that an out-of-memory error refers to:

    free parts of segments in use (split)  +  freed blocks that a stream still uses (awaiting free)

divided by the reserved bytes. Completely free segments do not count: the allocator returns them before it
fails. Reported from 10 % of the reserved memory: public issues with that pattern were fixed by
expandable segments, by not recording streams, or by uniform sizes.
"""

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact
from zprof.analysis.memory.largest_rank import (
    MISSING_DEVICE,
    find_largest_rank,
    is_worth,
    limit_confidence,
)
from zprof.causes.cause import Cause, Need, Signal, make_memory_signal
from zprof.causes.fix import Fix, choose_fix
from zprof.model.findings import Confidence
from zprof.model.quantities import Unit
from zprof.model.training import Engine

_MIN_UNUSABLE_RATIO = 0.10
#: Expandable segments recover only part of it: more than half in the public issues.
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

CAUSE = Cause(
    id="ZP202",
    name="fragmentation",
    meaning="The allocator holds memory that is free and of no use to anybody.",
    needs=(Need.MEMORY, Need.DEVICE),
    sentence="{size:bytes} of {reserved:bytes} reserved on rank {rank} ({share:percent}) are free but "
    "unusable: {split:bytes} in fragments, {held:bytes} awaiting a stream",
    evidence={
        "reserved_at_reserved_peak": ("reserved at the reserved peak", Unit.BYTES),
        "free_segments": ("entirely free segments (not counted)", Unit.BYTES),
    },
    action="expandable segments, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    disprove="record with the setting: if reserved minus live does not shrink at the reserved peak, the "
    "fragmentation has a different cause",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if the allocator holds a significant amount of memory that it cannot use."""
    largest = find_largest_rank(analysis)
    if largest is None or not largest.on_gpu:
        return None  # the CPU allocator has no cache
    device, unused = largest.at_reserved_peak(), largest.memory.reserved_unused_bytes
    free_segments, has_segments = None, False
    if device and device.split_bytes is not None and device.reserved_bytes:
        reserved, split = device.reserved_bytes, device.split_bytes
        awaiting, free_segments = device.awaiting_free_bytes or 0, device.free_segments_bytes
        has_segments = True
    elif unused is not None:
        # Without the segments it is unknown how much of that memory is in segments in use.
        reserved, split, awaiting = largest.memory.peak_bytes + unused, unused, 0
    else:
        return MISSING_DEVICE
    size = split + awaiting
    if size < _MIN_UNUSABLE_RATIO * reserved or not is_worth(size, largest):
        return None
    facts = [
        make_fact("reserved_at_reserved_peak", reserved, rank=largest.rank),
        make_fact("free_split_bytes", split, rank=largest.rank),
        make_fact("awaiting_free", awaiting, rank=largest.rank),
    ]
    if free_segments is not None:
        facts.append(make_fact("free_segments", free_segments, rank=largest.rank))
    fixes = ((split, _SPLIT_FIX), (awaiting, choose_fix(analysis, _AWAITING_FIX)))
    words = {"size": size, "reserved": reserved, "share": size / reserved, "split": split, "held": awaiting}
    return make_memory_signal(
        largest,
        confidence=limit_confidence(Confidence.HIGH if has_segments else Confidence.LOW, largest, 0.0),
        facts=facts,
        saving_bytes=(_MIN_RECOVERED_RATIO * size if has_segments else 0, size),
        words=words,
        fix="\n".join(fix for part, fix in fixes if part >= size / 4),
    )
