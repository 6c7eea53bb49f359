"""Convert a trace into the tables ``events`` and ``collectives`` of a run.

Columns of ``events`` are passed as arrays, not as Python objects. Collectives come from ``::comm`` ranges
(method "range"), from gloo, and from the device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from zprof.collectors.kineto.annotations import (
    Identity,
    RangeSpan,
    find_engine_ranges,
    get_collective_key,
    index_by_collective,
)
from zprof.collectors.kineto.collectives import CollectiveRow, build_collective_columns
from zprof.collectors.kineto.device.rows import find_device_collectives, make_device_rows
from zprof.collectors.kineto.gloo.matching import make_gloo_rows
from zprof.collectors.kineto.process_groups import GroupNames
from zprof.collectors.kineto.trace import ABSENT, Int64s, ReadReport, TextColumn, Trace
from zprof.model.gaps import Gap, GapKind
from zprof.run.ranges import RangeVerb

COPY_AGAIN = "copy the file again, or export the trace again"
Tables = dict[str, Mapping[str, Sequence[Any]]]


def convert_trace(trace: Trace) -> tuple[Tables, list[Gap]]:
    """Return the tables of a trace, and gaps for what in it could not be used.

    Columns of ``events`` are pyarrow and numpy arrays.
    """
    spans = find_engine_ranges(trace)
    on_device = find_device_collectives(trace, spans)
    header = trace.header
    groups = GroupNames(header.groups, header.world_size, header.rank, on_device.groups())
    ranged, range_gaps = make_range_rows(spans, groups)
    joined, gloo_gaps = make_gloo_rows(trace, spans, groups)
    carried, device_gaps = make_device_rows(trace, on_device, groups)
    rows = _add_range_times([*ranged, *joined, *carried], spans, groups)
    tables: Tables = {"events": build_event_columns(trace), "collectives": build_collective_columns(rows)}
    return tables, range_gaps + gloo_gaps + device_gaps


def list_read_gaps(report: ReadReport) -> list[Gap]:
    """Return a gap for each reason why parts of a trace could not be read, or not as written."""
    of_all = f"of {report.events} events"
    counts = (
        (report.repaired, f"{report.repaired} {of_all} were not sound JSON: mended"),
        (report.dropped, f"{report.dropped} {of_all} could not be read: left out"),
        (
            report.timeless,
            f"{report.timeless} {of_all} have no possible time (ts or dur is missing, negative, no number or "
            "beyond any clock, or both are 0): left out, and what ran then counts as nothing",
        ),
        (
            report.nameless,
            f"{report.nameless} {of_all} do not say what they are (name, cat or ph is missing or no text)",
        ),
        (
            report.unkept_names + report.unkept_arguments,
            f"{report.unkept_names + report.unkept_arguments} {of_all} have names or arguments beyond all "
            "bounds: these were not kept",
        ),
    )
    met = [(reason, COPY_AGAIN) for count, reason in counts if count]
    if report.cut_short:
        met.insert(0, ("the file ends within its events: what is there is used", COPY_AGAIN))
    if report.trailing_bytes:
        reason = f"{report.trailing_bytes} bytes after its gzip stream are no part of it: left out"
        met.insert(0, (reason, COPY_AGAIN))
    if report.resolution_ns > 1:
        remedy = "record with torch 2.4 or newer, which writes nanoseconds"
        met.append((f"its times are {report.resolution_ns} ns apart at best", remedy))
    return [Gap(kind=GapKind.FILE, what="trace file", reason=reason, remedy=remedy) for reason, remedy in met]


def _add_range_times(
    rows: Sequence[CollectiveRow], spans: Sequence[RangeSpan], groups: GroupNames
) -> list[CollectiveRow]:
    """Return the rows with launch and wait times of the ranges that name the same collective."""
    launches = _key_by_group_name(index_by_collective(spans, RangeVerb.LAUNCH), groups)
    waits = _key_by_group_name(index_by_collective(spans, RangeVerb.WAIT), groups)
    return [_add_times_to_row(row, launches, waits) for row in rows]


def _key_by_group_name(found: Mapping[Identity, RangeSpan], groups: GroupNames) -> dict[Identity, RangeSpan]:
    """Return the ranges keyed like rows, by the group's resolved name."""
    return {(groups.resolve(key[0])[0], key[1], key[2]): span for key, span in found.items()}


def _add_times_to_row(
    row: CollectiveRow, launches: Mapping[Identity, RangeSpan], waits: Mapping[Identity, RangeSpan]
) -> CollectiveRow:
    if row.method.endswith("_order"):
        return row
    key = row.group, row.sequence, row.kind
    launch, wait = launches.get(key), waits.get(key)
    if (
        launch is not None and row.stream is None
    ):  # the call of device work is tighter than the range around it
        row = replace(row, launch_start_ns=launch.start_ns, launch_end_ns=launch.end_ns)
    if wait is not None:
        row = replace(row, wait_start_ns=wait.start_ns, wait_end_ns=wait.end_ns)
    return row


#: Categories of the profiler's own bookkeeping.
_NOT_EVENTS = ("Trace", "")
#: Thread of events whose ``tid`` is not a number.
_NO_THREAD = -1


def build_event_columns(trace: Trace) -> dict[str, Any]:
    """Return the columns of ``zprof.run.schema.EVENTS``."""
    rows = _order_events(trace)
    return {
        "start_ns": trace.start_ns[rows],
        "duration_ns": trace.duration_ns[rows],
        "category": _encode_texts(trace.category, rows),
        "name": _encode_texts(trace.name, rows),
        "thread": _replace_absent_threads(trace.thread[rows]),
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
        in_order = bool((start[1:] >= start[:-1]).all())
        return slice(None) if in_order else np.argsort(start, kind="stable")
    rows = np.flatnonzero(events)
    return rows[np.argsort(start[rows], kind="stable")]


def _encode_texts(words: TextColumn, rows: Int64s | slice) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(
        pa.array(words.codes[rows]), pa.array(_replace_surrogates(words.texts))
    )


def _replace_surrogates(texts: tuple[str, ...]) -> list[str]:
    """Return texts that UTF-8 can encode: half a surrogate pair becomes a question mark."""
    return [text.encode("utf-8", "replace").decode() if not text.isascii() else text for text in texts]


def _replace_absent_threads(threads: Int64s) -> Int64s:
    return np.where(threads == ABSENT, _NO_THREAD, threads)


def _nullable_numbers(values: Int64s) -> pa.Array:
    return pa.array(values, mask=values == ABSENT)


BY_COMM_RANGE = "range"


def make_range_rows(spans: Sequence[RangeSpan], groups: GroupNames) -> tuple[list[CollectiveRow], list[Gap]]:
    """Return a row for each ``::comm`` range. Size and type may come from the launch range instead."""
    launches = index_by_collective(spans, RangeVerb.LAUNCH)
    rows, unclear = [], 0
    for span in spans:
        if span.range.verb is not RangeVerb.COMM:
            continue
        key = get_collective_key(span.range)
        launch = launches.get(key) if key is not None else None
        size = span.range.bytes if span.range.bytes is not None or launch is None else launch.range.bytes
        if key is None or size is None:
            unclear += 1
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
    return rows, _list_unclear_range_gaps(unclear)


def _list_unclear_range_gaps(unclear: int) -> list[Gap]:
    if not unclear:
        return []
    return [
        Gap(
            kind=GapKind.COLLECTIVES,
            what="ranges of collectives",
            reason=f"{unclear} ::comm ranges do not say kind, pg, seq and bytes",
            remedy="write them as docs/recording.md says",
        )
    ]
