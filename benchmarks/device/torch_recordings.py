"""Record an engine step on a GPU with torch's tools: Kineto traces (gloo, one-rank NCCL), memory history."""

import json
import pickle
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from benchmarks.device.checks import CheckFailed, NotMeasured
from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.program.gpt import GPT, GPTConfig


def measure_kineto_trace() -> dict[str, Any]:
    """Return counts of one step.

    Raises:
        CheckFailed: the trace has no kernel.
    """
    return trace_step("gloo")


def trace_step(backend: str) -> dict[str, Any]:
    """Return counts of one step with a backend."""
    with run_engine_alone(backend, ZeroConfig(stage=3)) as step:
        step()
        step()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as seen:
            step()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        seen.export_chrome_trace(file.name)
        text = Path(file.name).read_text()
    figures = {"trace_bytes": len(text), **count_trace_events(json.loads(text)["traceEvents"])}
    if not figures["events"].get("kernel"):
        raise CheckFailed("the trace has no kernel", figures)
    return figures


def count_trace_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Count events by category, streams of kernels, copies by kind, collectives by name."""
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


def measure_nccl_one_rank() -> dict[str, Any]:
    """Return counts of one stage 3 step."""
    if not dist.is_nccl_available():
        raise NotMeasured("this torch has no NCCL")
    return trace_step("nccl")


MAX_ENTRIES = 20_000


def measure_memory_history() -> dict[str, Any]:
    """Return counts of blocks and events, and the bytes of the pickled snapshot.

    Raises:
        CheckFailed: no event was recorded.
    """
    with run_engine_alone("gloo", ZeroConfig(stage=3)) as step:
        step()
        torch.cuda.memory._record_memory_history(max_entries=MAX_ENTRIES)
        step()
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
    figures = count_history(snapshot) | {"snapshot_bytes": len(pickle.dumps(snapshot))}
    if not figures["actions"]:
        raise CheckFailed("the history has no event", figures)
    return figures


def count_history(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Count segments, blocks by state, events by action, and the bytes of each state."""
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


BATCH, CONTEXT, VOCABULARY = 8, 128, 512


@contextmanager
def run_engine_alone(backend: str, config: ZeroConfig, device: str = "cuda") -> Iterator[Callable[[], float]]:
    """Yield a function that runs one step on the device and returns its loss."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        module = GPT(GPTConfig(layers=4, hidden=256, vocabulary=VOCABULARY, context=CONTEXT)).to(device)
        model, optimizer = zero(module, config)
        tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), device=device)

        def step() -> float:
            optimizer.zero_grad()
            loss = model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
            return float(loss.detach())

        yield step
        model.synchronize()
    finally:
        dist.destroy_process_group()
