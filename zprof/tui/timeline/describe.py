"""Words for what is under the cursor: a few lines for the screen, all of it for a window.

Times here are of single events, not leaves of the report.  All names are made printable.
"""

from collections.abc import Mapping

from zprof.model.kernels import function_name
from zprof.model.printable import printable, shorten
from zprof.model.units import format_bytes, format_ns, format_percent
from zprof.tui.timeline.collective_words import (
    LONGEST,
    Row,
    at_ms,
    collective_lines,
    collective_name,
    fact,
    waited_and_moved,
)
from zprof.tui.timeline.cover import Role
from zprof.tui.timeline.gaps import Gap, gap_at
from zprof.tui.timeline.items import Kind
from zprof.tui.timeline.lane import Lane, LaneKind
from zprof.tui.timeline.model import Event, StepModel
from zprof.tui.timeline.spot import Spot

ROLE_NAMES: Mapping[Role, str] = {
    Role.COMPUTE: "compute",
    Role.TRANSFER: "exposed transfer",
    Role.WAIT: "exposed wait",
    Role.HIDDEN: "hidden communication",
    Role.MEMCPY: "copies",
    Role.UNEXPLAINED: "unexplained",
    Role.HOST: "other host work",
}
#: Of the ranges and operators around an event so many are named.
_MOST_AROUND = 6
_LONGEST_SHORT = 60


def spot_line(lane: Lane, spot: Spot) -> str:
    """When it is, and what share of it each role holds."""
    parts = [f"{ROLE_NAMES[role]} {format_percent(share)}" for role, share in spot.shares.items()]
    held = ", ".join(parts) or ("names only" if lane.is_named else "nothing ran")
    of = f" of {'the gap' if spot.is_gap else 'the column'}" if parts else ""
    return f"{at_ms(spot.begin_ns)}, {format_ns(spot.column_ns)} a column, {lane.title}: {held}{of}"


def item_line(model: StepModel, lane: Lane, spot: Spot) -> str:
    """The event under the cursor in a line."""
    place = spot.place
    if place is None:
        return ""
    more = f" (1 of {spot.count} events in this column)" if spot.count > 1 else ""
    row = int(lane.items.row[place])
    start, end = int(lane.items.start_ns[place]), int(lane.items.end_ns[place])
    name = shorten(_short_name(model, lane, row), _LONGEST_SHORT)
    return f"{name}: {format_ns(end - start)} from {at_ms(start)}{more}"


def gap_line(model: StepModel, gap: Gap | None) -> str:
    """An exposed gap, and what blocks the rank in it."""
    if gap is None:
        return ""
    said = (
        f"exposed gap {gap.place + 1} of {gap.count}: {format_ns(gap.length_ns)} from {at_ms(gap.begin_ns)}"
    )
    if gap.collective is None:
        return f"{said}, by no collective of this step"
    row = model.collectives.iloc[gap.collective].to_dict()
    return f"{said}, by {collective_name(row)} ({waited_and_moved(row)})"


def opened(model: StepModel, lane: Lane, place: int) -> tuple[str, str]:
    """Title and text of a window on an event."""
    row = int(lane.items.row[place])
    start, end = int(lane.items.start_ns[place]), int(lane.items.end_ns[place])
    if lane.kind is LaneKind.COLLECTIVES:
        return _name(model, lane, row), "\n".join(collective_lines(model.collectives.iloc[row].to_dict()))
    if lane.is_named:
        said = [fact("start", at_ms(start)), fact("duration", format_ns(end - start))]
        return _name(model, lane, row), "\n".join(said)
    event = model.event(row)
    lines = [fact("name", event.name[:LONGEST]), *_event(model, event), *_around(model, lane, place)]
    if lane.items.kind[place] in (Kind.COLLECTIVE, Kind.WAIT):
        found = _same(model, start, end)
        lines += ["", *collective_lines(found)] if found is not None else []
    else:
        lines += _held_up_before(model, lane, place)
    return _short_name(model, lane, row), "\n".join(lines)


def _short_name(model: StepModel, lane: Lane, row: int) -> str:
    """Of a kernel the function alone, without its types."""
    name = _name(model, lane, row)
    return (function_name(name) or name) if lane.kind is LaneKind.STREAM else name


def _name(model: StepModel, lane: Lane, row: int) -> str:
    if lane.kind is LaneKind.COLLECTIVES:
        return collective_name(model.collectives.iloc[row].to_dict())
    if lane.is_named:
        return printable(lane.names[row])
    return printable(str(model.events.column("name")[row].as_py())[:LONGEST])


def _event(model: StepModel, event: Event) -> list[str]:
    where = f"stream {event.stream}" if event.stream is not None else f"thread {event.thread}"
    lines = [
        fact("category", f"{event.category} on {where}"),
        fact("start", f"{at_ms(event.start_ns)} since the begin of the step"),
        fact("duration", format_ns(event.duration_ns)),
    ]
    if event.bytes is not None:
        lines.append(fact("bytes", format_bytes(event.bytes)))
    launch = model.launch_of(event)
    if launch is not None:
        delay = format_ns(event.start_ns - launch.start_ns)
        lines.append(fact("launch", f"{launch.name} at {at_ms(launch.start_ns)}, {delay} before its start"))
    elif event.stream is not None:
        lines.append(fact("launch", "not in the trace"))
    return lines


def _around(model: StepModel, lane: Lane, place: int) -> list[str]:
    around = lane.items.around(place)
    names = [_name(model, lane, int(lane.items.row[outer])) for outer in around[:_MOST_AROUND]]
    if len(around) > _MOST_AROUND:
        names.append(f"and {len(around) - _MOST_AROUND} more")
    return [fact("" if number else "within", name) for number, name in enumerate(names)]


def _held_up_before(model: StepModel, lane: Lane, place: int) -> list[str]:
    """The exposed gap that ends between the work before on this lane and this event."""
    start = int(lane.items.start_ns[place])
    work = lane.items.kind == Kind.COMPUTE
    work &= lane.items.end_ns <= start
    before = int(lane.items.end_ns[work].max(initial=0))
    gap = gap_at(model, before, start) if lane.items.kind[place] == Kind.COMPUTE and start > before else None
    return [fact("waited for", gap_line(model, gap))] if gap is not None else []


def _same(model: StepModel, start: int, end: int) -> Row | None:
    """The collective that an event of a stream or a thread carries out, or waits for."""
    rows = model.collectives
    exact = rows[(rows["start_ns"] == start) & (rows["end_ns"] == end)]
    waits = rows[rows["wait_start_ns"] == start]
    inside = rows[(rows["start_ns"] < end) & (rows["end_ns"] > start)]
    for found in (exact, waits, inside):
        if len(found):
            row: Row = found.iloc[0].to_dict()
            return row
    return None
