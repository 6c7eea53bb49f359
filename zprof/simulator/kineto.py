"""Write the events of a simulated job as Kineto does: one JSON file per rank."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from zprof.simulator.cpu_trace import CpuTraceWriter
from zprof.simulator.hip_trace import HipTraceWriter
from zprof.simulator.job import Vendor, hash_key, uniform
from zprof.simulator.state import Rank, Schedule
from zprof.simulator.trace_writer import Clock, Row, TraceWriter

_WRITERS: Final[dict[Vendor, type[TraceWriter]]] = {
    "nvidia": TraceWriter, "amd": HipTraceWriter, "gloo": CpuTraceWriter,
}  # fmt: skip
_IDLE_NAMES: Final = (
    "torch/nn/modules/module.py(1784): _call_impl",
    "torch/nn/modules/linear.py(124): forward",
    "<built-in method linear of type object at 0x7f2c40a5d2e0>",
    "torch/utils/data/_utils/pin_memory.py(28): do_one_step",
    "threading.py(1016): _bootstrap_inner",
)
_IDLE_NS: Final = 1_700


def spoil_trace(schedule: Schedule, rank: Rank, trace: Row) -> None:
    """Remove events for the shapes "cut" and "damaged"."""
    job, index = schedule.job, rank.index
    events: list[Row] = trace["traceEvents"]
    if job.shape == "cut" and uniform(job.key, "cut kind") < 0.5:
        # the window ended before the GPU had finished: late kernels were never recorded
        share = 0.75 + 0.2 * uniform(job.key, "cut share", index)
        limit = Clock(job, index).span(int(rank.window[0] + share * (rank.window[1] - rank.window[0])), 0)[0]
        late = ("kernel", "gpu_memcpy", "gpu_user_annotation")
        trace["traceEvents"] = [
            e for e in events if e.get("cat") not in late or e["ts"] + e.get("dur", 0) <= limit
        ]
    if job.shape == "damaged":
        chance = 0.01 + 0.08 * uniform(job.key, "damage")
        worse = index == hash_key(job.key, "worse rank") % job.world
        kept = []
        for number, event in enumerate(events):
            collective = event.get("cat") == "kernel" and event["name"].startswith("nccl")
            limit = min(0.5, chance * 4) if worse and collective else chance
            if event["ph"] == "M" or uniform(job.key, "drop", index, number) >= limit:
                kept.append(event)
        trace["traceEvents"] = kept


def pad_trace(schedule: Schedule, rank: Rank, trace: Row, missing_bytes: int) -> bytes:
    """Return the trace with additional bytes of events of an idle thread, evenly spread over the window."""
    events: list[Row] = trace["traceEvents"]
    pid, clock = events[0]["pid"], Clock(schedule.job, rank.index)

    def make(number: int, start: int) -> Row:
        ts, dur = clock.span(start, _IDLE_NS)
        args: Row = {"Python parent id": number, "Python id": number + 1, "Ev Idx": 500_000 + number}
        return {"ph": "X", "cat": "python_function", "name": _IDLE_NAMES[number % len(_IDLE_NAMES)],
                "pid": pid, "tid": pid + 3, "ts": ts, "dur": dur, "args": args}  # fmt: skip

    start, end = rank.window
    sample = [make(1_000 + number, start) for number in range(len(_IDLE_NAMES))]
    count = missing_bytes * len(sample) // len(msgspec.json.encode(sample)) + 1
    padding = [make(number, start + (end - start) * number // count) for number in range(count)]
    return msgspec.json.encode(trace | {"traceEvents": events + padding})


def write_trace(schedule: Schedule, rank: Rank, folder: Path) -> Path:
    """Write one rank's file and return its path; the same job gives the same bytes."""
    job = schedule.job
    trace = _WRITERS[job.dialect.vendor](schedule, rank).build()
    spoil_trace(schedule, rank, trace)
    data = msgspec.json.encode(trace)
    if len(data) < job.dialect.min_bytes:
        data = pad_trace(schedule, rank, trace, job.dialect.min_bytes - len(data))
    path = folder / (f"rank{rank.index}.json" + (".gz" if job.dialect.gz else ""))
    if job.dialect.gz:
        buffer = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=1, mtime=0) as stream:
            stream.write(data)
        data = buffer.getvalue()
    if (
        job.shape == "cut"
        and uniform(job.key, "cut kind") >= 0.5
        and (
            uniform(job.key, "cut file", rank.index) < 0.6
            or rank.index == hash_key(job.key, "surely cut") % job.world
        )
    ):
        data = data[: int(len(data) * (0.5 + 0.45 * uniform(job.key, "cut at", rank.index)))]
    path.write_bytes(data)
    return path


def write_traces(schedule: Schedule, folder: Path, ranks: Iterable[int]) -> list[Path]:
    """Write the files of some ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    return [write_trace(schedule, schedule.ranks[index], folder) for index in ranks]
