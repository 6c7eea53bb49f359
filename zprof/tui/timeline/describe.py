"""Describe what is under the timeline's cursor: a few lines for the screen, everything for a popup.

Times here are of single events, not leaves of the report. All names are made printable.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from zprof.model.formatting import format_bytes, format_ns, format_percent, printable, shorten
from zprof.model.kernels import parse_function_name
from zprof.model.time import LateReason
from zprof.tui.timeline.lane import Kind, Lane, LaneKind, Role
from zprof.tui.timeline.step_model import Event, ExposedGap, StepModel, find_gap
from zprof.tui.timeline.view import CursorTarget

Row = Mapping[Hashable, Any]
MAX_NAME = 400
_MAX_GROUP = 40


def format_at(time_ns: float) -> str:
    """Format a time since the start of the step."""
    return f"{time_ns / 1e6:+.3f} ms"


def describe_collective(row: Row) -> list[str]:
    """Return lines with everything that the analysis of all ranks knows about a collective."""
    least, most = ("at least ", "at most ") if row["bound"] else ("", "")
    wait = f"{least}{_format_ns_of(row, 'wait_ns')}, of it exposed {_format_ns_of(row, 'exposed_wait_ns')}"
    transfer = (
        f"{most}{_format_ns_of(row, 'transfer_ns')}, of it exposed "
        f"{_format_ns_of(row, 'exposed_transfer_ns')}"
    )
    lines = [
        format_fact("collective", f"{name_collective(row)}, sequence {int(row['sequence'])}"),
        format_fact("group", _format_group(row)),
        format_fact(
            "bytes", f"{format_bytes(int(row['bytes']))} {row['dtype']}" if row["bytes"] else "unknown"
        ),
        format_fact("start", f"{format_at(int(row['start_ns']))} since the begin of the step"),
        format_fact("duration", format_ns(int(row["end_ns"]) - int(row["start_ns"]))),
        format_fact("wait", wait),
        format_fact("transfer", transfer),
        format_fact("hidden", f"{_format_ns_of(row, 'hidden_ns')} under compute"),
        format_fact("last rank", _format_last_rank(row)),
    ]
    if not pd.isna(row["launch_start_ns"]):
        delay = format_ns(int(row["start_ns"]) - int(row["launch_start_ns"]))
        lines.append(
            format_fact("launch", f"at {format_at(int(row['launch_start_ns']))}, {delay} before its start")
        )
    if not pd.isna(row["dependency_ns"]) and row["dependency_ns"]:
        lines.append(
            format_fact(
                "", f"{_format_ns_of(row, 'dependency_ns')} of that behind compute, or another collective"
            )
        )
    return lines


def _format_last_rank(row: Row) -> str:
    if row["last_rank"] < 0:
        return "unknown: not all ranks could be matched"
    blamed = int(row["blamed_rank"])
    if blamed < 0:
        return f"rank {int(row['last_rank'])}, within the clock uncertainty"
    reason = str(row["late_reason"] or LateReason.UNKNOWN).replace("_", " ")
    why = "why is unknown" if reason == LateReason.UNKNOWN else f"for {reason}"
    return f"rank {int(row['last_rank'])}, {format_ns(int(row['last_lateness_ns']))} after the first; {why}"


def _format_group(row: Row) -> str:
    """Format the group's name (long rank lists are shortened) and its size if it was recorded."""
    size = int(row["group_size"])
    return f"{shorten(str(row['group']), _MAX_GROUP)} ({f'{size} ranks' if size > 0 else 'size unknown'})"


def name_collective(row: Row) -> str:
    """Return the collective's kind and unit."""
    unit: str = "" if pd.isna(row["unit"]) else f" of {row['unit']}"
    return printable(f"{row['kind']}{unit}"[:MAX_NAME])


def describe_exposure(row: Row) -> str:
    """Return the exposed part of a collective; if unmatched, its transfer is an upper bound."""
    waited, moved = int(row["exposed_wait_ns"]), int(row["exposed_transfer_ns"])
    late = f" for rank {int(row['last_rank'])}" if waited and row["last_rank"] >= 0 else ""
    parts = [f"waits {format_ns(waited)}{late}"] if waited else []
    most = "at most " if row["bound"] else ""
    return ", ".join([*parts, f"moves {most}{format_ns(moved)}"])


def _format_ns_of(row: Row, name: str) -> str:
    return "unknown" if pd.isna(row[name]) else format_ns(int(row[name]))


def format_fact(name: str, text: str) -> str:
    """Format a line of a popup: name and value."""
    return f"{name:<11} {printable(text)}"


ROLE_NAMES: Mapping[Role, str] = {
    Role.COMPUTE: "compute",
    Role.TRANSFER: "exposed transfer",
    Role.WAIT: "exposed wait",
    Role.HIDDEN: "hidden communication",
    Role.MEMCPY: "copies",
    Role.UNEXPLAINED: "unexplained",
    Role.HOST: "other host work",
}
#: Limit on the enclosing ranges and operators that are listed.
_MAX_ENCLOSING = 6
_MAX_SHORT_NAME = 60


def describe_target(lane: Lane, spot: CursorTarget) -> str:
    """Return time, lane and the share of each role under the cursor."""
    parts = [f"{ROLE_NAMES[role]} {format_percent(share)}" for role, share in spot.shares.items()]
    held = ", ".join(parts) or ("names only" if lane.is_named else "nothing ran")
    of = f" of {'the gap' if spot.is_gap else 'the column'}" if parts else ""
    return f"{format_at(spot.begin_ns)}, {format_ns(spot.column_ns)} a column, {lane.title}: {held}{of}"


def describe_item(model: StepModel, lane: Lane, spot: CursorTarget) -> str:
    """Return one line on the event under the cursor."""
    place = spot.place
    if place is None:
        return ""
    more = f" (1 of {spot.count} events in this column)" if spot.count > 1 else ""
    row = int(lane.items.row[place])
    start, end = int(lane.items.start_ns[place]), int(lane.items.end_ns[place])
    name = shorten(_shorten_name(model, lane, row), _MAX_SHORT_NAME)
    return f"{name}: {format_ns(end - start)} from {format_at(start)}{more}"


def describe_gap(model: StepModel, gap: ExposedGap | None) -> str:
    """Return one line on an exposed gap and the collective that blocks the rank in it."""
    if gap is None:
        return ""
    said = (
        f"exposed gap {gap.place + 1} of {gap.count}: {format_ns(gap.length_ns)} from "
        f"{format_at(gap.begin_ns)}"
    )
    if gap.collective is None:
        return f"{said}, by no collective of this step"
    row = model.collectives.iloc[gap.collective].to_dict()
    return f"{said}, by {name_collective(row)} ({describe_exposure(row)})"


def describe_event(model: StepModel, lane: Lane, place: int) -> tuple[str, str]:
    """Return title and text of the popup on an event."""
    row = int(lane.items.row[place])
    start, end = int(lane.items.start_ns[place]), int(lane.items.end_ns[place])
    if lane.kind is LaneKind.COLLECTIVES:
        return _name_item(model, lane, row), "\n".join(
            describe_collective(model.collectives.iloc[row].to_dict())
        )
    if lane.is_named:
        said = [format_fact("start", format_at(start)), format_fact("duration", format_ns(end - start))]
        return _name_item(model, lane, row), "\n".join(said)
    event = model.event(row)
    lines = [
        format_fact("name", event.name[:MAX_NAME]),
        *_format_event(model, event),
        *_format_enclosing(model, lane, place),
    ]
    if lane.items.kind[place] in (Kind.COLLECTIVE, Kind.WAIT):
        found = _find_collective(model, start, end)
        lines += ["", *describe_collective(found)] if found is not None else []
    else:
        lines += _format_gap_before(model, lane, place)
    return _shorten_name(model, lane, row), "\n".join(lines)


def _shorten_name(model: StepModel, lane: Lane, row: int) -> str:
    """Return the event's name; for a kernel the function name without template arguments."""
    name = _name_item(model, lane, row)
    return (parse_function_name(name) or name) if lane.kind is LaneKind.STREAM else name


def _name_item(model: StepModel, lane: Lane, row: int) -> str:
    if lane.kind is LaneKind.COLLECTIVES:
        return name_collective(model.collectives.iloc[row].to_dict())
    if lane.is_named:
        return printable(lane.names[row])
    return printable(str(model.events.column("name")[row].as_py())[:MAX_NAME])


def _format_event(model: StepModel, event: Event) -> list[str]:
    where = f"stream {event.stream}" if event.stream is not None else f"thread {event.thread}"
    lines = [
        format_fact("category", f"{event.category} on {where}"),
        format_fact("start", f"{format_at(event.start_ns)} since the begin of the step"),
        format_fact("duration", format_ns(event.duration_ns)),
    ]
    if event.bytes is not None:
        lines.append(format_fact("bytes", format_bytes(event.bytes)))
    launch = model.launch_of(event)
    if launch is not None:
        delay = format_ns(event.start_ns - launch.start_ns)
        lines.append(
            format_fact("launch", f"{launch.name} at {format_at(launch.start_ns)}, {delay} before its start")
        )
    elif event.stream is not None:
        lines.append(format_fact("launch", "not in the trace"))
    return lines


def _format_enclosing(model: StepModel, lane: Lane, place: int) -> list[str]:
    around = lane.items.around(place)
    names = [_name_item(model, lane, int(lane.items.row[outer])) for outer in around[:_MAX_ENCLOSING]]
    if len(around) > _MAX_ENCLOSING:
        names.append(f"and {len(around) - _MAX_ENCLOSING} more")
    return [format_fact("" if number else "within", name) for number, name in enumerate(names)]


def _format_gap_before(model: StepModel, lane: Lane, place: int) -> list[str]:
    """Describe the exposed gap between the previous compute on this lane and this event, if any."""
    start = int(lane.items.start_ns[place])
    work = lane.items.kind == Kind.COMPUTE
    work &= lane.items.end_ns <= start
    before = int(lane.items.end_ns[work].max(initial=0))
    gap = (
        find_gap(model, before, start) if lane.items.kind[place] == Kind.COMPUTE and start > before else None
    )
    return [format_fact("waited for", describe_gap(model, gap))] if gap is not None else []


def _find_collective(model: StepModel, start: int, end: int) -> Row | None:
    """Return the collective that a stream or thread event executes or waits for, or None."""
    rows = model.collectives
    exact = rows[(rows["start_ns"] == start) & (rows["end_ns"] == end)]
    waits = rows[rows["wait_start_ns"] == start]
    inside = rows[(rows["start_ns"] < end) & (rows["end_ns"] > start)]
    for found in (exact, waits, inside):
        if len(found):
            row: Row = found.iloc[0].to_dict()
            return row
    return None
