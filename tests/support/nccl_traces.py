"""Trace files of GPU ranks with NCCL collectives, written by hand, and what is made of them; times in us."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.kineto_traces import MAIN, span
from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.model.time import WindowPolicy
from zprof.run.reader import load

Events = list[dict[str, Any]]


def gemm(number: int, launch: float, start: float, end: float, call: float = 3) -> Events:
    return [
        span("cudaLaunchKernel", launch, launch + call, MAIN, "cuda_runtime", correlation=number),
        span("gemm", start, end, 7, "kernel", stream=7, correlation=number),
    ]


def nccl(
    number: int,
    kind: str,
    launch: float | None,
    start: float,
    end: float,
    *,
    stream: int = 20,
    group: str = "0",
    ranks: Sequence[int] = (0, 1),
    elements: int = 1_000_000,
    thread: int = MAIN,
) -> Events:
    """A collective by its description; ``launch`` is None where the trace has no host events."""
    described = {
        "Collective name": kind,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "dtype": "Float",
        "Group size": len(ranks),
        "Process Group Name": group,
        "Process Group Ranks": str(list(ranks)),
    }
    name = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
    events = [span(name, start, end, stream, "kernel", stream=stream, correlation=number, **described)]
    if launch is not None:
        call = span("cudaLaunchKernelExC", launch, launch + 3, thread, "cuda_runtime", correlation=number)
        events.append(call)
    return events


def step(number: int, begin: float, end: float) -> dict[str, Any]:
    return span(f"ProfilerStep#{number}", begin, end)


def analysed(
    folder: Path,
    ranks: Mapping[int, Events],
    *,
    world_size: int | None = None,
    groups: str = "",
    policy: WindowPolicy = WindowPolicy.STEP,
) -> TimeAnalysis:
    """Write a file per rank, import and analyse; ``groups`` are the names of the described groups."""
    size = world_size or len(ranks)
    for rank, events in ranks.items():
        info: dict[str, Any] = {"backend": "nccl", "rank": rank, "world_size": size}
        info["pg_config"] = [
            {"pg_name": name, "pg_desc": f"group {name}", "pg_size": size, "ranks": list(range(size))}
            for name in groups
        ]
        base = {"baseTimeNanoseconds": 1_790_000_000_000_000_000, "distributedInfo": info}
        (folder / f"rank{rank}.json").write_text(json.dumps({"traceEvents": events} | base))
    return analyse_time(load(import_paths([folder], folder / "x.zprof").run), policy)
