"""Define the timeline of one rank's step: lanes, events and exposed gaps.

Times count from the start of the step.
"""

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zprof.analysis.columns import Columns
from zprof.analysis.intervals import Intervals
from zprof.analysis.step_timeline.lane import TimelineLane
from zprof.analysis.time.events import CALL_CATEGORIES
from zprof.run.table_reader import read_known, read_numbers


class TimelineEvent(Struct, frozen=True, kw_only=True):
    """One row of the event table."""

    name: str
    category: str
    start_ns: int
    duration_ns: int
    thread: int
    stream: int | None
    correlation: int | None
    bytes: int | None


class StepTimeline(Struct, frozen=True, kw_only=True, eq=False):
    """Lanes from top to bottom, and the data that they refer to.

    ``gaps``: disjoint intervals of exposed communication. ``collectives``: this rank's collectives that
    overlap the step. ``events``: the rows shown in lanes and the calls that launched them; ``starts_ns``:
    their starts. ``omitted_lanes``: number of streams and threads without a lane (the least busy).
    """

    rank: int
    step: int
    length_ns: int
    on_device: bool
    lanes: tuple[TimelineLane, ...]
    omitted_lanes: int
    gaps: Intervals
    collectives: Columns
    events: pa.Table
    starts_ns: "np.ndarray[tuple[int], np.dtype[np.int64]]"

    @property
    def weight(self) -> int:
        """Number of rows held in memory."""
        return int(self.events.num_rows + len(self.collectives))

    def event(self, row: int) -> TimelineEvent:
        """Return one event with its names decoded."""
        values = {name: self.events.column(name)[row].as_py() for name in self.events.column_names}
        return TimelineEvent(
            name=str(values["name"]),
            category=str(values["category"]),
            start_ns=int(self.starts_ns[row]),
            duration_ns=int(values["duration_ns"]),
            thread=int(values["thread"]),
            stream=values["stream"],
            correlation=values["correlation"],
            bytes=values["bytes"],
        )

    def find_launch(self, event: TimelineEvent) -> TimelineEvent | None:
        """Return the host call that launched a device event, or None if it is not in the trace."""
        if event.stream is None or not event.correlation:
            return None
        correlation = self.events.column("correlation")
        matches = read_known(correlation) & (read_numbers(correlation) == event.correlation)
        for row in np.flatnonzero(matches).tolist():
            call = self.event(row)
            if call.category in CALL_CATEGORIES:
                return call
        return None


class ExposedGap(Struct, frozen=True, kw_only=True):
    """One of ``count`` gaps; ``collective``: the row that covers most of the gap, None if there is none."""

    index: int
    count: int
    begin_ns: int
    end_ns: int
    collective: int | None

    @property
    def length_ns(self) -> int:
        """Length of the gap."""
        return self.end_ns - self.begin_ns


def find_gap(model: StepTimeline, begin_ns: float, end_ns: float) -> ExposedGap | None:
    """Return the gap with the largest overlap with an interval, or None."""
    gaps = model.gaps
    overlapping = np.flatnonzero((gaps[:, 0] < end_ns) & (gaps[:, 1] > begin_ns))
    if not len(overlapping):
        return None
    inside = np.minimum(gaps[overlapping, 1], end_ns) - np.maximum(gaps[overlapping, 0], begin_ns)
    return get_gap(model, int(overlapping[np.argmax(inside)]))


def find_next_gap(gaps: Intervals, cursor_ns: int, by: int) -> int | None:
    """Return the index of the first gap after the cursor, or with ``by=-1`` of the last gap before it."""
    if by > 0:
        index = int(np.searchsorted(gaps[:, 0], cursor_ns, side="right"))
    else:
        index = int(np.searchsorted(gaps[:, 0], cursor_ns, side="left")) - 1
    return index if 0 <= index < len(gaps) else None


def find_longest_gap(gaps: Intervals) -> int | None:
    """Return the index of the longest gap, or None if there are none."""
    return int(np.argmax(gaps[:, 1] - gaps[:, 0])) if len(gaps) else None


def get_gap(model: StepTimeline, index: int) -> ExposedGap:
    """Return the gap at an index."""
    begin, end = (int(edge) for edge in model.gaps[index])
    return ExposedGap(
        index=index,
        count=len(model.gaps),
        begin_ns=begin,
        end_ns=end,
        collective=_find_blocking_collective(model.collectives, begin, end),
    )


def _find_blocking_collective(collectives: Columns, begin: int, end: int) -> int | None:
    """Return the row of the exposed collective that covers most of the gap, or None."""
    inside = np.minimum(collectives.ints("end_ns"), end) - np.maximum(collectives.ints("start_ns"), begin)
    exposed = collectives.ints("exposed_wait_ns") + collectives.ints("exposed_transfer_ns")
    inside = np.where(exposed > 0, np.minimum(inside, exposed), -1)
    if not len(inside) or inside.max() <= 0:
        return None
    return int(np.argmax(inside))
