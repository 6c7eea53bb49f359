"""Convert a snapshot as torch returns it into tables of a run. Pure: uses neither files nor torch.

    {segments: [{device, address, total_size, ..., blocks: [{address, size, requested_size, state, frames}]}],
     device_traces: [[{action, addr, size, stream, time_us, frames, ...}]], external_annotations: [...]}

(``torch.cuda.memory._snapshot``, ``torch/csrc/cuda/memory_snapshot.cpp``.) Missing and contradictory
parts become gaps.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zprof.collectors.read.pickle_sandbox import format_name
from zprof.collectors.read.snapshot.block_sizes import AllocatorSettings, compute_driver_bytes, read_settings
from zprof.collectors.read.snapshot.columns import (
    Budget,
    Integers,
    Row,
    StackTable,
    factorize_texts,
    make_damaged_error,
    read_column,
    read_integers,
    read_rows,
    read_sizes,
    read_texts,
)
from zprof.collectors.read.snapshot.device import DeviceTables, build_device_tables
from zprof.collectors.read.snapshot.segments import read_final_segments, read_pools
from zprof.collectors.read.snapshot.trace import DeviceTrace, TraceAction, read_device_trace
from zprof.model.gap_texts import make_gap
from zprof.model.gap_texts.reading import SEGMENT_CONTRADICTIONS
from zprof.model.gaps import Gap
from zprof.run.schema import TABLES

#: Row limit for a snapshot of this process.
_MAX_ROWS = 100_000_000
_MAX_DEVICES = 1024
_NS_PER_S = 1_000_000_000
_MAX_BACKSTEP_NS = 1_000_000
#: Keys that may hold the text of an ``annotate`` entry.
_TEXT_KEYS = ("user_metadata", "metadata", "name", "text")
_ANNOTATION_KINDS = {"START": "annotation_begin", "END": "annotation_end"}
_NS_PER_US = 1000
_MAX_TIME_US = 9_000_000_000_000_000
#: Rows of the table ``mark``, in any order: times, numbers, kinds, names.
_Marks = tuple[Integers, Integers, Sequence[str], Sequence[str]]


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
    rows = read_rows(snapshot.get("segments", []), "segments", budget)
    segments: dict[int, list[Row]] = {}
    for device, row in zip(read_sizes(rows, "device", "segments", default=0).tolist(), rows, strict=True):
        if device >= _MAX_DEVICES:
            raise make_damaged_error("a segment has an impossible device number")
        segments.setdefault(device, []).append(row)
    annotations = read_annotations(snapshot.get("external_annotations", []), budget)
    stacks = StackTable(budget)
    settings = read_settings(snapshot.get("allocator_settings"))
    fallback_ns = find_last_ns(traces, annotations[0])
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


def list_snapshot_gaps(devices: Sequence[DeviceTables]) -> Iterator[Gap]:
    """Yield all gaps, device by device."""
    for device in devices:
        before = np.asarray(device.block["before_history"])
        if not len(device.trace.rows):
            yield make_gap("snapshot_without_trace", device=device.name)
        elif before.any():
            yield make_gap(
                "history_starts_at_time" if device.trace.has_times else "history_starts_at_entry",
                device=device.name,
                start=_format_time(device.begin_ns),
                blocks=int(before.sum()),
                size=int(np.asarray(device.block["requested_bytes"])[before].sum()),
            )
        if unknown := device.trace.unknown:
            kinds = [repr(format_name(name)) for name in islice(unknown, 3)]
            entries = sum(unknown.values())
            yield make_gap("history_kinds_unknown", device=device.name, entries=entries, kinds=kinds)
        yield from _iter_trace_gaps(device)
        if device.size_mismatches:
            yield make_gap("block_sizes_estimated", device=device.name, blocks=device.size_mismatches)


def _format_time(time_ns: int) -> str:
    seconds, remainder_ns = divmod(time_ns + 1, _NS_PER_S)
    try:
        day = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ns} ns"
    return f"{day}.{remainder_ns // 1000:06d} UTC"


def _iter_trace_gaps(device: DeviceTables) -> Iterator[Gap]:
    """Yield contradictions between trace and segments, and missing parts of the trace."""
    name, lifetimes, has_segments = device.name, device.lifetimes, len(device.final_segments.address) > 0
    counts = {
        "overlaps": lifetimes.overlaps,
        "missing": lifetimes.missing_in_segments if has_segments else 0,
        "resized": lifetimes.resized,
        "inconsistent": device.inconsistent_segments if has_segments else 0,
    }
    parts = [SEGMENT_CONTRADICTIONS[key].format(count=count) for key, count in counts.items() if count]
    if parts:
        yield make_gap("history_contradicts_segments", device=name, contradictions="; ".join(parts))
    if not has_segments and len(device.trace.rows):
        yield make_gap("history_without_segments", device=name)
    if not device.trace.has_times:
        yield make_gap("history_without_times", device=name)
    if device.trace.max_backstep_ns > _MAX_BACKSTEP_NS:
        yield make_gap("history_clock_jumps", device=name, backstep_ns=device.trace.max_backstep_ns)
    if lifetimes.has_no_requests:
        yield make_gap("free_requests_skipped", device=name)
    if lifetimes.has_no_completions:
        yield make_gap("free_completions_skipped", device=name)


def read_annotations(value: object, budget: Budget) -> _Marks:
    """Return starts and ends of the named ranges (``record_function``) in ``external_annotations``.

    They are in file order; stages other than START and END are ignored.

    Raises:
        BadInput: they do not have torch's format.
    """
    where = "external_annotations"
    rows = read_rows(value, where, budget)
    stages = read_texts(rows, "stage", where)
    rows = [row for row, stage in zip(rows, stages, strict=True) if stage in _ANNOTATION_KINDS]
    return (
        np.minimum(read_sizes(rows, "time_us", where, default=0), _MAX_TIME_US) * _NS_PER_US,
        read_integers(rows, "device", where, default=0),
        [_ANNOTATION_KINDS[stage] for stage in stages if stage in _ANNOTATION_KINDS],
        read_texts(rows, "name", where),
    )


def find_last_ns(traces: Mapping[int, DeviceTrace], annotation_times_ns: Integers) -> int:
    """Return the last time in the snapshot, 0 if it has no times."""
    ends = [int(trace.time_ns[-1]) for trace in traces.values() if len(trace.time_ns)]
    return max(*ends, int(annotation_times_ns.max(initial=0)), 0)


def build_marks(
    devices: Sequence[DeviceTables],
    annotations: _Marks,
    stacks: StackTable,
    settings: AllocatorSettings,
) -> dict[str, Any]:
    """Return the table ``mark``; its kinds are described at ``MARK`` in ``zprof/run/schema.py``."""
    parts = [annotations]
    for device in devices:
        parts += [*_iter_failures(device, stacks, settings), _read_notes(device)]
    time_ns = np.concatenate([part[0] for part in parts])
    order = np.argsort(time_ns, kind="stable")
    kinds = [kind for part in parts for kind in part[2]]
    names = [name for part in parts for name in part[3]]
    return {
        "time_ns": time_ns[order],
        "kind": factorize_texts([kinds[index] for index in order.tolist()]),
        "number": np.concatenate([part[1] for part in parts])[order],
        "name": factorize_texts([names[index] for index in order.tolist()]),
        "thread_cpu_ns": [None] * len(order),
        "thread_queued_ns": [None] * len(order),
    }


def _iter_failures(device: DeviceTables, stacks: StackTable, settings: AllocatorSettings) -> Iterator[_Marks]:
    """Yield the rows of failed allocations; all rows of one share its time."""
    where = f"oom of {device.name}"
    entries = np.flatnonzero(device.trace.action == TraceAction.OOM)
    failed = [device.trace.rows[index] for index in entries.tolist()]
    time_ns, size = device.trace.time_ns[entries], device.trace.size[entries]
    numbers = {
        "oom": read_integers(failed, "device_free", where, default=-1),
        "oom_request": size,
        "oom_driver_request": compute_driver_bytes(size, settings),
        "oom_stack": stacks.numbers(read_column(failed, "frames"), where),
    }
    for kind, number in numbers.items():
        is_known = number >= 0 if kind == "oom_stack" else np.ones(len(number), dtype=np.bool_)
        count = int(is_known.sum())
        yield time_ns[is_known], number[is_known], [kind] * count, [device.name] * count
    pools = read_pools(failed, "pool_id", where)
    private = [index for index, pool in enumerate(pools) if pool not in (None, "0,0")]
    device_number = np.full(len(private), int(device.name.rpartition(":")[2]), dtype=np.int64)
    names = [pools[index] or "" for index in private]
    yield time_ns[private], device_number, ["oom_pool"] * len(private), names


def _read_notes(device: DeviceTables) -> _Marks:
    """Return the texts of ``annotate`` entries."""
    trace = device.trace
    noted: list[tuple[int, str]] = []
    for index in np.flatnonzero(trace.action == TraceAction.ANNOTATE).tolist():
        values = (trace.rows[index].get(key) for key in _TEXT_KEYS)
        text = next((value for value in values if type(value) is str and value), "")
        if text:
            noted.append((index, text))
    number = np.full(len(noted), int(device.name.rpartition(":")[2]), dtype=np.int64)
    time_ns = trace.time_ns[np.array([index for index, _ in noted], dtype=np.int64)]
    return time_ns, number, ["annotation"] * len(noted), [text for _, text in noted]
