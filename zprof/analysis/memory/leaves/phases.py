"""The highest point of live bytes within each phase, over all steps of the window."""

import numpy as np

from zprof.analysis.memory.rank.lives import Int
from zprof.analysis.memory.rank.rank_lives import RankLives
from zprof.analysis.memory.rank.timeline import Timeline
from zprof.model.memory import PhasePeak


def phase_peaks(rank: int, lives: RankLives) -> tuple[PhasePeak, ...]:
    """One entry a phase that lasted, in the order in which they first began; their maximum is the peak."""
    begins, names = _stretches(lives.timeline)
    times, live, stretch = _points(lives, begins)
    peaks = []
    for name in dict.fromkeys(names):
        mine = np.array([other == name for other in names], dtype=bool)
        rows = np.flatnonzero(mine[stretch])
        highest = rows[live[rows] == live[rows].max()]
        peaks.append(_peak(rank, lives, name, int(times[highest].min())))
    return tuple(peaks)


def _stretches(window: Timeline) -> tuple[Int, list[str]]:
    """(begin, phase) of each stretch of the window that has a length; it lasts until the next begins."""
    marked = [(t, name) for t, name in window.phases if window.begin_ns < t < window.end_ns]
    all_marks = [(window.begin_ns, window.phase_at(window.begin_ns)), *marked]
    ends = [*(t for t, _ in marked), window.end_ns]
    kept = [mark for mark, end in zip(all_marks, ends, strict=True) if mark[0] < end]
    return np.array([t for t, _ in kept], dtype=np.int64), [name for _, name in kept]


def _points(lives: RankLives, begins: Int) -> tuple[Int, Int, Int]:
    """(time, live bytes, stretch) of each stretch's begin and of each event in the window."""
    times, live = lives.times_ns, lives.live_bytes
    first = int(np.searchsorted(times, lives.timeline.begin_ns, side="right"))
    last = int(np.searchsorted(times, lives.timeline.end_ns, side="right"))
    inside = times[first:last]
    carried = np.concatenate([np.zeros(1, dtype=np.int64), live])[
        np.searchsorted(times, begins, side="right")
    ]
    stretch = np.searchsorted(begins, inside, side="right") - 1
    if not len(begins):
        inside, stretch, last = inside[:0], stretch[:0], first
    return (
        np.concatenate([begins, inside]),
        np.concatenate([carried, live[first:last]]),
        np.concatenate([np.arange(len(begins)), stretch]).astype(np.int64),
    )


def _peak(rank: int, lives: RankLives, name: str, time_ns: int) -> PhasePeak:
    tenants, untagged = lives.held_at(time_ns)
    return PhasePeak(
        rank=rank,
        phase=name,
        step=lives.timeline.step_at(time_ns),
        peak_bytes=sum(tenants.values()) + untagged,
        tenants=tenants,
        untagged_bytes=untagged,
    )
