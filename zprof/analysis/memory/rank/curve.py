"""Live bytes over time: cumulative sums of allocations and frees, and who holds them at one instant.

A block is live in [begin, end): at the time of an event, what ends there is gone and what begins is there.
"""

import numpy as np

from zprof.analysis.memory.rank.lives import FOREVER, UNTAGGED, Int
from zprof.analysis.memory.rank.roles import Segments


def live_curve(begin_ns: Int, end_ns: Int, size_bytes: Int) -> tuple[Int, Int]:
    """(times of events, live bytes from each on)."""
    freed = end_ns != FOREVER
    time_ns = np.concatenate([begin_ns, end_ns[freed]])
    change = np.concatenate([size_bytes, -size_bytes[freed]])
    times, which = np.unique(time_ns, return_inverse=True)
    deltas = np.zeros(len(times), dtype=np.int64)
    np.add.at(deltas, which, change)
    return times.astype(np.int64), np.cumsum(deltas, dtype=np.int64)


def peak_of(times: Int, live: Int, begin_ns: int, end_ns: int) -> tuple[int, int]:
    """(time, bytes) of the first highest point within a window; what was live at its begin counts."""
    first = int(np.searchsorted(times, begin_ns, side="right"))
    last = int(np.searchsorted(times, end_ns, side="right"))
    best_ns, best = begin_ns, int(live[first - 1]) if first else 0
    if last > first:
        index = first + int(np.argmax(live[first:last]))
        if int(live[index]) > best:
            best_ns, best = int(times[index]), int(live[index])
    return best_ns, best


def composition(segments: Segments, time_ns: int) -> Int:
    """Bytes by tenant code at an instant; the last entry is what nobody claims."""
    alive = (segments.begin_ns <= time_ns) & (segments.end_ns > time_ns)
    held = np.zeros(UNTAGGED + 1, dtype=np.int64)
    np.add.at(held, segments.tenant[alive], segments.bytes[alive])
    return held


def alive_at(segments: Segments, time_ns: int) -> Int:
    """Rows of the segments that are live at an instant."""
    rows: Int = np.flatnonzero((segments.begin_ns <= time_ns) & (segments.end_ns > time_ns)).astype(np.int64)
    return rows
