"""The CUDA memory history of two small steps: the size of its snapshot and what is in it."""

import pickle
from collections import Counter
from typing import Any

import torch

from benchmarks.device.alone import stepping
from benchmarks.device.row import CheckFailed
from zprof.reference_engine import ZeroConfig

MAX_ENTRIES = 20_000


def measure() -> dict[str, Any]:
    """Counts of blocks and events, bytes of the pickled snapshot.

    Raises:
        CheckFailed: no event was recorded.
    """
    with stepping("gloo", ZeroConfig(stage=3)) as step:
        step()
        torch.cuda.memory._record_memory_history(max_entries=MAX_ENTRIES)
        step()
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
    figures = counted(snapshot) | {"snapshot_bytes": len(pickle.dumps(snapshot))}
    if not figures["actions"]:
        raise CheckFailed("the history has no event", figures)
    return figures


def counted(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Segments, blocks by state, events by action; bytes of each state."""
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    bytes_: Counter[str] = Counter()
    for block in blocks:
        bytes_[block["state"]] += block["size"]
    events = [event for trace in snapshot.get("device_traces", []) for event in trace]
    return {
        "segments": len(snapshot["segments"]),
        "blocks": Counter(block["state"] for block in blocks),
        "block_bytes": bytes_,
        "actions": Counter(event["action"] for event in events),
        "keys": sorted(snapshot),
    }
