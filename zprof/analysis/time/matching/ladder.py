"""Matches the collectives of different ranks, rung by rung, and says what it could not match.

1. Group and sequence, where the program states it; kind, dtype and bytes must agree.
2. The order within a group, where signatures and marked steps of the ranks agree.
3. Signatures and times, where ranks lack rows or their windows differ.
4. The order on the stream, where the ranks of a group are not known.

Each match must be possible whatever the clocks (:mod:`feasible`).  A refused row stands alone, and nobody
is blamed for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks.table import Table
from zprof.analysis.time.matching.feasible import checked
from zprof.analysis.time.matching.lanes import Lane
from zprof.analysis.time.matching.ordered import Hints, place
from zprof.analysis.time.matching.placement import ALONE, Placement, table_of
from zprof.analysis.time.matching.rows import Rows, Rung, is_full_sync
from zprof.analysis.time.matching.stated import by_sequence

__all__ = ["Matching", "is_full_sync", "joined", "match_ordered", "match_stated", "refuse", "with_instances"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Placed lanes, and rows that ranks disagree on."""

    placements: tuple[Placement, ...]
    conflicts: Int64s

    def tables(self, rows: Rows) -> list[Table]:
        """What clocks are read from."""
        return [table_of(placement, rows) for placement in self.placements]

    @property
    def shifts(self) -> dict[int, int]:
        """The largest shift of each rank that was shifted."""
        found: dict[int, int] = {}
        for placement in self.placements:
            for rank, shift in placement.shifts.items():
                found[rank] = max(found.get(rank, 0), shift, key=abs)
        return dict(sorted(found.items()))

    @property
    def excluded(self) -> tuple[int, ...]:
        """Ranks that fit nowhere in at least one group."""
        return tuple(sorted({rank for placement in self.placements for rank in placement.excluded}))


def match_stated(lanes: Sequence[Lane], rows: Rows, hints: Hints) -> Matching:
    """Lanes with a sequence that the program stated."""
    placements, conflicts = [], []
    for lane in lanes:
        if lane.stated:
            placement, bad = by_sequence(lane, rows)
            if bad.all():
                placement = place(replace(lane, stated=False), rows, hints)
                bad = placement.slot == ALONE
            placements.append(checked(placement, rows, hints))
            conflicts.append(lane.rows[bad])
    return Matching(placements=tuple(placements), conflicts=_joined(conflicts))


def match_ordered(lanes: Sequence[Lane], rows: Rows, hints: Hints) -> Matching:
    """Lanes whose sequence is only an order."""
    found = [checked(place(lane, rows, hints), rows, hints) for lane in lanes if not lane.stated]
    return Matching(placements=tuple(found), conflicts=_joined([]))


def joined(one: Matching, other: Matching) -> Matching:
    """Both."""
    return Matching(
        placements=one.placements + other.placements, conflicts=_joined([one.conflicts, other.conflicts])
    )


def _joined(parts: Sequence[Int64s]) -> Int64s:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def with_instances(frame: pd.DataFrame, matching: Matching) -> pd.DataFrame:
    """Add ``instance`` (equal on all rows of a match, -1 where alone), ``matched`` and ``rung``."""
    instance = np.full(len(frame), ALONE, dtype=np.int64)
    rung = np.full(len(frame), str(Rung.ALONE), dtype=object)
    size = np.zeros(len(frame), dtype=np.int64)
    used = 0
    for placement in matching.placements:
        placed = placement.slot >= 0
        mine = placement.lane.rows[placed]
        instance[mine] = placement.slot[placed] + used
        rung[mine] = str(placement.rung)
        size[mine] = placement.lane.size
        used += int(placement.slot.max(initial=ALONE)) + 1
    present = np.bincount(instance + 1, minlength=used + 1)[instance + 1]
    matched = (instance >= 0) & (present == size)
    return frame.assign(instance=instance, matched=matched, rung=rung)


def refuse(frame: pd.DataFrame, rows: "pd.Series[bool]") -> pd.DataFrame:
    """The frame with these rows standing alone."""
    return frame.assign(
        instance=frame["instance"].where(~rows, ALONE),
        matched=frame["matched"] & ~rows,
        rung=frame["rung"].where(~rows, str(Rung.ALONE)),
    )
