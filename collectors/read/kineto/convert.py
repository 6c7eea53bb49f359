"""Convert a trace into the tables ``events`` and ``collectives`` of a run.

Columns of ``events`` are passed as arrays, not as Python objects. Collectives come from ``::comm`` ranges
(method "range"), from gloo, and from the device.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from zprof.collectors.read.kineto.annotations import (
    Identity,
    RangeSpan,
    find_engine_ranges,
    get_collective_key,
    index_by_collective,
)
from zprof.collectors.read.kineto.collectives import CollectiveRow, build_collective_columns
from zprof.collectors.read.kineto.device.rows import (
    find_device_collectives,
    list_described_groups,
    make_device_rows,
)
from zprof.collectors.read.kineto.gloo.rows import make_gloo_rows
from zprof.collectors.read.kineto.process_groups import GroupResolver
from zprof.collectors.read.kineto.trace import ABSENT, Int64s, ReadReport, TextColumn, Trace
from zprof.model.collectives import CollectiveKind
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.run.ranges import RangeVerb
from zprof.run.table_reader import make_array, make_masked, make_texts

COPY_AGAIN = "copy the file again, or export the trace again"
Tables = dict[str, Mapping[str, Sequence[Any]]]
_MESSAGES = (CollectiveKind.SEND, CollectiveKind.RECV)
#: Categories used by the profiler for its own bookkeeping.
_NOT_EVENTS = ("Trace", "")
#: Thread of events whose ``tid`` is not a number.
_NO_THREAD = -1
BY_COMM_RANGE = "range"
#: Described groups of a rank, and characters of a description, that are kept.
MAX_GROUPS, MAX_DESCRIPTION = 4096, 200


def convert_trace(trace: Trace) -> tuple[Tables, list[Gap]]:
    """Return the tables of a trace, and gaps for the parts that could not be used.

    Columns of ``events`` are pyarrow and numpy arrays.
    """
    collectives, _, gaps = convert_collectives(trace)
    return {"events": build_event_columns(trace), "collectives": collectives}, gaps


def convert_collectives(trace: Trace) -> tuple[dict[str, list[Any]], dict[str, list[Any]], list[Gap]]:
    """Return the columns of ``collectives`` and of ``process_group``, and gaps for what could not be used."""
    spans = find_engine_ranges(trace)
    device_collectives = find_device_collectives(trace, spans)
    header = trace.header
    described = list_described_groups(device_collectives)
    groups = GroupResolver(header.groups, header.world_size, header.rank, described)
    range_rows, range_gaps = make_range_rows(spans, groups)
    gloo_rows, gloo_gaps = make_gloo_rows(trace, spans, groups)
    device_rows, device_gaps = make_device_rows(trace, device_collectives, groups)
    # Launch and wait times come from the ranges of the same collective.
    launches = _key_by_group_name(index_by_collective(spans, RangeVerb.LAUNCH), groups)
    waits = _key_by_group_name(index_by_collective(spans, RangeVerb.WAIT), groups)
    rows = [_add_times_to_row(row, launches, waits) for row in (*range_rows, *gloo_rows, *device_rows)]
    gaps = range_gaps + gloo_gaps + device_gaps
    return build_collective_columns(rows), _describe_groups(trace, groups), gaps


def _describe_groups(trace: Trace, groups: GroupResolver) -> dict[str, list[Any]]:
    """Return the columns of ``process_group``: the described groups, by their name in ``collectives``."""
    described = [(groups.resolve(group.name)[0], group.description) for group in trace.header.groups]
    known = [(name, text[:MAX_DESCRIPTION]) for name, text in described if text][:MAX_GROUPS]
    return {"group": [name for name, _ in known], "description": [text for _, text in known]}


class SequenceNumbers:
    """Continue the numbering of collectives across the chunks of a window, if the numbers are positions in a
    trace.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[Any, ...], int] = {}

    def continue_in(self, tables: Tables) -> None:
        """Add the counts of earlier chunks to the numbers of ``collectives``."""
        columns = tables["collectives"]
        sequences = list(columns["sequence"])
        following = dict(self._next)
        rows = zip(columns["group"], columns["kind"], columns["peer_rank"], columns["method"], strict=True)
        for row, (group, kind, peer, method) in enumerate(rows):
            if not method.endswith("_order"):
                continue
            key = (group, kind, peer) if kind in _MESSAGES else (group,)
            sequences[row] += self._next.get(key, 0)
            following[key] = max(following.get(key, 0), sequences[row] + 1)
        self._next = following
        tables["collectives"] = {**columns, "sequence": sequences}


def list_read_gaps(report: ReadReport) -> list[Gap]:
    """Return a gap for each kind of damage found while reading a trace."""
    counts = {
        "trace_trailing_bytes": report.trailing_bytes,
        "trace_cut_short": report.cut_short,
        "trace_repaired": report.repaired,
        "trace_dropped": report.dropped,
        "trace_without_time": report.without_time,
        "trace_without_name": report.without_name,
        "trace_names_dropped": report.dropped_names + report.dropped_arguments,
        "trace_resolution": report.resolution_ns if report.resolution_ns > 1 else 0,
    }
    return [make_gap(key, count=count, events=report.events) for key, count in counts.items() if count]


def _key_by_group_name(
    spans_by_key: Mapping[Identity, RangeSpan], groups: GroupResolver
) -> dict[Identity, RangeSpan]:
    """Return the ranges keyed like rows, by the group's resolved name."""
    return {(groups.resolve(key[0])[0], key[1], key[2]): span for key, span in spans_by_key.items()}


def _add_times_to_row(
    row: CollectiveRow, launches: Mapping[Identity, RangeSpan], waits: Mapping[Identity, RangeSpan]
) -> CollectiveRow:
    if row.method.endswith("_order"):
        return row
    key = row.group, row.sequence, row.kind
    launch, wait = launches.get(key), waits.get(key)
    # For device work, the launch call is more precise than the range around it.
    if launch is not None and row.stream is None:
        row = replace(row, launch_start_ns=launch.start_ns, launch_end_ns=launch.end_ns)
    if wait is not None:
        row = replace(row, wait_start_ns=wait.start_ns, wait_end_ns=wait.end_ns)
    return row


def build_event_columns(trace: Trace) -> dict[str, Any]:
    """Return the columns of ``zprof.run.schema.EVENTS``."""
    rows = _order_events(trace)
    return {
        "start_ns": trace.start_ns[rows],
        "duration_ns": trace.duration_ns[rows],
        "category": _encode_texts(trace.category, rows),
        "name": _encode_texts(trace.name, rows),
        "thread": np.where(trace.thread[rows] == ABSENT, _NO_THREAD, trace.thread[rows]),
        "stream": _nullable_numbers(trace.stream[rows]),
        "correlation": _nullable_numbers(trace.correlation[rows]),
        "external_id": _nullable_numbers(trace.external_id[rows]),
        "bytes": _nullable_numbers(trace.bytes[rows]),
    }


def _order_events(trace: Trace) -> Int64s | slice:
    """Return the rows of all events by start; a full slice, without a copy, if they are sorted already."""
    events = trace.category.where(lambda category: category not in _NOT_EVENTS)
    start = trace.start_ns
    if events.all():
        is_sorted = bool((start[1:] >= start[:-1]).all())
        return slice(None) if is_sorted else np.argsort(start, kind="stable")
    rows = np.flatnonzero(events)
    return rows[np.argsort(start[rows], kind="stable")]


def _encode_texts(column: TextColumn, rows: Int64s | slice) -> pa.DictionaryArray:
    codes = make_array(column.codes[rows], pa.int32())
    # Replace lone surrogates, which UTF-8 cannot encode, with question marks.
    return pa.DictionaryArray.from_arrays(
        codes,
        make_texts(
            [
                text.encode("utf-8", "replace").decode() if not text.isascii() else text
                for text in column.texts
            ]
        ),
    )


def _nullable_numbers(values: Int64s) -> pa.Array:
    return make_masked(values, pa.int64(), values == ABSENT)


def make_range_rows(
    spans: Sequence[RangeSpan], groups: GroupResolver
) -> tuple[list[CollectiveRow], list[Gap]]:
    """Return a row for each ``::comm`` range. Size and type may come from the launch range."""
    launches = index_by_collective(spans, RangeVerb.LAUNCH)
    rows, incomplete = [], 0
    for span in spans:
        if span.range.verb is not RangeVerb.COMM:
            continue
        key = get_collective_key(span.range)
        launch = launches.get(key) if key is not None else None
        size = span.range.bytes if span.range.bytes is not None or launch is None else launch.range.bytes
        if key is None or size is None:
            incomplete += 1
            continue
        name, group_size = groups.resolve(key[0])
        rows.append(
            CollectiveRow(
                kind=key[2],
                group=name,
                group_size=group_size,
                sequence=key[1],
                dtype=span.range.dtype or (launch.range.dtype if launch else None) or "unknown",
                bytes=size,
                start_ns=span.start_ns,
                end_ns=span.end_ns,
                unit=span.range.unit or (launch.range.unit if launch else None),
                method=BY_COMM_RANGE,
            )
        )
    return rows, [make_gap("ranges_incomplete", ranges=incomplete)] if incomplete else []
