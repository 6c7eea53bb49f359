"""Walks back from the end of a step to its begin, along what could not have come earlier.

From the rank that ends last, and its end.  Where a rank was held up by a collective, the bytes moved since
the last rank came; so the path goes over to that rank, at that instant.  Where a collective started when
the one before it on its stream ended, the path goes through that one.  Else it is what the rank itself did,
back to where it was last held up.  Each piece begins where the one before it ends: they sum to the step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Intervals
from zprof.analysis.time.activity.claims import NOTHING_NS
from zprof.analysis.time.critical_path.meetings import Meetings

#: Pieces of a path; a step has some for each of its collectives.
_MOST_PIECES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of the path of one step: a rank's own work, or (``moving``) a transfer that it waited for."""

    rank: int
    begin_ns: int
    end_ns: int
    moving: bool


def walk(
    rank: int, begins: Mapping[int, int], end_ns: int, blocked: Mapping[int, Intervals], meetings: Meetings
) -> list[Piece]:
    """The path of one step, last piece first.

    Args:
        rank: That ends last.
        begins: Begin of the step on each rank.
        end_ns: Its end on that rank.
        blocked: When each rank was held up by collectives.
        meetings: The collectives.
    """
    pieces: list[Piece] = []
    now = end_ns
    while now > begins[rank] and len(pieces) < _MOST_PIECES:
        held_from, held_until = _held_up(blocked[rank], now)
        row = meetings.ended(rank, held_from, held_until) if held_until > begins[rank] else -1
        since = int(meetings.end[row]) if row >= 0 else held_from
        own = max(begins[rank], min(since, now))
        if own < now:
            pieces.append(Piece(rank=rank, begin_ns=own, end_ns=now, moving=False))
        now = own
        if row >= 0:
            rank, now = _through(meetings, row, now, begins, pieces)
    return pieces


def _held_up(blocked: Intervals, now: int) -> tuple[int, int]:
    """The last stretch, cut at ``now``, in which a rank was held up; an empty one in the far past without."""
    place = int(np.searchsorted(blocked[:, 0], now, side="left")) - 1
    if place < 0:
        return NOTHING_NS, NOTHING_NS
    return int(blocked[place, 0]), min(int(blocked[place, 1]), now)


def _through(
    meetings: Meetings, row: int, now: int, begins: Mapping[int, int], pieces: list[Piece]
) -> tuple[int, int]:
    """Back through a collective, and those it was queued behind, to a rank that came last and when."""
    while True:
        last = int(meetings.last[row])
        rank = int(meetings.rank[row])
        arrived = max(begins[rank], min(int(meetings.start[last]), now - 1))
        pieces.append(Piece(rank=rank, begin_ns=arrived, end_ns=now, moving=True))
        rank, now = int(meetings.rank[last]), arrived
        row = int(meetings.queued[last])
        if row < 0 or now <= begins[rank] or len(pieces) >= _MOST_PIECES:
            return rank, now
