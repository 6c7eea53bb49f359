"""Write simulated allocators as the snapshots that torch dumps."""

import pickle
from pathlib import Path
from typing import Any

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.segments import ACTIVE, AWAITING, FREE, SimulatedSegment


def snapshot_of(*allocators: Allocator, awaiting: str = AWAITING) -> dict[str, Any]:
    """What ``torch.cuda.memory._snapshot`` would give; ``awaiting`` is the spelling of that state."""
    traces: list[list[dict[str, Any]]] = [[] for _ in range(1 + max(a.device for a in allocators))]
    for allocator in allocators:
        traces[allocator.device] = list(allocator.entries)
    return {
        "segments": [_describe_segment(a.device, s, awaiting) for a in allocators for s in a.segments],
        "device_traces": traces,
        "external_annotations": [note for a in allocators for note in a.annotations],
        "allocator_settings": _describe_settings(allocators[0]),
    }


def _describe_settings(allocator: Allocator) -> dict[str, Any]:
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1 if allocator.max_split is None else allocator.max_split,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": allocator.expandable,
        "roundup_power2_divisions": {str(1 << k): allocator.divisions for k in range(16)},
    }


def _describe_segment(device: int, segment: SimulatedSegment, awaiting: str) -> dict[str, Any]:
    active = [block for block in segment.blocks() if block.state != FREE]
    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": sum(block.size for block in active if block.state == ACTIVE),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": segment.stream,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": segment.pool,
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": awaiting if block.state == AWAITING else block.state,
                "frames": block.frames,
            }
            for block in segment.blocks()
        ],
    }


def write_snapshot(path: Path, snapshot: object, protocol: int = 4) -> Path:
    """As ``torch.cuda.memory._dump_snapshot`` writes it."""
    path.write_bytes(pickle.dumps(snapshot, protocol=protocol))
    return path
