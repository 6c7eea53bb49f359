"""All that the timeline knows of one step of one rank; times are since the begin of the step."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from zprof.analysis.intervals import Intervals
from zprof.analysis.time.activity.roles import CALLS
from zprof.tui.timeline.lane import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A row of the table of events."""

    name: str
    category: str
    start_ns: int
    duration_ns: int
    thread: int
    stream: int | None
    correlation: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepModel:
    """Lanes, from top to bottom, and what they point to.

    ``gaps``: when communication held the rank up, disjoint.  ``collectives``: those of this rank that touch
    the step.  ``events``: the rows that lanes point to, and the calls that launched them, at ``starts_ns``.
    ``left_out``: streams and threads that are not among the lanes, for they did least.
    """

    rank: int
    step: int
    length_ns: int
    on_device: bool
    lanes: tuple[Lane, ...]
    left_out: int
    gaps: Intervals
    collectives: pd.DataFrame
    events: pa.Table
    starts_ns: "np.ndarray[tuple[int], np.dtype[np.int64]]"

    @property
    def weight(self) -> int:
        """How many rows are held."""
        return int(self.events.num_rows + len(self.collectives))

    def event(self, row: int) -> Event:
        """One event, its names looked up."""
        values = {name: self.events.column(name)[row].as_py() for name in self.events.column_names}
        return Event(
            name=str(values["name"]),
            category=str(values["category"]),
            start_ns=int(self.starts_ns[row]),
            duration_ns=int(values["duration_ns"]),
            thread=int(values["thread"]),
            stream=values["stream"],
            correlation=values["correlation"],
            bytes=values["bytes"],
        )

    def launch_of(self, event: Event) -> Event | None:
        """The host's call that launched work of a device, where it is in the trace."""
        if event.stream is None or not event.correlation:
            return None
        same = pc.fill_null(pc.equal(self.events.column("correlation"), event.correlation), False)
        for row in np.flatnonzero(same.to_numpy()).tolist():
            found = self.event(row)
            if found.category in CALLS:
                return found
        return None
