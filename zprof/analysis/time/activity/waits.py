"""For which collectives the compute of a device can have waited.

A kernel waits for another stream where the host put an event of that stream in front of it.  A trace with
synchronisation events shows these calls; then compute can only have waited for a collective that was
launched before such a call, and where there is no call it waited for none.
"""

import numpy as np

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals
from zprof.analysis.time.activity.claims import ANYTHING_NS, NOTHING_NS, last_end_first
from zprof.analysis.time.activity.launches import UNKNOWN_NS
from zprof.analysis.time.activity.view import Mask


def awaits_until(
    compute: Intervals,
    *,
    starts: Int64s,
    streams: Int64s,
    launched: Int64s,
    computes: Mask,
    wait_calls: Intervals,
) -> Int64s:
    """Before when a collective was launched for which each interval of compute can have waited.

    Args:
        compute: Disjoint intervals, sorted.
        starts: Start of each piece of work.
        streams: Its stream.
        launched: Its launch, ``UNKNOWN_NS`` where that is unknown.
        computes: Which of the work is compute.
        wait_calls: Stream and time of each call that lets a stream wait for an event.
    """
    if not len(wait_calls):
        return np.full(len(compute), ANYTHING_NS, dtype=np.int64)
    order = np.lexsort((starts, streams))
    until = np.empty(len(starts), dtype=np.int64)
    for stream in np.unique(streams).tolist():
        mine = order[streams[order] == stream]
        until[mine] = _until(launched[mine], np.sort(wait_calls[wait_calls[:, 0] == stream, 1]))
    found = np.full(len(compute), NOTHING_NS, dtype=np.int64)
    index = np.searchsorted(compute[:, 0], starts[computes])
    first = compute[np.minimum(index, len(compute) - 1), 0] == starts[computes]
    np.maximum.at(found, index[first], until[computes][first])
    return found


def _until(launched: Int64s, calls: Int64s) -> Int64s:
    """For the work of one stream in its order: the last call between its launch and that of the one before.

    Of work whose launch is unknown, or that came with the one before in one call, nothing can be said.
    """
    before = np.concatenate(([NOTHING_NS], launched[:-1]))
    index = np.searchsorted(calls, launched, side="right") - 1
    last = np.where(index >= 0, np.append(calls, 0)[np.maximum(index, 0)], NOTHING_NS)
    waited = np.where(last > before, last, NOTHING_NS)
    return np.where((launched == UNKNOWN_NS) | (launched == before), ANYTHING_NS, waited).astype(np.int64)


def awaited_by_compute(running: Intervals, launched: Int64s, compute: Intervals, awaits: Int64s) -> Intervals:
    """For each collective when the compute behind it waits for it: disjoint.

    Each gap in the compute ends with the kernel that waited.  Collectives that are done by then are what
    it can have waited for, the last one first, and before that starts those that end earlier; one that still
    runs when the kernel starts did not hold it up.

    Args:
        running: When each collective runs; an empty interval where it does not on the device.
        launched: When each was launched.
        compute: Disjoint intervals, sorted.
        awaits: What each of them can have waited for, as :func:`awaits_until` says.
    """
    if not len(running) or not len(compute):
        return intervals(running[:, 0], running[:, 0]) if len(running) else EMPTY
    start, end = running.T
    next_ = np.searchsorted(compute[:, 0], end, side="left")
    bound = np.append(compute[:, 0], 0)[next_]
    gap_begin = np.where(next_ > 0, compute[np.maximum(next_ - 1, 0), 1], NOTHING_NS)
    done = (next_ < len(compute)) & (gap_begin < end) & (end <= bound) & (end > start)
    done &= launched < np.append(awaits, NOTHING_NS)[next_]
    return last_end_first(start, end, gap_begin, done)
