"""Splits the time from a collective's launch to its start into what it had to wait for, and the rest.

    s_i - L_i = dependency + pure          dependency = max(0, max(d_i, p_i) - L_i)

L_i: begin of the host's call.  p_i: end of the collective before it in the same queue (the stream; off
the device the group).  d_i: the latest end, not after s_i, of a compute kernel that was launched before L_i.
Which kernel it really had to wait for the events of a trace do not say, so d_i is the latest that it can be.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.transfer.texts import codes_of

#: In place of the end of something that was not there: before everything.
NEVER = -(1 << 62)
#: Kernels of one stream may overlap by the jitter of their stamps.
_OVERLAP_NS = 5_000
#: Numbers of groups stand far below those of streams.
_NO_STREAM = -(1 << 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One entry a row.  ``launch_ns`` is the start, and ``known`` false, where no call was recorded.

    ``computed_ns`` (d) and ``previous_ns`` (p) are NEVER where there is none; ``previous`` is the position
    of that collective among the rows, -1 without one.
    """

    launch_ns: Int64s
    known: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    computed_ns: Int64s
    previous_ns: Int64s
    previous: Int64s

    def columns(self, frame: pd.DataFrame) -> "dict[str, pd.Series[int] | Int64s]":
        """Columns for the rows: these ends, and dependency_ns, null where no launch was recorded."""
        ready = np.maximum(self.computed_ns, self.previous_ns)
        waited = pd.arrays.IntegerArray(np.maximum(0, ready - self.launch_ns), ~self.known)
        previous = frame["instance"].to_numpy(np.int64)[self.previous] if len(frame) else self.previous
        return {
            "launch_ns": self.launch_ns,
            "computed_ns": self.computed_ns,
            "previous_ns": self.previous_ns,
            "previous_instance": np.where(self.previous >= 0, previous, -1),
            "dependency_ns": pd.Series(waited, index=frame.index),
        }


def find_launch(frame: pd.DataFrame, kernels: Int64s, kernel_stream: Int64s) -> Launch:
    """Launches of the collectives of one rank.

    Args:
        frame: Rows of the rank.
        kernels: Launch, start and end of its compute kernels.
        kernel_stream: The stream of each kernel.
    """
    start, end = frame["start_ns"].to_numpy(np.int64), frame["end_ns"].to_numpy(np.int64)
    known = frame["launch_start_ns"].notna().to_numpy(bool)
    launch = np.where(known, frame["launch_start_ns"].fillna(0).to_numpy(np.int64), start)
    previous = _previous(_queues(frame), start, end)
    return Launch(
        launch_ns=launch,
        known=known,
        computed_ns=latest_end(launch, start, kernels, kernel_stream),
        previous_ns=np.where(previous >= 0, np.minimum(end[previous], start), NEVER) if len(start) else start,
        previous=previous,
    )


def _queues(frame: pd.DataFrame) -> Int64s:
    """A number for the stream of each row; for the group where there is no stream."""
    stream = frame["stream"].fillna(NEVER).to_numpy(np.int64)
    if not (stream == NEVER).any():
        return stream
    return np.where(stream == NEVER, codes_of(frame["group"])[0] + _NO_STREAM, stream)


def _previous(queue: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """For each row the one of its queue with the latest end not after its start; -1 without one."""
    found = np.full(len(start), -1, dtype=np.int64)
    for number in np.unique(queue):
        mine = np.flatnonzero(queue == number)
        by_end = mine[np.argsort(end[mine], kind="stable")]
        # what ends before me began before me: the slack must not reach my own end
        latest = np.minimum(start[mine] + _OVERLAP_NS, np.maximum(start[mine], end[mine] - 1))
        place = np.searchsorted(end[by_end], latest, side="right") - 1
        place -= (place >= 0) & (by_end[np.maximum(place, 0)] == mine)
        found[mine] = np.where(place >= 0, by_end[np.maximum(place, 0)], -1)
    return found


def latest_end(launch: Int64s, start: Int64s, kernels: Int64s, kernel_stream: Int64s) -> Int64s:
    """For each row the latest kernel end not after ``start`` of those launched before ``launch``, else NEVER.

    A stream runs its kernels in the order of their launches, so both limits are places in that order.
    """
    found = np.full(len(start), NEVER, dtype=np.int64)
    for number in np.unique(kernel_stream):
        mine = kernels[kernel_stream == number]
        mine = mine[np.argsort(mine[:, 0], kind="stable")]
        ends = np.maximum.accumulate(mine[:, 2])
        place = np.minimum(
            np.searchsorted(mine[:, 0], launch, side="left"), np.searchsorted(ends, start, side="right")
        )
        found = np.maximum(found, np.where(place > 0, ends[np.maximum(place - 1, 0)], NEVER))
    return found
