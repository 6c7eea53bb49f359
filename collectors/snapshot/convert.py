"""Convert a snapshot as torch returns it into tables of a run. Pure: uses neither files nor torch.

    {segments: [{device, address, total_size, ..., blocks: [{address, size, requested_size, state, frames}]}],
     device_traces: [[{action, addr, size, stream, time_us, frames, ...}]], external_annotations: [...]}

(``torch.cuda.memory._snapshot``, ``torch/csrc/cuda/memory_snapshot.cpp``.) Missing parts become
gaps.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from msgspec import Struct

from zprof.collectors.snapshot.columns import (
    Budget,
    Row,
    make_damaged_error,
    read_rows,
    read_sizes,
)
from zprof.collectors.snapshot.device import build_device_tables
from zprof.collectors.snapshot.gaps import list_snapshot_gaps
from zprof.collectors.snapshot.marks import build_marks, find_last_ns, read_annotations
from zprof.collectors.snapshot.segments import read_final_segments
from zprof.collectors.snapshot.settings import read_settings
from zprof.collectors.snapshot.stacks import StackTable
from zprof.collectors.snapshot.trace import DeviceTrace, read_device_trace
from zprof.model.gaps import Gap
from zprof.run.schema import TABLES

#: Row limit for a snapshot of this process.
_MAX_ROWS = 100_000_000
_MAX_DEVICES = 1024


class SnapshotTables(Struct, frozen=True, kw_only=True):
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
    marks = build_marks(devices, annotations, stacks, settings)
    return SnapshotTables(
        block=_concat_tables("block", [device.block for device in devices]),
        segment=_concat_tables("segment", [device.segment for device in devices]),
        stack=_concat_tables("stack", [stacks.columns()]),
        mark=_concat_tables("mark", [marks]),
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
