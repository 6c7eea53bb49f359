"""A trace as tables of a run: ``events`` and ``collectives``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zprof.collectors.kineto.collectives.groups import GroupNames
from zprof.collectors.kineto.collectives.ranged import ranged_rows
from zprof.collectors.kineto.collectives.rows import CollectiveRow, collective_columns
from zprof.collectors.kineto.collectives.spans import Identity, RangeSpan, by_identity, range_spans
from zprof.collectors.kineto.columns import ReadReport, Trace
from zprof.collectors.kineto.device.rows import device_rows, find_device_collectives
from zprof.collectors.kineto.events import event_columns
from zprof.collectors.kineto.gloo.fifo import gloo_rows
from zprof.model.gaps import Gap
from zprof.run.ranges import RangeVerb

COPY_AGAIN = "copy the file again, or export the trace again"
Tables = dict[str, Mapping[str, Sequence[Any]]]


def convert(trace: Trace) -> tuple[Tables, list[Gap]]:
    """The tables that a trace fills, and what in it could not be used.

    Columns of ``events`` are arrays of pyarrow and numpy.
    """
    spans = range_spans(trace)
    on_device = find_device_collectives(trace, spans)
    header = trace.header
    groups = GroupNames(header.groups, header.world_size, header.rank, on_device.groups())
    ranged, range_gaps = ranged_rows(spans, groups)
    joined, gloo_gaps = gloo_rows(trace, spans, groups)
    carried, device_gaps = device_rows(trace, on_device, groups)
    rows = _with_ranges([*ranged, *joined, *carried], spans, groups)
    tables: Tables = {"events": event_columns(trace), "collectives": collective_columns(rows)}
    return tables, range_gaps + gloo_gaps + device_gaps


def report_gaps(report: ReadReport) -> list[Gap]:
    """Say what of a trace could not be read, or not as it stands there: one gap for each reason."""
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
    return [Gap(what="trace file", reason=reason, remedy=remedy) for reason, remedy in met]


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
    if launch is not None and row.stream is None:  # a device's call is nearer than the range around it
        row = replace(row, launch_start_ns=launch.start_ns, launch_end_ns=launch.end_ns)
    if wait is not None:
        row = replace(row, wait_start_ns=wait.start_ns, wait_end_ns=wait.end_ns)
    return row
