"""Live bytes of a history over time, at a few points by tenant; each point is the highest of its stretch."""

import numpy as np

from zprof.analysis.memory.blocks.history import History
from zprof.analysis.memory.blocks.naming.named import Named
from zprof.analysis.memory.blocks.peaks import together, value_at
from zprof.analysis.memory.leaves.thinning import POINTS, held_over
from zprof.analysis.memory.rank.curve import live_curve
from zprof.analysis.memory.rank.lives import UNTAGGED, Int
from zprof.analysis.memory.rank.roles import Segments, tenant_of
from zprof.model.memory import MemoryTimeline


def timeline_of_history(rank: int, history: History, names: Named, points: int = POINTS) -> MemoryTimeline:
    """At most ``points`` points; at each the columns sum to the live bytes."""
    blocks = history.blocks
    segments = Segments(
        block=np.arange(len(blocks), dtype=np.int64),
        begin_ns=blocks.begin_ns,
        end_ns=blocks.freed_ns,
        bytes=blocks.requested_bytes,
        tenant=names.tenant,
        sub=np.empty(0, dtype=object),
    )
    at = _highest(history, points)
    return MemoryTimeline(
        rank=rank,
        device=history.device,
        time_ns=tuple((at - history.begin_ns).tolist()),
        tenants={
            tenant_of(code): tuple(held_over(segments, code, at).tolist()) for code in range(UNTAGGED + 1)
        },
    )


def _highest(history: History, points: int) -> Int:
    """Time of the first highest point of each stretch: its begin, or an event in it."""
    blocks, length = history.blocks, history.end_ns - history.begin_ns
    count = max(1, min(points, length))
    begins = np.array([history.begin_ns + length * i // count for i in range(count)], dtype=np.int64)
    times, live = live_curve(blocks.begin_ns, blocks.freed_ns, blocks.requested_bytes)
    candidates = together(times, begins)
    value = value_at(times, live, candidates)
    first = np.searchsorted(candidates, begins)
    highest = np.repeat(np.maximum.reduceat(value, first), np.diff(np.append(first, len(candidates))))
    rows = np.flatnonzero(value == highest)
    stretch = np.searchsorted(first, rows, side="right")
    chosen: Int = candidates[rows[np.unique(stretch, return_index=True)[1]]]
    return chosen
