"""What is under the cursor in a lane: a column, or a gap that begins at the cursor."""

from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Intervals
from zprof.tui.timeline.cover import Role
from zprof.tui.timeline.lane import Lane, columns_of
from zprof.tui.timeline.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
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


def spot_of(lane: Lane, gaps: Intervals, view: View, width: int) -> Spot:
    """What the cursor is on in so many columns."""
    edges, column = view.edges(width), view.column(width)
    begin, end = float(edges[column]), float(edges[column + 1])
    column_ns = end - begin
    gap = _gap_from(gaps, view.cursor_ns)
    begin, end = gap or (begin, end)
    columns = columns_of(lane, np.array([begin, end]))
    count = len(lane.items.touching(begin, end))
    return Spot(
        begin_ns=begin,
        end_ns=end,
        column_ns=column_ns,
        shares=columns.share(0),
        place=lane.items.chosen(begin, end, columns.role(0)) if count else None,
        count=count,
        is_gap=gap is not None,
    )


def _gap_from(gaps: Intervals, cursor_ns: int) -> tuple[float, float] | None:
    """A gap that begins at the cursor, all of it: what else is in its columns is not meant."""
    begins = np.flatnonzero(gaps[:, 0] == cursor_ns)
    if not len(begins):
        return None
    return float(cursor_ns), max(float(gaps[begins[0], 1]), cursor_ns + 1.0)
