"""A snapshot as torch gives it, as tables of a run.  Pure: no file, no torch, nothing but data in it.

    {segments: [{device, address, total_size, ..., blocks: [{address, size, requested_size, state, frames}]}],
     device_traces: [[{action, addr, size, stream, time_us, frames, ...}]], external_annotations: [...]}

(``torch.cuda.memory._snapshot``, ``torch/csrc/cuda/memory_snapshot.cpp``.)  What it does not say becomes
a gap.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from zprof.collectors.snapshot.device import device_tables
from zprof.collectors.snapshot.fields import Budget, Row, damaged, rows_of, sizes
from zprof.collectors.snapshot.gaps import gaps_of
from zprof.collectors.snapshot.held import held_of
from zprof.collectors.snapshot.marks import annotations, last_ns, marks_of
from zprof.collectors.snapshot.stacks import Stacks
from zprof.collectors.snapshot.trace import Trace, trace_of
from zprof.model.gaps import Gap
from zprof.run.schema import TABLES

#: Rows that a snapshot out of this process may have.
_MOST_ROWS = 100_000_000
_MOST_DEVICES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTables:
    """Columns of the tables ``block``, ``segment``, ``stack`` and ``mark``, as Arrow arrays.

    ``history_begin_ns``: by device, when its trace begins; a device without a trace is not in it.
    """

    block: dict[str, Any]
    segment: dict[str, Any]
    stack: dict[str, Any]
    mark: dict[str, Any]
    gaps: tuple[Gap, ...]
    history_begin_ns: dict[str, int]

    def tables(self) -> dict[str, dict[str, Any]]:
        """All of them, by name."""
        return {"block": self.block, "segment": self.segment, "stack": self.stack, "mark": self.mark}


def tables_of(
    snapshot: Mapping[str, Any], *, kind: str = "cuda", most_rows: int = _MOST_ROWS
) -> SnapshotTables:
    """Convert a snapshot; ``kind`` of device is what its devices' names begin with.

    Raises:
        BadInput: it is not as torch writes it, or visiting it takes more than ``most_rows`` rows.
    """
    budget = Budget(most_rows)
    traces = _traces(snapshot, budget)
    segments = _segments(snapshot, budget)
    notes = annotations(snapshot.get("external_annotations", []), budget)
    stacks = Stacks(budget)
    fallback_ns = last_ns(traces, notes)
    devices = [
        device_tables(
            f"{kind}:{number}",
            traces.get(number) or trace_of([], f"{kind}:{number}", budget),
            held_of(segments.get(number, []), f"segments of {kind}:{number}", budget),
            stacks,
            fallback_ns,
        )
        for number in sorted({n for n, trace in traces.items() if trace.rows} | set(segments))
    ]
    return SnapshotTables(
        block=_table("block", [device.block for device in devices]),
        segment=_table("segment", [device.segment for device in devices]),
        stack=_table("stack", [stacks.columns()]),
        mark=_table("mark", [marks_of(devices, notes)]),
        gaps=tuple(gaps_of(devices)),
        history_begin_ns={device.name: device.begin_ns for device in devices if device.trace.rows},
    )


def _traces(snapshot: Mapping[str, Any], budget: Budget) -> dict[int, Trace]:
    if not isinstance(snapshot, Mapping):
        raise damaged(f"it is {type(snapshot).__name__}, not dict")
    if "segments" not in snapshot and "device_traces" not in snapshot:
        raise damaged("neither segments nor device_traces is in it")
    lists = snapshot.get("device_traces", [])
    if type(lists) is not list and type(lists) is not tuple:
        raise damaged(f"device_traces is {type(lists).__name__}, not a list")
    if len(lists) > _MOST_DEVICES:
        raise damaged("device_traces has more devices than a machine")
    return {number: trace_of(each, f"trace of device {number}", budget) for number, each in enumerate(lists)}


def _segments(snapshot: Mapping[str, Any], budget: Budget) -> dict[int, list[Row]]:
    rows = rows_of(snapshot.get("segments", []), "segments", budget)
    found: dict[int, list[Row]] = {}
    for number, row in zip(sizes(rows, "device", "segments", default=0).tolist(), rows, strict=True):
        if number >= _MOST_DEVICES:
            raise damaged("a segment of a device that no machine has")
        found.setdefault(number, []).append(row)
    return found


def _table(name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The parts below each other, as the schema has them."""
    schema = TABLES[name]
    tables = [pa.table({field.name: part[field.name] for field in schema}, schema=schema) for part in parts]
    whole = pa.concat_tables(tables).unify_dictionaries().combine_chunks() if tables else schema.empty_table()
    return {field.name: _single(whole.column(field.name), field.type) for field in schema}


def _single(column: Any, kind: Any) -> Any:
    return (
        column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], kind)])
    )
