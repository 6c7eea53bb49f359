"""Convert a snapshot as torch returns it into tables of a run. Pure: uses neither files nor torch.

    {segments: [{device, address, total_size, ..., blocks: [{address, size, requested_size, state, frames}]}],
     device_traces: [[{action, addr, size, stream, time_us, frames, ...}]], external_annotations: [...]}

(``torch.cuda.memory._snapshot``, ``torch/csrc/cuda/memory_snapshot.cpp``.) Missing parts become
gaps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from zprof.collectors.snapshot.columns import (
    Budget,
    Integers,
    Row,
    factorize_texts,
    make_damaged_error,
    read_integers,
    read_rows,
    read_sizes,
    read_texts,
)
from zprof.collectors.snapshot.device import DeviceTables, build_device_tables
from zprof.collectors.snapshot.gaps import list_snapshot_gaps
from zprof.collectors.snapshot.segments import read_final_segments
from zprof.collectors.snapshot.settings import read_settings
from zprof.collectors.snapshot.stacks import StackTable
from zprof.collectors.snapshot.trace import DeviceTrace, TraceAction, read_device_trace
from zprof.model.gaps import Gap
from zprof.run.schema import TABLES

#: Row limit for a snapshot of this process.
_MAX_ROWS = 100_000_000
_MAX_DEVICES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTables:
    """Columns of the tables ``block``, ``segment``, ``stack`` and ``mark``, as Arrow arrays.

    ``history_begin_ns`` is the start of each device's trace; devices without a trace are not in it.
    """

    block: dict[str, Any]
    segment: dict[str, Any]
    stack: dict[str, Any]
    mark: dict[str, Any]
    gaps: tuple[Gap, ...]
    history_begin_ns: dict[str, int]

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return all tables by name."""
        return {"block": self.block, "segment": self.segment, "stack": self.stack, "mark": self.mark}


def convert_snapshot(
    snapshot: Mapping[str, Any], *, kind: str = "cuda", max_rows: int = _MAX_ROWS
) -> SnapshotTables:
    """Convert a snapshot; ``kind`` is the prefix of device names.

    Raises:
        BadInput: it does not have torch's format, or reading it visits more than ``max_rows`` rows.
    """
    budget = Budget(max_rows)
    traces = _read_traces(snapshot, budget)
    segments = _read_segments(snapshot, budget)
    annotations = read_annotations(snapshot.get("external_annotations", []), budget)
    stacks = StackTable(budget)
    settings = read_settings(snapshot.get("allocator_settings"))
    fallback_ns = find_last_ns(traces, annotations)
    devices = [
        build_device_tables(
            f"{kind}:{device}",
            traces.get(device) or read_device_trace([], f"{kind}:{device}", budget),
            read_final_segments(segments.get(device, []), f"segments of {kind}:{device}", budget),
            stacks,
            fallback_ns,
            settings,
        )
        for device in sorted({n for n, trace in traces.items() if trace.rows} | set(segments))
    ]
    return SnapshotTables(
        block=_concat_tables("block", [device.block for device in devices]),
        segment=_concat_tables("segment", [device.segment for device in devices]),
        stack=_concat_tables("stack", [stacks.columns()]),
        mark=_concat_tables("mark", [build_marks(devices, annotations)]),
        gaps=tuple(list_snapshot_gaps(devices)),
        history_begin_ns={device.name: device.begin_ns for device in devices if device.trace.rows},
    )


def _read_traces(snapshot: Mapping[str, Any], budget: Budget) -> dict[int, DeviceTrace]:
    if not isinstance(snapshot, Mapping):
        raise make_damaged_error(f"it is {type(snapshot).__name__}, not dict")
    if "segments" not in snapshot and "device_traces" not in snapshot:
        raise make_damaged_error("it has neither segments nor device_traces")
    lists = snapshot.get("device_traces", [])
    if type(lists) is not list and type(lists) is not tuple:
        raise make_damaged_error(f"device_traces is {type(lists).__name__}, not a list")
    if len(lists) > _MAX_DEVICES:
        raise make_damaged_error("device_traces has more devices than any machine")
    return {
        device: read_device_trace(entries, f"trace of device {device}", budget)
        for device, entries in enumerate(lists)
    }


def _read_segments(snapshot: Mapping[str, Any], budget: Budget) -> dict[int, list[Row]]:
    rows = read_rows(snapshot.get("segments", []), "segments", budget)
    segments: dict[int, list[Row]] = {}
    for device, row in zip(read_sizes(rows, "device", "segments", default=0).tolist(), rows, strict=True):
        if device >= _MAX_DEVICES:
            raise make_damaged_error("a segment has an impossible device number")
        segments.setdefault(device, []).append(row)
    return segments


def _concat_tables(name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the concatenated parts, with the schema's columns and types."""
    schema = TABLES[name]
    tables = [pa.table({field.name: part[field.name] for field in schema}, schema=schema) for part in parts]
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks() if tables else schema.empty_table()
    return {field.name: _get_single_array(table.column(field.name), field.type) for field in schema}


def _get_single_array(column: Any, kind: Any) -> Any:
    return (
        column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], kind)])
    )


_ANNOTATION_KINDS = {"START": "annotation_begin", "END": "annotation_end"}
_NS_PER_US = 1000
_MAX_TIME_US = 9_000_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """Starts and ends of named ranges (``record_function``), in file order."""

    time_ns: Integers
    kind: Sequence[str]
    device: Integers
    name: Sequence[str]


def read_annotations(value: object, budget: Budget) -> Annotations:
    """Return the ranges of ``external_annotations``; stages other than START and END are ignored.

    Raises:
        BadInput: they do not have torch's format.
    """
    where = "external_annotations"
    rows = read_rows(value, where, budget)
    stages = read_texts(rows, "stage", where)
    rows = [row for row, stage in zip(rows, stages, strict=True) if stage in _ANNOTATION_KINDS]
    return Annotations(
        time_ns=np.minimum(read_sizes(rows, "time_us", where, default=0), _MAX_TIME_US) * _NS_PER_US,
        kind=[_ANNOTATION_KINDS[stage] for stage in stages if stage in _ANNOTATION_KINDS],
        device=read_integers(rows, "device", where, default=0),
        name=read_texts(rows, "name", where),
    )


def find_last_ns(traces: Mapping[int, DeviceTrace], annotations: Annotations) -> int:
    """Return the last time in the snapshot, 0 if it has no times."""
    ends = [int(trace.time_ns[-1]) for trace in traces.values() if len(trace.time_ns)]
    annotation_times = [int(time_ns) for time_ns in annotations.time_ns]
    return max([*ends, *annotation_times, 0])


def build_marks(devices: Sequence[DeviceTables], annotations: Annotations) -> dict[str, Any]:
    """Return the table ``mark``: annotations (number: device), and two rows per failed allocation.

    These are oom (number: free bytes of the device) and oom_request (number: requested bytes), both named
    after the device.
    """
    times, kinds = [annotations.time_ns], list(annotations.kind)
    numbers, names = [annotations.device], list(annotations.name)
    for device in devices:
        entries = np.flatnonzero(device.trace.action == TraceAction.OOM)
        rows = [device.trace.rows[index] for index in entries.tolist()]
        free = read_integers(rows, "device_free", f"oom of {device.name}", default=-1)
        times += [device.trace.time_ns[entries]] * 2
        numbers += [free, device.trace.size[entries]]
        kinds += ["oom"] * len(entries) + ["oom_request"] * len(entries)
        names += [device.name] * (2 * len(entries))
    time_ns = np.concatenate(times)
    order = np.argsort(time_ns, kind="stable")
    return {
        "time_ns": time_ns[order],
        "kind": factorize_texts([kinds[index] for index in order.tolist()]),
        "number": np.concatenate(numbers)[order],
        "name": factorize_texts([names[index] for index in order.tolist()]),
        "thread_cpu_ns": [None] * len(order),
        "thread_queued_ns": [None] * len(order),
    }
