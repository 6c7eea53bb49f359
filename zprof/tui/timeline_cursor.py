"""The visible part of a step, its cursor, and the event or gap under the cursor.

A screen gets a description of a few lines, a popup all facts. Times belong to single events and are not
report leaves. All names are made printable.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Floats
from zprof.analysis.intervals import Intervals
from zprof.analysis.step_timeline.lane import (
    ROLE_NAMES,
    EventKind,
    LaneKind,
    LaneRole,
    TimelineLane,
    compute_columns,
)
from zprof.analysis.step_timeline.step_model import ExposedGap, StepTimeline, TimelineEvent, find_gap
from zprof.base.formatting import format_bytes, format_ns, format_percent, printable, shorten
from zprof.model.communication_kernels import parse_function_name
from zprof.model.time import LateReason

#: Minimum length of the view, unless the step is shorter: a column covers a few nanoseconds.
MIN_SPAN_NS = 1_000
#: This fraction (1/N) of the view stays ahead of the moving cursor, if the step continues there.
_MARGIN_FRACTION = 8
#: A jump to a gap zooms if the gap is shorter than the view divided by this, or longer than 3/4 of the view.
_MIN_GAP_FRACTION = 16
Row = Mapping[str, Any]
MAX_NAME = 400
_MAX_GROUP = 40


class View(Struct, frozen=True, kw_only=True):
    """The window ``[begin_ns, end_ns)`` of a step of ``length_ns``; times since the start of the step."""

    length_ns: int
    begin_ns: int
    end_ns: int
    cursor_ns: int

    @property
    def span_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.begin_ns

    @property
    def shows_full_step(self) -> bool:
        """Return True if the full step is visible."""
        return self.span_ns >= self.length_ns

    def edges(self, width: int) -> Floats:
        """Return the edges of `width` columns, in ns: ``width + 1`` values."""
        return np.linspace(self.begin_ns, self.end_ns, width + 1)

    def column(self, width: int) -> int:
        """Return the column of the cursor."""
        column = (self.cursor_ns - self.begin_ns) * width // max(1, self.span_ns)
        return int(min(max(0, column), max(0, width - 1)))

    def zoomed(self, factor: float) -> "View":
        """Return the view with its length scaled by `factor` and the cursor in the same column."""
        span = self._clamp_span(self.span_ns * factor)
        begin = self.cursor_ns - (self.cursor_ns - self.begin_ns) * span // max(1, self.span_ns)
        return self._starting_at(begin, span)

    def moved(self, columns: int, width: int) -> "View":
        """Return the view with the cursor moved by columns, scrolled near the edge."""
        step = self.span_ns / max(1, width)
        middle = self.begin_ns + (self.column(width) + columns + 0.5) * step
        view = self.at(round(middle))
        margin_ns = self.span_ns // _MARGIN_FRACTION
        if view.cursor_ns < self.begin_ns + margin_ns and columns < 0:
            return view._starting_at(view.cursor_ns - margin_ns, self.span_ns, latest=self.begin_ns)
        if view.cursor_ns >= self.end_ns - margin_ns and columns > 0:
            begin = view.cursor_ns + margin_ns - self.span_ns
            return view._starting_at(begin, self.span_ns, earliest=self.begin_ns)
        return view

    def at(self, time_ns: int) -> "View":
        """Return the view with the cursor at a time, clamped to the step."""
        return replace(self, cursor_ns=min(max(0, time_ns), max(0, self.length_ns - 1)))

    def full_step(self) -> "View":
        """Return the view of the full step."""
        return replace(self, begin_ns=0, end_ns=max(1, self.length_ns))

    def zoomed_to(self, begin_ns: int, end_ns: int) -> "View":
        """Return the view with the cursor at the start of an interval that fills much of the view."""
        view, length = self.at(begin_ns), max(1, end_ns - begin_ns)
        fits = self.span_ns // _MIN_GAP_FRACTION <= length <= self.span_ns * 3 // 4
        span = self.span_ns if fits else self._clamp_span(length * 4)
        inside = self.begin_ns <= begin_ns and end_ns <= self.end_ns
        if fits and inside:
            return view
        return view._starting_at(begin_ns + length // 2 - span // 2, span)

    def for_step_length(self, length_ns: int) -> "View":
        """Return the same view of a step of another length, clamped to it; a full view stays full."""
        other = replace(self, length_ns=max(1, length_ns)).at(self.cursor_ns)
        return (
            other.full_step()
            if self.shows_full_step
            else other._starting_at(self.begin_ns, other._clamp_span(self.span_ns))
        )

    def _clamp_span(self, span_ns: float) -> int:
        return int(min(max(span_ns, MIN_SPAN_NS), max(1, self.length_ns)))

    def _starting_at(
        self, begin: int, span: int, *, earliest: int | None = None, latest: int | None = None
    ) -> "View":
        """Return the view starting at `begin`, clamped to the step and to ``earliest`` and ``latest``."""
        if latest is not None:
            begin = min(begin, latest)
        if earliest is not None:
            begin = max(begin, earliest)
        begin = min(max(0, begin), max(0, self.length_ns - span))
        return replace(self, begin_ns=begin, end_ns=begin + span)


def make_first_view(length_ns: int) -> View:
    """Return the view of a full step with the cursor at its start."""
    length = max(1, length_ns)
    return View(length_ns=length, begin_ns=0, end_ns=length, cursor_ns=0)


class CursorTarget(Struct, frozen=True, kw_only=True):
    """The interval of a lane under the cursor.

    ``shares``: share of the interval per role, largest first. ``index``: index of the event to show; None
    without one. ``count``: events in the interval. ``column_ns``: length of a column. ``is_gap``: the
    interval is an exposed gap, not a column.
    """

    begin_ns: float
    end_ns: float
    column_ns: float
    shares: dict[LaneRole, float]
    index: int | None
    count: int
    is_gap: bool = False


def find_cursor_target(lane: TimelineLane, gaps: Intervals, view: View, width: int) -> CursorTarget:
    """Return the target under the cursor for a view drawn in `width` columns."""
    edges, column = view.edges(width), view.column(width)
    begin, end = float(edges[column]), float(edges[column + 1])
    column_ns = end - begin
    # A jump to a gap puts the cursor exactly at its start; other events in that column are then irrelevant.
    starts = np.flatnonzero(gaps[:, 0] == view.cursor_ns)
    if len(starts):
        begin, end = float(view.cursor_ns), max(float(gaps[starts[0], 1]), view.cursor_ns + 1.0)
    columns = compute_columns(lane, np.array([begin, end]))
    count = len(lane.items.touching(begin, end))
    return CursorTarget(
        begin_ns=begin,
        end_ns=end,
        column_ns=column_ns,
        shares=columns.share(0),
        index=lane.items.select_event(begin, end, columns.role(0)) if count else None,
        count=count,
        is_gap=len(starts) > 0,
    )


def format_offset(time_ns: float) -> str:
    """Format a time since the start of the step."""
    return f"{time_ns / 1e6:+.3f} ms"


def describe_collective(row: Row) -> list[str]:
    """List all facts about a collective from the analysis of all ranks."""
    wait_bound, transfer_bound = ("at least ", "at most ") if row["bound"] else ("", "")
    wait = (
        f"{wait_bound}{_format_optional_ns(row, 'wait_ns')}, exposed: "
        f"{_format_optional_ns(row, 'exposed_wait_ns')}"
    )
    transfer = (
        f"{transfer_bound}{_format_optional_ns(row, 'transfer_ns')}, exposed: "
        f"{_format_optional_ns(row, 'exposed_transfer_ns')}"
    )
    # Format the group name (long rank lists are shortened) and the group size if recorded.
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
    """Describe an exposed gap and its blocking collective in one line."""
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
    """Return the event name; for a kernel, the function name without template arguments."""
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
    """Return the collective that a stream or thread event runs or waits for; None without one."""
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
