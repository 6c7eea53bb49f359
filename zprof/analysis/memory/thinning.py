"""Downsample live bytes by tenant over a window to a few points, each the maximum of its interval.

The window is cut into intervals of equal length. The point of an interval is its first maximum, or its start
if no later point is higher, so the peak of the window is always included.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from zprof.analysis.memory.live_bytes import RankLives
from zprof.analysis.memory.roles import Segments, tenant_name
from zprof.analysis.memory.steps_and_phases import Timeline
from zprof.analysis.memory.tables import FOREVER, UNTAGGED, Int
from zprof.model.memory import MemoryTimeline

MAX_POINTS = 240
_Word = TypeVar("_Word", int, str)


def thin_recording(rank: int, device: str, lives: RankLives, points: int = MAX_POINTS) -> MemoryTimeline:
    """Return at most ``points`` points of a recording; at each, the columns sum to the live bytes."""
    window = lives.timeline
    # The start of each interval; the last interval includes the last instant of the window.
    length = window.end_ns - window.begin_ns
    count = max(1, min(points, length))
    begins = np.array([window.begin_ns + length * index // count for index in range(count)], dtype=np.int64)
    # The time of the first maximum of each interval.
    times, live = lives.times_ns, lives.live_bytes
    last = int(np.searchsorted(times, lives.timeline.end_ns, side="right"))
    edges = np.append(np.searchsorted(times[:last], begins, side="right"), last)
    maxima = begins.copy()
    for interval, (left, right) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        if right > left:
            best = left + int(np.argmax(live[left:right]))
            if live[best] > (live[left - 1] if left else 0):
                maxima[interval] = times[best]
    times = maxima
    return MemoryTimeline(
        rank=rank,
        device=device,
        time_ns=tuple((times - window.begin_ns).tolist()),
        tenants={
            tenant_name(code): tuple(sum_tenant_bytes_at(lives.segments, code, times).tolist())
            for code in range(UNTAGGED + 1)
        },
        steps=_select_last_marks(window.steps, begins, window),
        phases=_select_last_marks(
            [(window.begin_ns, window.phase_at(window.begin_ns)), *window.phases], begins, window
        ),
    )


def sum_tenant_bytes_at(segments: Segments, tenant: int, times_ns: Int) -> Int:
    """Return the bytes of one tenant at each of some times."""
    is_tenant = segments.tenant == tenant
    ended = is_tenant & (segments.end_ns != FOREVER)
    return _sum_until(segments.begin_ns[is_tenant], segments.bytes[is_tenant], times_ns) - _sum_until(
        segments.end_ns[ended], segments.bytes[ended], times_ns
    )


def _sum_until(event_ns: Int, size: Int, times_ns: Int) -> Int:
    """Return the sum over events at or before each time."""
    order = np.argsort(event_ns, kind="stable")
    sums = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(size[order], dtype=np.int64)])
    return sums[np.searchsorted(event_ns[order], times_ns, side="right")]


def _select_last_marks(
    marks: Sequence[tuple[int, _Word]], begins: Int, window: Timeline
) -> tuple[tuple[int, _Word], ...]:
    """Return the last mark of each interval, without consecutive duplicates."""
    times = np.array([time_ns for time_ns, _ in marks], dtype=np.int64)
    interval = np.searchsorted(begins, times, side="right")
    last = np.flatnonzero(np.diff(interval, append=-1))
    selected: list[tuple[int, _Word]] = []
    for index in last.tolist():
        if not selected or selected[-1][1] != marks[index][1]:
            selected.append((marks[index][0] - window.begin_ns, marks[index][1]))
    return tuple(selected)
