"""Build the bars of exposed time by unit: wait and transfer of each unit's collectives."""

from collections import Counter
from collections.abc import Iterator

from zprof.model.formatting import format_ns
from zprof.model.quantities import Bound, Unit, Value
from zprof.model.report import Report
from zprof.model.time import LEDGER_NAMES, UnitTime
from zprof.reports.page import Bars, LegendEntry, Segment, StackedBar
from zprof.reports.pages.collectives import sort_units
from zprof.reports.pages.names import group_name

MAX_UNITS = 24
#: Field, style class, letter.
_TERMS = (
    ("exposed_wait_ns", "time-exposed-wait", "W"),
    ("exposed_transfer_ns", "time-exposed-transfer", "T"),
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
