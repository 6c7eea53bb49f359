"""Build the tables that break collectives down: message sizes, units (wrapped modules), link fits.

In a wide terminal the tables are side by side, so the columns shown depend on the width of the table itself.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from zprof.model.leaves import read_value
from zprof.model.time import LinkFit, MessageSizes, Time, UnitTime
from zprof.reports.presenters.time_figures import (
    select_most_exposed_messages,
    select_most_exposed_units,
    select_sized_messages,
    sort_fits_by_messages,
)
from zprof.reports.table import Cell, Column, Kind, Row, Table
from zprof.tui.presenters.communication import format_group, has_groups, make_bytes_cell
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import MAX_LINES, LazyRows, format_truncation

_SQUARE, _MAX_SQUARES = "■", 8
#: Terminal columns that a group column takes from the others.
_GROUP_COLUMN_WIDTH = 18
_NEVER_SHOWN = 1 << 30
_LATENCY_NOTE = "latency as observed by the ranks, including scheduling delays"
Entry = TypeVar("Entry", MessageSizes, UnitTime, LinkFit)


def build_sizes_table(loaded: LoadedRun) -> Table:
    """Build the table of messages by size in powers of four: the most exposed ones, by kind and size."""
    time = loaded.report.time
    known, several_groups = select_sized_messages(time), has_groups(time)
    entries = select_most_exposed_messages(known, MAX_LINES)
    scale = max((entry.count for entry in entries), default=0.0) / _MAX_SQUARES
    return Table(
        name="sizes",
        title="message sizes",
        columns=_make_size_columns(_GROUP_COLUMN_WIDTH if several_groups else 0, time),
        rows=_make_lines(
            "messages",
            time.messages,
            entries,
            lambda entry, path: _make_size_cells(loaded, entry, path, scale),
        ),
        help="Number of messages per size range (powers of four), their exposed time, and the bus bandwidth "
        "that they reached. Small messages are latency-bound; see the link fit.",
        note=format_truncation(len(entries), len(known), "most exposed") if known else "sizes unknown",
    )


def _make_size_columns(group_width: int, time: Time) -> tuple[Column, ...]:
    return (
        Column(title="collective", kind=Kind.TEXT),
        _make_group_column(group_width),
        Column(title="from", help="lower bound of the size, in bytes"),
        Column(title="below", help="upper bound of the size, in bytes", from_width=69 + group_width),
        Column(title="n", help=f"messages {time.basis} and rank"),
        Column(title="", kind=Kind.TEXT, help="number of messages, to scale", from_width=62 + group_width),
        Column(title="exposed", help="in ms, wait and transfer"),
        Column(title="bus", help="bus bandwidth"),
    )


def _make_group_column(group_width: int) -> Column:
    """Return the group column, hidden if there is a single group, which is part of the title."""
    return Column(title="group", kind=Kind.TEXT, from_width=0 if group_width else _NEVER_SHOWN)


def _make_size_cells(loaded: LoadedRun, entry: MessageSizes, path: str, scale: float) -> tuple[Cell, ...]:
    squares = max(1, round(entry.count / scale)) if entry.count > 0 else 0
    return (
        entry.kind,
        format_group(entry.group),
        read_value(loaded.report, f"{path}.at_least_bytes"),
        read_value(loaded.report, f"{path}.below_bytes"),
        read_value(loaded.report, f"{path}.count"),
        (_SQUARE * squares),
        read_value(loaded.report, f"{path}.exposed_ns", in_ms=True),
        read_value(loaded.report, f"{path}.busbw_bytes_per_s"),
    )


def build_units_table(loaded: LoadedRun) -> Table:
    """Build the table of wrapped modules, the one with the most exposed collectives first."""
    time = loaded.report.time
    entries = select_most_exposed_units(time, MAX_LINES)
    return Table(
        name="units",
        title="units (wrapped modules), most exposed first",
        columns=_make_unit_columns(_GROUP_COLUMN_WIDTH if has_groups(time) else 0, time),
        rows=_make_lines(
            "units",
            time.units,
            entries,
            lambda entry, path: _make_unit_cells(loaded, entry, path),
        ),
        help=f"Exposed time by the wrapped module that a collective belongs to: sum {time.basis}, averaged "
        "over the loaded ranks of the group.",
        note=format_truncation(len(entries), len(time.units), "first")
        if entries
        else "the modules of the collectives are unknown",
    )


def _make_unit_columns(group_width: int, time: Time) -> tuple[Column, ...]:
    return (
        Column(title="unit", kind=Kind.TEXT, help="the wrapped module"),
        Column(title="collective", kind=Kind.TEXT),
        _make_group_column(group_width),
        Column(title="n", help=f"collectives {time.basis}", from_width=74 if group_width else 0),
        Column(title="bytes", help="size of the full (unsharded) tensors", from_width=72 + group_width),
        Column(title="exp. wait", help="exposed wait, in ms"),
        Column(title="exp. transfer", help="exposed transfer, in ms"),
    )


def _make_unit_cells(loaded: LoadedRun, entry: UnitTime, path: str) -> tuple[Cell, ...]:
    return (
        entry.unit,
        entry.kind,
        format_group(entry.group),
        read_value(loaded.report, f"{path}.count"),
        make_bytes_cell(loaded, f"{path}.bytes", entry.kind, entry.bytes),
        read_value(loaded.report, f"{path}.exposed_wait_ns", in_ms=True),
        read_value(loaded.report, f"{path}.exposed_transfer_ns", in_ms=True),
    )


def build_fits_table(loaded: LoadedRun) -> Table:
    """Build the table of fitted latencies and bandwidths, for links with messages of several sizes."""
    time = loaded.report.time
    entries = sort_fits_by_messages(time, MAX_LINES)
    return Table(
        name="fits",
        title="link fit: time = latency + bytes / bandwidth",
        columns=_make_fit_columns(_GROUP_COLUMN_WIDTH if has_groups(time) else 0),
        rows=_make_lines(
            "fits", time.fits, entries, lambda entry, path: _make_fit_cells(loaded, entry, path)
        ),
        help="Linear fit of message time (last start to first end) against message size. Latency and "
        "bandwidth cannot be separated if all messages have the same size. The latency is the one observed "
        "by the ranks: it includes scheduling and thread wake-up delays and may be many times the latency of "
        "the link.",
        note=f"{format_truncation(len(entries), len(time.fits), 'first')}{_LATENCY_NOTE}"
        if entries
        else _explain_no_fit(time),
    )


def _explain_no_fit(time: Time) -> str:
    has_sizes = any(entry.bytes > 0 for entry in time.collectives)
    return "too few messages, or all of the same size" if has_sizes else "sizes unknown"


def _make_fit_columns(group_width: int) -> tuple[Column, ...]:
    return (
        Column(title="collective", kind=Kind.TEXT),
        _make_group_column(group_width),
        Column(title="latency", help="per message, as observed by the ranks; includes scheduling delays"),
        Column(title="bus", help="fitted bus bandwidth"),
        Column(title="algorithm", help="bandwidth as seen by the caller", from_width=69 + group_width),
        Column(title="share", help="share of the messages' time that is latency; larger messages reduce it"),
        Column(title="error", help="fit residual: median of |measured - fitted| / measured", from_width=60),
        Column(
            title="messages",
            help="number of messages, each counted once for all ranks; excludes the first of the window",
            from_width=79 + group_width,
        ),
        Column(title="sizes", help="number of distinct sizes", from_width=86 + group_width),
    )


def _make_fit_cells(loaded: LoadedRun, entry: LinkFit, path: str) -> tuple[Cell, ...]:
    return (
        entry.kind,
        format_group(entry.group),
        read_value(loaded.report, f"{path}.latency_ns"),
        read_value(loaded.report, f"{path}.busbw_bytes_per_s"),
        read_value(loaded.report, f"{path}.algbw_bytes_per_s"),
        read_value(loaded.report, f"{path}.latency_share_ratio"),
        read_value(loaded.report, f"{path}.residual_ratio"),
        read_value(loaded.report, f"{path}.messages"),
        read_value(loaded.report, f"{path}.sizes"),
    )


def _make_lines(
    name: str,
    report_entries: Sequence[Entry],
    shown_entries: Sequence[Entry],
    make_cells: Callable[[Entry, str], tuple[Cell, ...]],
) -> LazyRows:
    """Return lazy lines of the shown entries, each with its path in the report."""
    indices = {id(entry): index for index, entry in enumerate(report_entries)}

    def make_line(number: int) -> Row:
        entry = shown_entries[number]
        path = f"time.{name}[{indices[id(entry)]}]"
        return Row(key=path, cells=make_cells(entry, path))

    return LazyRows(len(shown_entries), make_line)
