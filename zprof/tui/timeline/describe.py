"""Describe the item under the timeline's cursor: a few lines for the screen, all facts for a popup.

Times are of single events, not leaves of the report. All names are made printable.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from zprof.analysis.columns import Columns
from zprof.analysis.step_timeline.lane import ROLE_NAMES, EventKind, LaneKind, TimelineLane
from zprof.analysis.step_timeline.step_model import ExposedGap, StepTimeline, TimelineEvent, find_gap
from zprof.model.collectives import parse_function_name
from zprof.model.formatting import format_bytes, format_ns, format_percent, printable, shorten
from zprof.model.time import LateReason
from zprof.tui.timeline.view import CursorTarget

Row = Mapping[str, Any]
MAX_NAME = 400
_MAX_GROUP = 40


def format_offset(time_ns: float) -> str:
    """Format a time since the start of the step."""
    return f"{time_ns / 1e6:+.3f} ms"


def describe_collective(row: Row) -> list[str]:
    """List everything known about a collective from the analysis of all ranks."""
    wait_bound, transfer_bound = ("at least ", "at most ") if row["bound"] else ("", "")
    wait = (
        f"{wait_bound}{_format_optional_ns(row, 'wait_ns')}, exposed: "
        f"{_format_optional_ns(row, 'exposed_wait_ns')}"
    )
    transfer = (
        f"{transfer_bound}{_format_optional_ns(row, 'transfer_ns')}, exposed: "
        f"{_format_optional_ns(row, 'exposed_transfer_ns')}"
    )
    # Format the group's name (long rank lists are shortened) and its size if it was recorded.
    size = row["group_size"]
    lines = [
        format_fact("collective", f"{format_collective_name(row)}, sequence {row['sequence']}"),
        format_fact(
            "group",
            (f"{shorten(row['group'], _MAX_GROUP)} ({f'{size} ranks' if size > 0 else 'size unknown'})"),
        ),
        format_fact("bytes", f"{format_bytes(row['bytes'])} {row['dtype']}" if row["bytes"] else "unknown"),
        format_fact("start", f"{format_offset(row['start_ns'])} after the start of the timeline"),
        format_fact("duration", format_ns(row["end_ns"] - row["start_ns"])),
        format_fact("wait", wait),
        format_fact("transfer", transfer),
        format_fact("hidden", f"{_format_optional_ns(row, 'hidden_ns')} behind compute"),
        format_fact("last rank", _format_last_rank(row)),
    ]
    if row["launch_start_ns"] is not None:
        delay = format_ns(row["start_ns"] - row["launch_start_ns"])
        lines.append(
            format_fact("launch", f"at {format_offset(row['launch_start_ns'])}, {delay} before its start")
        )
    if row["dependency_ns"]:
        lines.append(
            format_fact(
                "",
                f"{_format_optional_ns(row, 'dependency_ns')} of it waiting for compute or a collective",
            )
        )
    return lines


def _format_last_rank(row: Row) -> str:
    if row["last_rank"] < 0:
        return "unknown: not all ranks could be matched"
    if row["blamed_rank"] < 0:
        return f"rank {row['last_rank']}, within the clock uncertainty"
    reason = (row["late_reason"] or LateReason.UNKNOWN.value).replace("_", " ")
    cause = "reason unknown" if reason == LateReason.UNKNOWN else f"for {reason}"
    return f"rank {row['last_rank']}, {format_ns(row['last_lateness_ns'])} after the first; {cause}"


def format_collective_name(row: Row) -> str:
    """Return the collective's kind and unit."""
    unit = "" if row["unit"] is None else f" of {row['unit']}"
    return printable(f"{row['kind']}{unit}"[:MAX_NAME])


def describe_exposure(row: Row) -> str:
    """Format the exposed part of a collective; if unmatched, its transfer is an upper bound."""
    waited, moved = row["exposed_wait_ns"], row["exposed_transfer_ns"]
    late = f" for rank {row['last_rank']}" if waited and row["last_rank"] >= 0 else ""
    parts = [f"waits {format_ns(waited)}{late}"] if waited else []
    bound = "at most " if row["bound"] else ""
    return ", ".join([*parts, f"transfers {bound}{format_ns(moved)}"])


def _format_optional_ns(row: Row, name: str) -> str:
    return "unknown" if row[name] is None else format_ns(row[name])


def format_fact(name: str, text: str) -> str:
    """Format a line of a popup: name and value."""
    return f"{name:<11} {printable(text)}"


#: Maximum number of listed enclosing ranges and operators.
_MAX_ENCLOSING = 6
_MAX_SHORT_NAME = 60


def describe_target(lane: TimelineLane, target: CursorTarget) -> str:
    """Format time, lane and the share of each role under the cursor."""
    parts = [f"{ROLE_NAMES[role]} {format_percent(share)}" for role, share in target.shares.items()]
    roles = ", ".join(parts) or ("names only" if lane.is_named else "nothing ran")
    base = f" of {'the gap' if target.is_gap else 'the column'}" if parts else ""
    start, column = format_offset(target.begin_ns), format_ns(target.column_ns)
    return f"{start}, {column} per column, {lane.title}: {roles}{base}"


def describe_item(model: StepTimeline, lane: TimelineLane, target: CursorTarget) -> str:
    """Describe the event under the cursor in one line."""
    index = target.index
    if index is None:
        return ""
    count_note = f" (1 of {target.count} events in this column)" if target.count > 1 else ""
    row = int(lane.items.row[index])
    start, end = int(lane.items.start_ns[index]), int(lane.items.end_ns[index])
    name = shorten(_shorten_name(model, lane, row), _MAX_SHORT_NAME)
    return f"{name}: {format_ns(end - start)} from {format_offset(start)}{count_note}"


def describe_gap(model: StepTimeline, gap: ExposedGap | None) -> str:
    """Describe an exposed gap and the collective that blocks the rank in it, in one line."""
    if gap is None:
        return ""
    description = (
        f"exposed gap {gap.index + 1} of {gap.count}: {format_ns(gap.length_ns)} from "
        f"{format_offset(gap.begin_ns)}"
    )
    if gap.collective is None:
        return f"{description}, no collective of this step blocks it"
    row = _get_row(model.collectives, gap.collective)
    return f"{description}, blocked by {format_collective_name(row)} ({describe_exposure(row)})"


def describe_event(model: StepTimeline, lane: TimelineLane, index: int) -> tuple[str, str]:
    """Return the title and text of the popup on an event."""
    row = int(lane.items.row[index])
    start, end = int(lane.items.start_ns[index]), int(lane.items.end_ns[index])
    if lane.kind is LaneKind.COLLECTIVES:
        lines = describe_collective(_get_row(model.collectives, row))
        return _get_item_name(model, lane, row), "\n".join(lines)
    if lane.is_named:
        facts = [format_fact("start", format_offset(start)), format_fact("duration", format_ns(end - start))]
        return _get_item_name(model, lane, row), "\n".join(facts)
    event = model.event(row)
    enclosing = lane.items.find_enclosing(index)
    names = [_get_item_name(model, lane, int(lane.items.row[outer])) for outer in enclosing[:_MAX_ENCLOSING]]
    if len(enclosing) > _MAX_ENCLOSING:
        names.append(f"and {len(enclosing) - _MAX_ENCLOSING} more")
    lines = [
        format_fact("name", event.name[:MAX_NAME]),
        *_format_event(model, event),
        *[format_fact("" if number else "within", name) for number, name in enumerate(names)],
    ]
    if lane.items.kind[index] in (EventKind.COLLECTIVE, EventKind.WAIT):
        collective = _find_collective(model, start, end)
        lines += ["", *describe_collective(collective)] if collective is not None else []
    else:
        lines += _format_gap_before(model, lane, index)
    return _shorten_name(model, lane, row), "\n".join(lines)


def _shorten_name(model: StepTimeline, lane: TimelineLane, row: int) -> str:
    """Return the event's name; for a kernel the function name without template arguments."""
    name = _get_item_name(model, lane, row)
    return (parse_function_name(name) or name) if lane.kind is LaneKind.STREAM else name


def _get_item_name(model: StepTimeline, lane: TimelineLane, row: int) -> str:
    if lane.kind is LaneKind.COLLECTIVES:
        return format_collective_name(_get_row(model.collectives, row))
    if lane.is_named:
        return printable(lane.names[row])
    return printable(str(model.events.column("name")[row].as_py())[:MAX_NAME])


def _format_event(model: StepTimeline, event: TimelineEvent) -> list[str]:
    location = f"stream {event.stream}" if event.stream is not None else f"thread {event.thread}"
    lines = [
        format_fact("category", f"{event.category} on {location}"),
        format_fact("start", f"{format_offset(event.start_ns)} after the start of the timeline"),
        format_fact("duration", format_ns(event.duration_ns)),
    ]
    if event.bytes is not None:
        lines.append(format_fact("bytes", format_bytes(event.bytes)))
    launch = model.find_launch(event)
    if launch is not None:
        delay = format_ns(event.start_ns - launch.start_ns)
        lines.append(
            format_fact(
                "launch", f"{launch.name} at {format_offset(launch.start_ns)}, {delay} before its start"
            )
        )
    elif event.stream is not None:
        lines.append(format_fact("launch", "not in the trace"))
    return lines


def _format_gap_before(model: StepTimeline, lane: TimelineLane, index: int) -> list[str]:
    """Describe the exposed gap between the previous compute on this lane and this event, if any."""
    start = int(lane.items.start_ns[index])
    work = lane.items.kind == EventKind.COMPUTE
    work &= lane.items.end_ns <= start
    previous_end = int(lane.items.end_ns[work].max(initial=0))
    gap = (
        find_gap(model, previous_end, start)
        if lane.items.kind[index] == EventKind.COMPUTE and start > previous_end
        else None
    )
    return [format_fact("waited for", describe_gap(model, gap))] if gap is not None else []


def _find_collective(model: StepTimeline, start: int, end: int) -> Row | None:
    """Return the collective that a stream or thread event runs or waits for, or None."""
    rows = model.collectives
    starts, ends = rows.ints("start_ns"), rows.ints("end_ns")
    exact = (starts == start) & (ends == end)
    waits = rows.known("wait_start_ns") & (rows.ints("wait_start_ns") == start)
    inside = (starts < end) & (ends > start)
    for matches in (exact, waits, inside):
        if matches.any():
            return _get_row(rows, int(np.argmax(matches)))
    return None


def _get_row(rows: Columns, place: int) -> Row:
    return rows.at(slice(place, place + 1)).list_rows()[0]
