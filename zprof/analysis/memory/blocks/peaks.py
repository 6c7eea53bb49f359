"""The two highest points of a history: of live bytes, and of what the allocator holds of the device.

An out-of-memory error is about the second one.  Memory is reserved for long, so that its highest point lasts;
the moment shown of it is the one with the most live bytes, the first of equals.
"""

import numpy as np

from zprof.analysis.memory.blocks.history import History
from zprof.analysis.memory.rank.curve import live_curve
from zprof.analysis.memory.rank.lives import Int

#: The history counts microseconds, the profiler nanoseconds, each by its own reading of the clock.
_APART_NS = 20_000


def allocated_peak(history: History) -> tuple[int, int]:
    """(time, bytes) of the most live bytes, counted as they were asked for; the first of equals."""
    blocks = history.blocks
    times, live = live_curve(blocks.begin_ns, blocks.freed_ns, blocks.requested_bytes)
    if not len(times):
        return history.begin_ns, 0
    at = int(np.argmax(live))
    return int(times[at]), int(live[at])


def reserved_peak(history: History, begin_ns: int, end_ns: int) -> int | None:
    """When within [begin, end] the allocator held the most; None where it held nothing."""
    stretches, blocks = history.stretches, history.blocks
    times, reserved = live_curve(stretches.begin_ns, stretches.end_ns, stretches.bytes)
    live_times, live = live_curve(blocks.begin_ns, blocks.freed_ns, blocks.requested_bytes)
    instants = together(times, live_times)
    inside = instants[(instants >= begin_ns) & (instants <= end_ns)]
    instants = together(np.array([begin_ns], dtype=np.int64), inside)
    held = value_at(times, reserved, instants)
    if not len(held) or int(held.max()) == 0:
        return None
    highest = np.flatnonzero(held == held.max())
    return int(instants[highest[np.argmax(value_at(live_times, live, instants[highest]))]])


def near(history: History, time_ns: int) -> int:
    """The moment of most live bytes close to a time that another clock read."""
    blocks = history.blocks
    times, live = live_curve(blocks.begin_ns, blocks.freed_ns, blocks.requested_bytes)
    first, last = np.searchsorted(times, [time_ns - _APART_NS, time_ns + _APART_NS])
    return int(times[first + np.argmax(live[first:last])]) if last > first else time_ns


def together(first: Int, second: Int) -> Int:
    """Two sorted lists of times as one; ``np.union1d`` hashes them, and takes twenty times as long."""
    merged = np.sort(np.concatenate([first, second]), kind="stable")
    distinct: Int = merged[np.append(True, merged[1:] != merged[:-1])[: len(merged)]]
    return distinct


def value_at(times: Int, values: Int, instants: Int) -> Int:
    """A curve's value at each instant; 0 before its first point."""
    at = np.searchsorted(times, instants, side="right") - 1
    found: Int = np.where(at >= 0, values[np.maximum(at, 0)], 0) if len(values) else np.zeros_like(instants)
    return found
