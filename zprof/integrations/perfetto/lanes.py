"""Puts slices on lanes, so that two slices of a lane lie within or beside each other: viewers need that."""

import numpy as np

from zprof.analysis.intervals import Int64s

#: Slices that overlap all of so many lanes are left out: a track is no longer readable, nor bounded.
MOST_LANES = 16
NO_LANE = -1


def order(start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """By start, and the longer first: the order in which slices open."""
    return np.lexsort((-end_ns, start_ns)).astype(np.int64)


def lanes(start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """The lane of each slice, the lowest that has room; slices come in their ``order``."""
    open_ends: list[list[int]] = []
    found = np.full(len(start_ns), NO_LANE, dtype=np.int64)
    for index, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        for ends in open_ends:
            while ends and ends[-1] <= start:
                ends.pop()
        lane = next((n for n, ends in enumerate(open_ends) if not ends or end <= ends[-1]), len(open_ends))
        if lane == len(open_ends):
            if lane == MOST_LANES:
                continue
            open_ends.append([])
        open_ends[lane].append(end)
        found[index] = lane
    return found
