"""Build the communication section: collectives by kind, group and type, bytes per step, clock alignment."""

from zprof.model.leaves import take_value
from zprof.model.quantities import Unit, Value
from zprof.model.report import Report
from zprof.model.time import CollectiveTime
from zprof.reports.page import Note, Section, make_section
from zprof.reports.presenters.run_formatting import group_name
from zprof.reports.presenters.time_formatting import (
    describe_alignment,
    describe_volume,
    take_message_bytes,
)
from zprof.reports.table import Cell, Column, Kind, Table, make_name_column, make_number_columns, make_table


def build_communication_section(report: Report) -> tuple[Section, ...]:
    """Build the section; empty if no collective was recorded (the gaps give the reason)."""
    return make_section(
        "communication",
        "Communication",
        "Collectives by kind and process group.",
        _build_collective_table(report),
        *(Note(text=line) for line in _list_sentences(report)),
    )


def _build_collective_table(report: Report) -> Table | None:
    collectives = report.time.collectives
    groups = list(dict.fromkeys((entry.group, entry.dtype) for entry in collectives))
    ordered = sorted(
        range(len(collectives)),
        key=lambda index: groups.index((collectives[index].group, collectives[index].dtype)),
    )
    has_bounds = any(entry.bound for entry in collectives)
    has_parallel_groups = len({entry.group for entry in collectives}) > 1
    return make_table(
        "Collectives",
        (
            make_name_column("kind"),
            make_name_column("group", lifted=True),
            Column(title="type", kind=Kind.NAME, lifted=True),
            *make_number_columns("count", unit=report.time.basis),
            *make_number_columns("size", unit="bytes"),
            *make_number_columns("total", "exposed", unit="ms"),
            *make_number_columns("hidden", unit="ms", wide=True),
            *make_number_columns("wait", "transfer", unit="ms"),
            *make_number_columns("launch delay", unit="median", wide=True),
            *make_number_columns("bandwidth", unit="bytes/s", wide=True),
            *make_number_columns("bus bandwidth", unit="bytes/s"),
        ),
        [_make_collective_row(collectives[index]) for index in ordered],
        unit="ms",
        note=f"{report.time.basis}, mean of the ranks of the group",
        notes=[
            *["Waits with ≥ and transfers with ≤ are bounds: not all ranks of the group could be compared."]
            * has_bounds,
            *["Each row is per rank of its group. Groups of other ranks run in parallel: rows do not add up."]
            * has_parallel_groups,
        ],
        order=sorted(range(len(ordered)), key=ordered.__getitem__),
        noun="rows, most exposed time first",
    )


def _make_collective_row(entry: CollectiveTime) -> tuple[Cell, ...]:
    return (
        entry.kind,
        group_name(entry.group),
        entry.dtype,
        take_value(entry, "count"),
        take_message_bytes(entry),
        take_value(entry, "total_ns", in_ms=True),
        take_value(entry, "exposed_ns", in_ms=True),
        Value(entry.total_ns - entry.exposed_ns, Unit.NS, in_ms=True),
        take_value(entry, "wait_ns", in_ms=True),
        take_value(entry, "transfer_ns", in_ms=True),
        take_value(entry, "launch_delay_ns"),
        take_value(entry, "algbw_bytes_per_s"),
        take_value(entry, "busbw_bytes_per_s"),
    )


def _list_sentences(report: Report) -> tuple[str, ...]:
    volume = () if report.volume is None else (describe_volume(report),)
    alignment = report.time.alignment
    if alignment is None or len(report.time.per_rank) < 2:
        return volume
    return (*volume, *describe_alignment(alignment))
