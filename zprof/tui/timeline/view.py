"""The visible part of a step and the cursor.

Zoom, pan, go to a gap, and find what is under the cursor in a lane.
"""

from dataclasses import dataclass, replace

import numpy as np

from zprof.analysis.intervals import Intervals
from zprof.tui.timeline.lane import Floats, Lane, Role, compute_columns

#: No less is ever shown: a column is then some nanoseconds.
MIN_SPAN_NS = 1_000
#: So much of the view stays ahead of the cursor while it moves, where there is more to see.
_MARGIN_FRACTION = 8
#: A gap is zoomed to where it is shown as less than a column in so many, or does not fit.
_MIN_GAP_FRACTION = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """``[begin_ns, end_ns)`` of a step of ``length_ns``; times since the begin of the step."""

    length_ns: int
    begin_ns: int
    end_ns: int
    cursor_ns: int

    @property
    def span_ns(self) -> int:
        """How much is seen."""
        return self.end_ns - self.begin_ns

    @property
    def is_whole(self) -> bool:
        """Whether all of the step is seen."""
        return self.span_ns >= self.length_ns

    def edges(self, width: int) -> Floats:
        """Begins and ends of the columns."""
        return np.linspace(self.begin_ns, self.end_ns, width + 1)

    def column(self, width: int) -> int:
        """The column of the cursor."""
        place = (self.cursor_ns - self.begin_ns) * width // max(1, self.span_ns)
        return int(min(max(0, place), max(0, width - 1)))

    def zoomed(self, factor: float) -> "View":
        """See so many times as much, with the cursor where it is on the screen."""
        span = self._span(self.span_ns * factor)
        begin = self.cursor_ns - (self.cursor_ns - self.begin_ns) * span // max(1, self.span_ns)
        return self._from(begin, span)

    def moved(self, columns: int, width: int) -> "View":
        """Move the cursor, and the view with it where it comes near the edge."""
        step = self.span_ns / max(1, width)
        middle = self.begin_ns + (self.column(width) + columns + 0.5) * step
        there = self.at(round(middle))
        margin = self.span_ns // _MARGIN_FRACTION
        if there.cursor_ns < self.begin_ns + margin and columns < 0:
            return there._from(there.cursor_ns - margin, self.span_ns, latest=self.begin_ns)
        if there.cursor_ns >= self.end_ns - margin and columns > 0:
            begin = there.cursor_ns + margin - self.span_ns
            return there._from(begin, self.span_ns, earliest=self.begin_ns)
        return there

    def at(self, time_ns: int) -> "View":
        """The cursor there."""
        return replace(self, cursor_ns=min(max(0, time_ns), max(0, self.length_ns - 1)))

    def whole(self) -> "View":
        """All of the step."""
        return replace(self, begin_ns=0, end_ns=max(1, self.length_ns))

    def onto(self, begin_ns: int, end_ns: int) -> "View":
        """The cursor at the begin of a stretch, and all of that seen large enough."""
        there, length = self.at(begin_ns), max(1, end_ns - begin_ns)
        fits = self.span_ns // _MIN_GAP_FRACTION <= length <= self.span_ns * 3 // 4
        span = self.span_ns if fits else self._span(length * 4)
        inside = self.begin_ns <= begin_ns and end_ns <= self.end_ns
        if fits and inside:
            return there
        return there._from(begin_ns + length // 2 - span // 2, span)

    def of(self, length_ns: int) -> "View":
        """The same part of another step, as far as that has it; all of it where all was seen."""
        other = replace(self, length_ns=max(1, length_ns)).at(self.cursor_ns)
        return other.whole() if self.is_whole else other._from(self.begin_ns, other._span(self.span_ns))

    def _span(self, wanted: float) -> int:
        return int(min(max(wanted, MIN_SPAN_NS), max(1, self.length_ns)))

    def _from(
        self, begin: int, span: int, *, earliest: int | None = None, latest: int | None = None
    ) -> "View":
        """From there, but within the step, and not before ``earliest`` or behind ``latest``."""
        if latest is not None:
            begin = min(begin, latest)
        if earliest is not None:
            begin = max(begin, earliest)
        begin = min(max(0, begin), max(0, self.length_ns - span))
        return replace(self, begin_ns=begin, end_ns=begin + span)


def make_first_view(length_ns: int) -> View:
    """All of a step, the cursor in front."""
    length = max(1, length_ns)
    return View(length_ns=length, begin_ns=0, end_ns=length, cursor_ns=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorTarget:
    """A stretch of a lane.

    ``shares``: what of it each role holds, the most first; ``place``: that of the event that it shows, None
    where there is none, of ``count``; ``column_ns``: how long a column is.  ``is_gap``: it is a gap.
    """

    begin_ns: float
    end_ns: float
    column_ns: float
    shares: dict[Role, float]
    place: int | None
    count: int
    is_gap: bool = False


def find_cursor_target(lane: Lane, gaps: Intervals, view: View, width: int) -> CursorTarget:
    """What the cursor is on in so many columns."""
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
        place=lane.items.chosen(begin, end, columns.role(0)) if count else None,
        count=count,
        is_gap=gap is not None,
    )


def _find_gap_at_cursor(gaps: Intervals, cursor_ns: int) -> tuple[float, float] | None:
    """A gap that begins at the cursor, all of it: what else is in its columns is not meant."""
    begins = np.flatnonzero(gaps[:, 0] == cursor_ns)
    if not len(begins):
        return None
    return float(cursor_ns), max(float(gaps[begins[0], 1]), cursor_ns + 1.0)
