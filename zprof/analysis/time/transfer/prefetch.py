"""What a gather could have run under, had it started earlier.

An all_gather that starts at s can run from the end g of the gather before it on, once the link is free:

    free_i   = compute of the rank within [g, s_i] while no collective of it runs
    queued_i = exposed transfer within [c, s_i]          c: the end of the last compute before s_i

Free compute has hidden nothing.  Queued is what the rank, which computes nothing any more, loses to
collectives that this gather stands behind: an earlier gather lets it go on without them.  The first gather
of a step follows the update of the parameters, and can be no earlier: it has no free compute.
"""

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s, Intervals, covered, intervals, subtract, union
from zprof.analysis.time.transfer.texts import codes_of
from zprof.model.collectives import CollectiveKind

#: Columns that :func:`prefetch_columns` gives; 0 on rows that are no all_gather.
COLUMNS = ("free_compute_ns", "queued_exposed_ns")


def prefetch_columns(frame: pd.DataFrame, compute: Intervals, moving: Intervals) -> dict[str, Int64s]:
    """free_compute_ns and queued_exposed_ns for the collectives of one rank, sorted by start.

    Args:
        frame: Rows with step, kind, group, start_ns and end_ns.
        compute: When the rank computes, disjoint.
        moving: Its exposed transfer, disjoint.
    """
    start = frame["start_ns"].to_numpy(np.int64)
    running = union(intervals(frame["start_ns"], frame["end_ns"]))
    since = np.minimum(_since(frame), start)
    return {
        "free_compute_ns": covered(subtract(compute, running), since, start),
        "queued_exposed_ns": covered(moving, np.maximum(_computed(compute, start), since), start),
    }


def _since(frame: pd.DataFrame) -> Int64s:
    """The end of the all_gather before each, in its group and step; its own start where there is none."""
    found = frame["start_ns"].to_numpy(np.int64, copy=True)
    end, step = frame["end_ns"].to_numpy(np.int64), frame["step"].to_numpy(np.int64)
    gathers = np.flatnonzero(frame["kind"].astype(str).to_numpy() == CollectiveKind.ALL_GATHER.value)
    group = codes_of(frame["group"].iloc[gathers])[0]
    for lane in np.unique(np.column_stack((group, step[gathers])), axis=0):
        mine = gathers[(group == lane[0]) & (step[gathers] == lane[1])]
        found[mine[1:]] = np.maximum.accumulate(end[mine])[:-1]
    return found


def _computed(compute: Intervals, start: Int64s) -> Int64s:
    """The end of the last compute that began before each start, or that start where compute goes on."""
    if not len(compute):
        return np.full(len(start), np.iinfo(np.int64).min, dtype=np.int64)
    place = np.searchsorted(compute[:, 0], start, side="left") - 1
    ends = np.where(place >= 0, compute[np.maximum(place, 0), 1], np.iinfo(np.int64).min)
    return np.minimum(ends, start)
