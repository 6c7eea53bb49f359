"""Small traces on disk, one file a rank, as torch's profiler writes them."""

import gzip
import json
from pathlib import Path
from typing import Any

BASE_NS = 1_700_000_000_000_000_000


def trace_document(
    rank: int | None = 0,
    world_size: int | None = 2,
    *,
    steps: int = 2,
    kernels: int = 3,
    distributed: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A rank that runs ``kernels`` kernels and an all-reduce in each step of 1 ms."""
    stated = {"backend": "nccl", "rank": rank, "world_size": world_size} if rank is not None else None
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "baseTimeNanoseconds": BASE_NS,
        "metadata": {"TOKEN": "hunter2"},
        "traceEvents": [event for step in range(steps) for event in _step(step, kernels)],
    }
    if distributed or stated:
        document["distributedInfo"] = distributed or stated
    return document


def write_trace(path: Path, document: Any) -> Path:
    """By the suffix: plain or gzip."""
    content = json.dumps(document).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1) if path.name.endswith(".gz") else content)
    return path


def write_ranks(folder: Path, ranks: int, **options: Any) -> list[Path]:
    """``rank0.json`` and so on, of one job."""
    return [
        write_trace(folder / f"rank{rank}.json", trace_document(rank, ranks, **options))
        for rank in range(ranks)
    ]


def _step(step: int, kernels: int) -> list[dict[str, Any]]:
    begin = 1_000.0 * (step + 1)
    mark = _event("user_annotation", f"ProfilerStep#{step + 5}", begin, 1_000.0, tid=11)
    copy = _event("gpu_user_annotation", f"ProfilerStep#{step + 5}", begin + 3, 900.0, tid=7)
    work = [_launched(step * 100 + index, begin + 50 * index) for index in range(kernels)]
    comm = _event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", begin + 500, 200.5, tid=20)
    comm["args"] = {
        "stream": 20,
        "correlation": step * 100 + 99,
        "Collective name": "allreduce",
        "In msg nelems": 256,
        "Out msg nelems": 256,
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }
    return [mark, copy, comm, *(event for pair in work for event in pair)]


def _launched(correlation: int, begin: float) -> tuple[dict[str, Any], dict[str, Any]]:
    call = _event("cuda_runtime", "cudaLaunchKernel", begin, 4.0, tid=11)
    kernel = _event("kernel", "gemm", begin + 10, 30.25, tid=7)
    call["args"] = {"correlation": correlation}
    kernel["args"] = {"stream": 7, "correlation": correlation}
    return call, kernel


def _event(category: str, name: str, ts: float, dur: float, tid: int) -> dict[str, Any]:
    on_device = category in ("kernel", "gpu_user_annotation")
    pid = 0 if on_device else 10
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {},
    }
