"""Which collective a blocked rank is blocked by, at each instant.

Exposed is set arithmetic: what lies in the collectives and in the time in which the rank is blocked.  On
a CPU rank that is the wait spans of the main thread, on a device everything without compute.  Several
collectives may run at once, so each blocked instant goes to exactly one: to the collective that the
thread waits for while that runs, else to the running one that started first (the queue in front of it).
Summed over collectives that is the length of the union, never more.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import (
    EMPTY,
    Int64s,
    Intervals,
    covered,
    intersect,
    intervals,
    subtract,
    union,
)

_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Exposed time of one rank: by instant, and by collective in the order of the table."""

    waiting: Intervals
    moving: Intervals
    wait_ns: Int64s
    transfer_ns: Int64s


def expose(collectives: pd.DataFrame, blocked: Intervals) -> Exposure:
    """Attribute the blocked time of one rank.

    Args:
        collectives: Rows of the rank, with ``arrival_ns`` (the last rank's start).
        blocked: When the rank is blocked.
    """
    start, end = _column(collectives, "start_ns"), _column(collectives, "end_ns")
    wait_start = _column(collectives, "wait_start_ns", missing=0)
    wait_end = _column(collectives, "wait_end_ns", missing=0)
    awaited = _first_claims(np.maximum(start, wait_start), np.minimum(end, wait_end))
    queued = _first_claims(start, end)
    unclaimed = subtract(blocked, awaited)
    arrival = _column(collectives, "arrival_ns")
    parts = [_split(awaited, arrival, blocked), _split(queued, arrival, unclaimed)]
    return Exposure(
        waiting=union(*(part.waiting for part in parts)),
        moving=union(*(part.moving for part in parts)),
        wait_ns=parts[0].wait_ns + parts[1].wait_ns,
        transfer_ns=parts[0].transfer_ns + parts[1].transfer_ns,
    )


def _split(claims: Intervals, arrival: Int64s, blocked: Intervals) -> Exposure:
    """Cut each claim where the last rank arrives, and keep what is blocked."""
    middle = np.clip(arrival, claims[:, 0], np.maximum(claims[:, 0], claims[:, 1]))
    waiting, moving = intervals(claims[:, 0], middle), intervals(middle, claims[:, 1])
    return Exposure(
        waiting=intersect(waiting, blocked),
        moving=intersect(moving, blocked),
        wait_ns=covered(blocked, waiting[:, 0], waiting[:, 1]),
        transfer_ns=covered(blocked, moving[:, 0], moving[:, 1]),
    )


def _first_claims(start: Int64s, end: Int64s) -> Intervals:
    """Each span without what spans that started earlier still hold: disjoint, with the same union."""
    if not len(start):
        return EMPTY
    end = np.maximum(start, end)
    order = np.argsort(start, kind="stable")
    held_until = np.concatenate(([_NEVER], np.maximum.accumulate(end[order])[:-1]))
    claims = np.empty((len(start), 2), dtype=np.int64)
    claims[order, 0] = np.maximum(start[order], held_until)
    claims[:, 1] = np.maximum(claims[:, 0], end)
    return claims


def _column(frame: pd.DataFrame, name: str, missing: int | None = None) -> Int64s:
    column = frame[name] if missing is None else frame[name].fillna(missing)
    return column.to_numpy(dtype=np.int64)
