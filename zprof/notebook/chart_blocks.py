"""Build what only a notebook draws: the lanes of a step, and the exposed time of each unit.

Lanes are those of the terminal: one role per column of time.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from zprof.analysis.step_timeline.lane import IDLE, ROLE_NAMES, LaneRole, TimelineLane, compute_columns
from zprof.analysis.step_timeline.step_model import StepTimeline
from zprof.base.formatting import format_ns, format_percent, printable, shorten
from zprof.model.quantities import Bound, Unit, Value
from zprof.model.report import Report
from zprof.model.time import LEDGER_NAMES, UnitTime
from zprof.reports.page import Bars, LegendEntry, Segment, StackedBar
from zprof.reports.pages.collectives import sort_units
from zprof.reports.pages.names import group_name
from zprof.reports.svg_charts import LaneChart, LaneSpan

#: Columns that a step is divided into; the drawing is about as many pixels wide.
COLUMNS = 800
#: Names of the lanes of phases and units that are drawn; shorter ones cannot be seen.
_MIN_NAMED_SHARE = 1 / COLUMNS
_MAX_NAME = 60
_COLOURS = {
    LaneRole.COMPUTE: "time-compute",
    LaneRole.TRANSFER: "time-exposed-transfer",
    LaneRole.WAIT: "time-exposed-wait",
    LaneRole.HIDDEN: "time-overlapped",
    LaneRole.MEMCPY: "time-exposed-memcpy",
    LaneRole.UNEXPLAINED: "time-unexplained",
    LaneRole.HOST: "time-host",
}
MAX_UNITS = 24
#: Field, style class, letter.
_TERMS = (
    ("exposed_wait_ns", "time-exposed-wait", "W"),
    ("exposed_transfer_ns", "time-exposed-transfer", "T"),
)


def build_lane_chart(model: StepTimeline, run_name: str) -> LaneChart:
    """Return all lanes of the step; a column shows the role that takes the largest part of it."""
    roles = {role for lane in model.lanes for role in lane.covers}
    notes = [f"{model.omitted_lanes} more streams and threads, the least busy"] if model.omitted_lanes else []
    return LaneChart(
        title=f"{shorten(printable(run_name), 48)}: rank {model.rank}, step {model.step}, "
        f"{format_ns(model.length_ns)}",
        length_ns=model.length_ns,
        lanes=tuple(
            (
                lane.label,
                tuple(_list_names(lane, model.length_ns) if lane.is_named else _list_roles(lane, model)),
            )
            for lane in model.lanes
        ),
        legend=tuple(
            LegendEntry(colour=_COLOURS[role], letter="", name=ROLE_NAMES[role])
            for role in LaneRole
            if role in roles
        ),
        notes=tuple(notes),
    )


def _list_names(lane: TimelineLane, length_ns: int) -> Iterator[LaneSpan]:
    """Yield a box for each phase or unit."""
    items = lane.items
    for start_ns, end_ns, row in zip(
        items.start_ns.tolist(), items.end_ns.tolist(), items.row.tolist(), strict=True
    ):
        start, end = max(0, start_ns) / length_ns, min(length_ns, end_ns) / length_ns
        if end - start >= _MIN_NAMED_SHARE:
            name = shorten(printable(lane.names[row]), _MAX_NAME)
            tooltip = f"{name}: {format_ns(end_ns - start_ns)}"
            yield LaneSpan(start=start, end=end, colour="time-host", text=name, tooltip=tooltip)


def _list_roles(lane: TimelineLane, model: StepTimeline) -> Iterator[LaneSpan]:
    """Yield a box for each run of columns with the same dominant role."""
    edges = np.linspace(0.0, float(model.length_ns), COLUMNS + 1)
    columns = compute_columns(lane, edges)
    changes = np.flatnonzero(np.diff(columns.first)) + 1
    for first, last in zip([0, *changes.tolist()], [*changes.tolist(), COLUMNS], strict=True):
        index = int(columns.first[first])
        if index == IDLE:
            continue
        role = columns.roles[index]
        share = float(columns.shares[index, first:last].mean())
        length = format_ns(round(model.length_ns * (last - first) / COLUMNS))
        yield LaneSpan(
            start=first / COLUMNS,
            end=last / COLUMNS,
            colour=_COLOURS[role],
            tooltip=f"{ROLE_NAMES[role]}: {format_percent(share)} of {length}",
        )


def build_unit_bars(report: Report) -> Bars | None:
    """Build one bar per unit and kind of collective, most exposed first; None if no unit is known.

    Entries of several groups are separate bars: each is a mean over the ranks of its own group.
    """
    time = report.time
    units = sort_units(time)[:MAX_UNITS]
    if not units:
        return None
    longest_ns = max(1, *(unit.exposed_ns for unit in units))
    groups = Counter((unit.unit, unit.kind) for unit in time.units)
    omitted = len(time.units) - len(units)
    return Bars(
        title=f"Exposed time by unit, {time.basis}, mean of the ranks",
        bars=tuple(
            StackedBar(
                name=f"{unit.unit} {unit.kind}"
                + (f", group {group_name(unit.group)}" if groups[unit.unit, unit.kind] > 1 else ""),
                note=format_ns(unit.exposed_ns),
                segments=tuple(_list_segments(unit, longest_ns)),
            )
            for unit in units
        ),
        legend=tuple(
            LegendEntry(colour=colour, letter=letter, name=LEDGER_NAMES[field])
            for field, colour, letter in _TERMS
        ),
        notes=(f"{omitted} more with less exposed time",) if omitted else (),
    )


def _list_segments(unit: UnitTime, longest_ns: int) -> Iterator[Segment]:
    start = 0.0
    for field, colour, letter in _TERMS:
        time_ns: int = getattr(unit, field)
        width = 100 * time_ns / longest_ns
        if time_ns:
            value = Value(time_ns, Unit.NS, bound=unit.bounds.get(field, Bound.EXACT))
            text = f"{LEDGER_NAMES[field]} {value.text}"
            yield Segment(colour=colour, letter=letter, text=text, start=start, width=width)
        start += width
