"""Build the table of the most exposed individual collectives of one kind, group and element type."""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.tables import make_collective_table, pick_most_exposed, select_rows
from zprof.model.metrics.metric import find_unit
from zprof.model.quantities import Bound, Bounds, Value
from zprof.model.time import SPLIT_BOUNDS, CollectiveTime, LateReason
from zprof.reports.pages.collectives import name_collective
from zprof.reports.table import Cell, Column, Kind, Row, Table

MAX_INSTANCES = 200


def build_instance_table(analysis: RunAnalysis, entry: CollectiveTime) -> Table:
    """Build the table of instances of one row of the collectives, most exposed first.

    Its numbers do not appear in the report.
    """
    rows = select_rows(analysis, entry)
    worst = make_collective_table(analysis, pick_most_exposed(rows, MAX_INSTANCES))
    return Table(
        name="instances",
        title=name_collective(entry),
        columns=_COLUMNS,
        rows=tuple(
            Row(key=str(number), cells=_make_cells(row))
            for number, row in enumerate(worst.to_dict("records"))
        ),
        help=_HELP,
        note=f"{len(worst)} of {len(rows)}, most exposed first; {_format_matched(rows)}; ? explains why late",
    )


_HELP = (
    "One row per rank and collective: a collective that runs once per step on 2 ranks has 2 rows per step. "
    "wait: until the last rank of the group arrived; transfer: after that; exposed: the part of both during "
    "which the rank was blocked.\nlast: the rank that arrived last; tied: all arrived within the clock "
    "uncertainty; unknown: not all ranks were matched.\nwhy late: what the last rank spent more time on "
    "beforehand than the others: compute, host (Python, launches), previous collective (it finished that one "
    "late), copies, allocator, sync, data; profiler start: the first collective of the window, which is not "
    "meaningful; blank: no rank was late, or the reason is unknown.\nIf not all ranks are matched, waits are "
    "lower bounds and transfers upper bounds."
)
#: Reasons whose display text differs from their name.
_REASONS: Mapping[str, str] = {
    LateReason.PREVIOUS_COLLECTIVE: "previous collective",
    LateReason.MEMCPY: "copies",
}
_COLUMNS = (
    Column(
        title="rank",
    ),
    Column(
        title="step",
    ),
    Column(title="unit", kind=Kind.TEXT, help="the wrapped module"),
    Column(
        title="exposed",
        help="in ms",
    ),
    Column(
        title="wait",
        help="in ms, hidden or exposed",
    ),
    Column(
        title="transfer",
        help="in ms, hidden or exposed",
    ),
    Column(title="last", kind=Kind.TEXT, help="the rank that arrived last"),
    Column(title="why late", kind=Kind.TEXT, help="what delayed the last rank; blank: unknown"),
    Column(title="delay from", kind=Kind.TEXT, help="the rank on which the delay started", from_width=100),
    Column(title="start", help="in ms after the start of the step", from_width=100),
    Column(title="bytes", help="of the full tensor", from_width=110),
    Column(title="launch delay", help="from launch to start", from_width=125),
    Column(title="matched", kind=Kind.TEXT, help="yes if the rows of all ranks were found", from_width=140),
)


def _make_cells(row: Mapping[Hashable, Any]) -> tuple[Cell, ...]:
    bounds = SPLIT_BOUNDS if row["bound"] else {}
    return (
        _make_value(row, "rank"),
        _make_value(row, "step"),
        _to_text(row["unit"]),
        _make_value(row, "exposed_ns", in_ms=True),
        _make_value(row, "wait_ns", bounds, in_ms=True),
        _make_value(row, "transfer_ns", bounds, in_ms=True),
        _format_last_rank(row),
        _format_late_reason(row),
        ("" if pd.isna(row["origin_rank"]) else str(row["origin_rank"])),
        _make_value(row, "start_in_step_ns", in_ms=True),
        _make_value(row, "bytes"),
        _make_value(row, "launch_delay_ns"),
        ("yes" if row["matched"] else "no"),
    )


def _make_value(
    row: Mapping[Hashable, Any], name: str, bounds: Bounds | None = None, *, in_ms: bool = False
) -> Value:
    return Value(
        number=None if pd.isna(row[name]) else float(row[name]),
        unit=find_unit(name),
        bound=(bounds or {}).get(name, Bound.EXACT),
        in_ms=in_ms,
    )


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _format_last_rank(row: Mapping[Hashable, Any]) -> str:
    if not pd.isna(row["last_rank"]):
        return str(row["last_rank"])
    return "tied" if row["matched"] else "unknown"


def _format_late_reason(row: Mapping[Hashable, Any]) -> str:
    if row["first_of_window"]:
        return "profiler start"
    reason = _to_text(row["late_reason"])
    return _REASONS.get(reason, reason)


def _format_matched(rows: pd.DataFrame) -> str:
    matched = int(rows["matched"].to_numpy(bool).sum())
    return "all matched" if matched == len(rows) else f"{matched} matched"
