"""The visible part of a step and the cursor: zoom, pan, jump to a gap.

Also finds the target under the cursor in a lane.
"""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Floats
from zprof.analysis.intervals import Intervals
from zprof.analysis.step_timeline.lane import LaneRole, TimelineLane, compute_columns

#: Minimum length of the view, unless the step is shorter; a column then covers a few nanoseconds.
MIN_SPAN_NS = 1_000
#: This fraction (1/N) of the view stays ahead of the moving cursor, if the step continues there.
_MARGIN_FRACTION = 8
#: Jumping to a gap zooms if the gap is shorter than the view divided by this, or longer than 3/4 of it.
_MIN_GAP_FRACTION = 16


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
        """Return the view with its length scaled by `factor`, and with the cursor in the same column."""
        span = self._clamp_span(self.span_ns * factor)
        begin = self.cursor_ns - (self.cursor_ns - self.begin_ns) * span // max(1, self.span_ns)
        return self._starting_at(begin, span)

    def moved(self, columns: int, width: int) -> "View":
        """Return the view with the cursor moved by columns, scrolled if it gets close to the edge."""
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
        """Return the view with the cursor at the start of an interval, zoomed to fill much of the view."""
        view, length = self.at(begin_ns), max(1, end_ns - begin_ns)
        fits = self.span_ns // _MIN_GAP_FRACTION <= length <= self.span_ns * 3 // 4
        span = self.span_ns if fits else self._clamp_span(length * 4)
        inside = self.begin_ns <= begin_ns and end_ns <= self.end_ns
        if fits and inside:
            return view
        return view._starting_at(begin_ns + length // 2 - span // 2, span)

    def for_step_length(self, length_ns: int) -> "View":
        """Return the same part of another step, clamped to it; a full view stays full."""
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

    ``shares``: share of the interval per role, largest first. ``index``: index of the event to show, None if
    there is none. ``count``: events in the interval. ``column_ns``: length of a column. ``is_gap``: the
    interval is an exposed gap instead of a column.
    """

    begin_ns: float
    end_ns: float
    column_ns: float
    shares: dict[LaneRole, float]
    index: int | None
    count: int
    is_gap: bool = False


def find_cursor_target(lane: TimelineLane, gaps: Intervals, view: View, width: int) -> CursorTarget:
    """Return the target under the cursor of a view drawn in `width` columns."""
    edges, column = view.edges(width), view.column(width)
    begin, end = float(edges[column]), float(edges[column + 1])
    column_ns = end - begin
    gap = _find_gap_at_cursor(gaps, view.cursor_ns)
    begin, end = gap or (begin, end)
    columns = compute_columns(lane, np.array([begin, end]))
    count = len(lane.items.touching(begin, end))
    return CursorTarget(
        begin_ns=begin,
        end_ns=end,
        column_ns=column_ns,
        shares=columns.share(0),
        index=lane.items.select_event(begin, end, columns.role(0)) if count else None,
        count=count,
        is_gap=gap is not None,
    )


def _find_gap_at_cursor(gaps: Intervals, cursor_ns: int) -> tuple[float, float] | None:
    """Return the full gap that starts exactly at the cursor, or None.

    The cursor reaches that position by jumping to a gap; other events in its column are then irrelevant.
    """
    starts = np.flatnonzero(gaps[:, 0] == cursor_ns)
    if not len(starts):
        return None
    return float(cursor_ns), max(float(gaps[starts[0], 1]), cursor_ns + 1.0)
