"""Query HTA inside the child process; times are returned as integer nanoseconds.

Only this module imports ``hta``. ``HTA_DISABLE_NS_ROUNDING=1`` is already set, and the last step is included:
otherwise HTA rounds every edge inward to microseconds and drops a step.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hta.analyzers.breakdown_analysis import BreakdownAnalysis
from hta.analyzers.communication_analysis import CommunicationAnalysis
from hta.analyzers.critical_path_analysis import CriticalPathAnalysis
from hta.common.trace import Trace
from hta.utils.utils import KernelType, get_kernel_type, merge_kernel_intervals
from hta.version import __version_tuple__

from zprof.integrations.hta.process import WORK

_MAX_NAMES = 2_000
_MAX_NAME_LENGTH = 300
_STEP = "ProfilerStep"
#: Maximum launch delay between two kernels in HTA's idle breakdown, in microseconds.
_MAX_KERNEL_DELAY_US = 30
_IDLE_KINDS = ("host_wait", "kernel_wait", "other")


class LoadedTrace:
    """One rank's trace as filtered by HTA, and the number of device rows before filtering."""

    def __init__(self, trace: Any, rank: int, device_rows: int) -> None:
        self.trace, self.rank, self.device_rows = trace, rank, device_rows

    @property
    def device(self) -> Any:
        """Rows on a stream, which HTA counts as device work."""
        frame = self.trace.traces[self.rank]
        return frame[frame["stream"].ne(-1)]

    def names(self) -> Mapping[int, str]:
        """Return the strings by HTA symbol number."""
        return {number: text for text, number in self.trace.symbol_table.get_sym_id_map().items()}


def version() -> str:
    """Return HTA's version."""
    return ".".join(str(part) for part in __version_tuple__)


def load(path: str, rank: int) -> LoadedTrace:
    """Parse one file like ``TraceAnalysis``, with the last step included."""
    trace = Trace({rank: path}, "/")
    trace.parse_traces(use_multiprocessing=False, use_memory_profiling=False)
    device_rows = int(trace.traces[rank]["stream"].ne(-1).sum())
    trace.align_and_filter_trace(True)
    frame = trace.traces[rank].set_index("index", drop=False)
    frame.index.names = [None]
    trace.traces[rank] = frame
    return LoadedTrace(trace, rank, device_rows)


def rows(loaded: LoadedTrace) -> dict[str, Any]:
    """Return the device rows that HTA uses, its time resolution, and its classification of each name."""
    device = loaded.device
    names = loaded.names()
    found = device.groupby(["name", "cat"])["dur"].agg(["count", "sum"]).reset_index()
    found = found.sort_values("sum", ascending=False).head(_MAX_NAMES)
    seen = [
        {
            "name": names[name][:_MAX_NAME_LENGTH],
            "category": names[category],
            "kind": get_kernel_type(names[name]),
            "count": int(count),
            "total_ns": _to_ns(total),
        }
        for name, category, count, total in found.itertuples(index=False)
    ]
    # Resolution of HTA times, which are doubles of absolute time if fractional.
    return {
        "device": loaded.device_rows,
        "kept": len(device),
        "resolution_ns": (
            1.0
            if loaded.trace.traces[loaded.rank]["ts"].dtype != np.float64
            else max(1.0, 1_000.0 * float(np.spacing(abs(float(loaded.trace.min_ts)))))
        ),
        "names": seen,
    }


def overlap(loaded: LoadedTrace) -> dict[str, Any]:
    """Return the percentage of communication that overlaps with compute; None without communication."""
    frame = CommunicationAnalysis.get_comm_comp_overlap(loaded.trace, visualize=False)
    percent = float(frame["comp_comm_overlap_pctg"].iloc[0])
    return {"percent": percent if math.isfinite(percent) else None}


def temporal(loaded: LoadedTrace) -> dict[str, Any]:
    """Return the span of device work, split into idle, compute and the rest."""
    row = BreakdownAnalysis.get_temporal_breakdown(loaded.trace, visualize=False).iloc[0]
    return {
        "span_ns": _to_ns(row["kernel_time(us)"]),
        "idle_ns": _to_ns(row["idle_time(us)"]),
        "compute_ns": _to_ns(row["compute_time(us)"]),
        "non_compute_ns": _to_ns(row["non_compute_time(us)"]),
    }


def kinds(loaded: LoadedTrace) -> dict[str, Any]:
    """Return communication and memory times by HTA's classification, without rounding to microseconds."""
    device, names = loaded.device.copy(), loaded.names()
    device["kind"] = [get_kernel_type(names[number]) for number in device["name"]]
    return {
        "communication_ns": _sum_merged_ns(device, KernelType.COMMUNICATION.name),
        "memory_ns": _sum_merged_ns(device, KernelType.MEMORY.name),
    }


def work(loaded: LoadedTrace) -> dict[str, Any]:
    """Return the figures from device work rows only, without event waits and similar rows."""
    frame, names = loaded.trace.traces[loaded.rank], loaded.names()
    numbers = [number for number, text in names.items() if text in WORK]
    filtered = copy.copy(loaded.trace)
    filtered.traces = {loaded.rank: frame[frame["stream"].eq(-1) | frame["cat"].isin(numbers)]}
    work_only = LoadedTrace(filtered, loaded.rank, loaded.device_rows)
    return {"overlap": overlap(work_only), "temporal": temporal(work_only), "kinds": kinds(work_only)}


def idle(loaded: LoadedTrace) -> list[dict[str, Any]]:
    """Return the idle time of each stream by HTA's categories."""
    frame, _ = BreakdownAnalysis.get_idle_time_breakdown(
        loaded.trace, _MAX_KERNEL_DELAY_US, loaded.rank, None, visualize=False
    )
    return [
        {
            "stream": int(stream),
            **{
                f"{kind}_ns": _to_ns(rows.loc[rows["idle_category"] == kind, "idle_time"].sum())
                for kind in _IDLE_KINDS
            },
        }
        for stream, rows in frame.groupby("stream")
    ]


def critical(loaded: LoadedTrace) -> dict[str, Any]:
    """Return the critical path of the trace, or of all steps but the first, which lacks events."""
    texts = loaded.names().values()
    steps = len({text for text in texts if _STEP in text})
    first = min(1, max(0, steps - 1))
    result = CriticalPathAnalysis.critical_path_analysis(
        loaded.trace, loaded.rank, _STEP if steps else "", (first, max(first, steps - 1))
    )
    if result is None or not result[1]:
        raise ValueError("HTA found no critical path")
    frame = result[0].get_critical_path_breakdown()
    total_us = float(frame["duration"].sum())
    by_kind = frame.groupby("bound_by")["duration"].sum()
    return {
        "steps": steps - first if steps else 0,
        "steps_seen": steps,
        "length_ns": _to_ns(total_us),
        "shares": {
            str(kind): float(value) / total_us for kind, value in by_kind.items() if kind and value > 0
        },
    }


QUESTIONS: dict[str, Callable[[LoadedTrace], Any]] = {
    "rows": rows,
    "overlap": overlap,
    "temporal": temporal,
    "kinds": kinds,
    "work": work,
    "idle": idle,
    "critical": critical,
}


def _to_ns(microseconds: Any) -> int:
    value = float(microseconds)
    if not math.isfinite(value):
        raise ValueError(f"HTA returned {value}")
    return round(value * 1_000)


def _sum_merged_ns(device: Any, kind: str) -> int:
    merged = merge_kernel_intervals(device[device["kind"] == kind].copy())
    return _to_ns((merged["end"] - merged["ts"]).sum())
