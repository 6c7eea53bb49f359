"""Which collective a blocked rank is blocked by, at each instant.

Exposed is set arithmetic: what lies in the collectives and in the time in which the rank is blocked.  On
a CPU rank that is the wait spans of the main thread, on a device everything without compute.  Several
collectives may run at once, so each blocked instant goes to exactly one: to the running one that the
thread, or the compute behind the gap, waits for; else to the running one that started first (the queue in
front of it).  Summed over collectives that is the length of the union, never more.
"""

from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Int64s, Intervals, covered, intersect, intervals, subtract, union
from zprof.analysis.time.activity.blocking import Blocking
from zprof.analysis.time.activity.claims import first_start_first


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Exposed time of one rank: by instant, and by collective in the order of the table."""

    waiting: Intervals
    moving: Intervals
    wait_ns: Int64s
    transfer_ns: Int64s


def expose(arrival_ns: Int64s, blocking: Blocking) -> Exposure:
    """Attribute the blocked time of one rank.

    Args:
        arrival_ns: Of each collective the last rank's start.
        blocking: When the rank is blocked, and what for.
    """
    queued = first_start_first(*blocking.running.T)
    unclaimed = subtract(blocking.blocked, blocking.awaited)
    parts = [
        _split(blocking.awaited, arrival_ns, blocking.blocked),
        _split(queued, arrival_ns, unclaimed),
    ]
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
