"""A trace as tables of a run: ``events`` and ``collectives``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zprof.collectors.kineto.arguments import Arguments, number
from zprof.collectors.kineto.gloo import gloo_rows
from zprof.collectors.kineto.groups import GroupNames
from zprof.collectors.kineto.nccl import nccl_rows
from zprof.collectors.kineto.ranged import ranged_rows
from zprof.collectors.kineto.rows import (
    CollectiveRow,
    Identity,
    RangeSpan,
    by_identity,
    collective_columns,
    range_spans,
)
from zprof.collectors.kineto.trace import TraceColumns
from zprof.model.gaps import Gap
from zprof.run.ranges import RangeVerb

#: The profiler's bookkeeping about itself.
_NOT_EVENTS = frozenset({"Trace", ""})
_NOTHING = Arguments()
Tables = dict[str, Mapping[str, Sequence[Any]]]


def convert(trace: TraceColumns) -> tuple[Tables, list[Gap]]:
    """The tables that a trace fills, and what in it could not be used."""
    spans = range_spans(trace)
    used = {span.range.group for span in spans if span.range.group is not None}
    groups = GroupNames(trace.groups, trace.world_size, used)
    ranged, range_gaps = ranged_rows(spans, groups)
    joined, gloo_gaps = gloo_rows(trace, spans, groups)
    rows = _with_ranges([*ranged, *joined, *nccl_rows(trace, groups)], spans, groups)
    tables: Tables = {"events": event_columns(trace), "collectives": collective_columns(rows)}
    return tables, range_gaps + gloo_gaps


def event_columns(trace: TraceColumns) -> dict[str, Any]:
    """The ``events`` table, by start."""
    rows = [row for row, category in enumerate(trace.category) if category not in _NOT_EVENTS]
    rows.sort(key=lambda row: int(trace.start_ns[row]))
    arguments = [trace.arguments.get(row, _NOTHING) for row in rows]
    return {
        "start_ns": trace.start_ns[rows],
        "duration_ns": trace.duration_ns[rows],
        "category": [trace.category[row] for row in rows],
        "name": [trace.name[row] for row in rows],
        "thread": trace.thread[rows],
        "stream": [number(entry.stream) for entry in arguments],
        "correlation": [number(entry.correlation) for entry in arguments],
    }


def _with_ranges(
    rows: Sequence[CollectiveRow], spans: Sequence[RangeSpan], groups: GroupNames
) -> list[CollectiveRow]:
    """Launch and wait times from the ranges that name the same collective."""
    launches = _by_row(by_identity(spans, RangeVerb.LAUNCH), groups)
    waits = _by_row(by_identity(spans, RangeVerb.WAIT), groups)
    return [_with_range(row, launches, waits) for row in rows]


def _by_row(found: Mapping[Identity, RangeSpan], groups: GroupNames) -> dict[Identity, RangeSpan]:
    """Ranges keyed as rows are: by the group's resolved name."""
    return {(groups.resolve(key[0])[0], key[1], key[2]): span for key, span in found.items()}


def _with_range(
    row: CollectiveRow, launches: Mapping[Identity, RangeSpan], waits: Mapping[Identity, RangeSpan]
) -> CollectiveRow:
    if row.method.endswith("_order"):
        return row
    key = row.group, row.sequence, row.kind
    launch, wait = launches.get(key), waits.get(key)
    if launch is not None:
        row = replace(row, launch_start_ns=launch.start_ns, launch_end_ns=launch.end_ns)
    if wait is not None:
        row = replace(row, wait_start_ns=wait.start_ns, wait_end_ns=wait.end_ns)
    return row
