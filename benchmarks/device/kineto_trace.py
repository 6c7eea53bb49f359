"""What a profiler sees of a stage 3 step on a GPU: kernels, copies, collectives, streams."""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.device.alone import stepping
from benchmarks.device.row import CheckFailed
from zprof.reference_engine import ZeroConfig


def measure() -> dict[str, Any]:
    """Counts of one step.

    Raises:
        CheckFailed: the trace has no kernel.
    """
    return traced("gloo")


def traced(backend: str) -> dict[str, Any]:
    """Counts of one step with a backend."""
    with stepping(backend, ZeroConfig(stage=3)) as step:
        step()
        step()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as seen:
            step()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        seen.export_chrome_trace(file.name)
        text = Path(file.name).read_text()
    figures = {"trace_bytes": len(text), **counted(json.loads(text)["traceEvents"])}
    if not figures["events"].get("kernel"):
        raise CheckFailed("the trace has no kernel", figures)
    return figures


def counted(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Events by category, streams of kernels, copies by kind, collectives by name."""
    complete = [event for event in events if event.get("ph") == "X"]
    on_device = [event for event in complete if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    return {
        "events": Counter(event.get("cat", "") for event in complete),
        "streams": Counter(str(event.get("args", {}).get("stream")) for event in on_device),
        "copies": Counter(event["name"] for event in complete if event.get("cat") == "gpu_memcpy"),
        "collectives": Counter(event["name"] for event in complete if _is_collective(event)),
        "with_collective_arguments": sum("Collective name" in event.get("args", {}) for event in complete),
    }


def _is_collective(event: dict[str, Any]) -> bool:
    name = str(event.get("name", ""))
    return name.startswith(("nccl", "gloo:", "c10d::", "record_param_comms"))
