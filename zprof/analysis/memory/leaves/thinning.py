"""Live bytes by tenant over a window at a few points, each the highest of its stretch.

The window is cut into stretches of equal length.  A stretch's point is its first highest one, or its begin
where nothing in it is higher than what it begins with; so the peak of the window is a point.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from zprof.analysis.memory.rank.lives import FOREVER, UNTAGGED, Int
from zprof.analysis.memory.rank.rank_lives import RankLives
from zprof.analysis.memory.rank.roles import Segments, tenant_of
from zprof.analysis.memory.rank.timeline import Timeline
from zprof.model.memory import MemoryTimeline

POINTS = 240
_Word = TypeVar("_Word", int, str)


def thinned(rank: int, device: str, lives: RankLives, points: int = POINTS) -> MemoryTimeline:
    """At most ``points`` points; at each the columns sum to the live bytes."""
    window = lives.timeline
    begins = stretches(window, points)
    times = _highest(lives, begins)
    return MemoryTimeline(
        rank=rank,
        device=device,
        time_ns=tuple((times - window.begin_ns).tolist()),
        tenants={
            tenant_of(code): tuple(held_over(lives.segments, code, times).tolist())
            for code in range(UNTAGGED + 1)
        },
        steps=_latest(window.steps, begins, window),
        phases=_latest([(window.begin_ns, window.phase_at(window.begin_ns)), *window.phases], begins, window),
    )


def stretches(window: Timeline, points: int) -> Int:
    """Begin of each stretch; the last one ends with the window and holds its last instant."""
    length = window.end_ns - window.begin_ns
    count = max(1, min(points, length))
    return np.array([window.begin_ns + length * index // count for index in range(count)], dtype=np.int64)


def held_over(segments: Segments, tenant: int, times_ns: Int) -> Int:
    """Bytes of one tenant at each of some times."""
    mine = segments.tenant == tenant
    ended = mine & (segments.end_ns != FOREVER)
    return _sum_until(segments.begin_ns[mine], segments.bytes[mine], times_ns) - _sum_until(
        segments.end_ns[ended], segments.bytes[ended], times_ns
    )


def _sum_until(event_ns: Int, size: Int, times_ns: Int) -> Int:
    """Sum of what happened at or before each time."""
    order = np.argsort(event_ns, kind="stable")
    sums = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(size[order], dtype=np.int64)])
    found: Int = sums[np.searchsorted(event_ns[order], times_ns, side="right")]
    return found


def _highest(lives: RankLives, begins: Int) -> Int:
    """Time of the first highest point of each stretch."""
    times, live = lives.times_ns, lives.live_bytes
    last = int(np.searchsorted(times, lives.timeline.end_ns, side="right"))
    edges = np.append(np.searchsorted(times[:last], begins, side="right"), last)
    found = begins.copy()
    for stretch, (left, right) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        if right > left:
            best = left + int(np.argmax(live[left:right]))
            if live[best] > (live[left - 1] if left else 0):
                found[stretch] = times[best]
    return found


def _latest(
    marks: Sequence[tuple[int, _Word]], begins: Int, window: Timeline
) -> tuple[tuple[int, _Word], ...]:
    """One mark a stretch at most, the last of it: the one that goes on; no word twice in a row."""
    at = np.array([time_ns for time_ns, _ in marks], dtype=np.int64)
    stretch = np.searchsorted(begins, at, side="right")
    last = np.flatnonzero(np.diff(stretch, append=-1))
    kept: list[tuple[int, _Word]] = []
    for index in last.tolist():
        if not kept or kept[-1][1] != marks[index][1]:
            kept.append((marks[index][0] - window.begin_ns, marks[index][1]))
    return tuple(kept)
