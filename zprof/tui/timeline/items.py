"""The events of a lane, found by time: the one under the cursor, and those around it."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from zprof.analysis.intervals import Int64s
from zprof.tui.timeline.cover import Role


class Kind(IntEnum):
    """What an event is, as the analysis has it."""

    RANGE = 0
    HOST = 1
    COPY = 2
    NAMELESS = 3
    COLLECTIVE = 4
    COMPUTE = 5
    WAIT = 6


_TALKS = (Kind.COLLECTIVE, Kind.WAIT, Kind.NAMELESS)
#: The events behind a role, and in which order others stand for them where there are none.
_BEHIND: dict[Role | None, tuple[Kind, ...]] = {
    Role.COMPUTE: (Kind.COMPUTE,),
    Role.TRANSFER: _TALKS,
    Role.WAIT: _TALKS,
    Role.HIDDEN: _TALKS,
    Role.UNEXPLAINED: _TALKS,
    Role.MEMCPY: (Kind.COPY,),
    Role.HOST: (Kind.HOST, Kind.WAIT, Kind.COMPUTE),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Items:
    """Events by start, since the begin of the step.  ``row``: where each is described; ``kind``: of each.

    ``reach``: the latest end up to each, so that those that hold an instant are found by it.
    """

    start_ns: Int64s
    end_ns: Int64s
    row: Int64s
    kind: npt.NDArray[np.int8]
    reach: Int64s

    def __len__(self) -> int:
        return len(self.row)

    def touching(self, begin_ns: float, end_ns: float) -> Int64s:
        """Places of those that lie at least in part in a stretch."""
        # whole numbers: numpy would make a copy of all times to compare them with a fraction
        low = int(np.searchsorted(self.reach, math.floor(begin_ns), side="right"))
        high = int(np.searchsorted(self.start_ns, math.ceil(end_ns), side="left"))
        if high <= low:
            return np.empty(0, dtype=np.int64)
        return low + np.flatnonzero(self.end_ns[low:high] > begin_ns)

    def chosen(self, begin_ns: float, end_ns: float, role: Role | None) -> int | None:
        """The place of the event that a stretch shows: of its role, the longest there, the innermost."""
        places = self.touching(begin_ns, end_ns)
        behind = places[np.isin(self.kind[places], _values(_BEHIND.get(role, ())))]
        work = places[self.kind[places] != Kind.RANGE]
        for found in (behind, work, places):
            if len(found):
                return self._longest(found, begin_ns, end_ns)
        return None

    def around(self, place: int) -> list[int]:
        """Places of the events that enclose one, the innermost first."""
        start, end = int(self.start_ns[place]), int(self.end_ns[place])
        places = self.touching(start, max(end, start + 1))
        places = places[(self.start_ns[places] <= start) & (self.end_ns[places] >= end) & (places != place)]
        lengths = self.end_ns[places] - self.start_ns[places]
        return [int(found) for found in places[np.argsort(lengths, kind="stable")]]

    def _longest(self, places: Int64s, begin_ns: float, end_ns: float) -> int:
        start, end = self.start_ns[places], self.end_ns[places]
        inside = np.minimum(end, end_ns) - np.maximum(start, begin_ns)
        return int(places[np.lexsort((end - start, -inside))[0]])


def items_of(start_ns: Int64s, end_ns: Int64s, row: Int64s, kind: npt.NDArray[np.int8]) -> Items:
    """Events in any order."""
    order = np.lexsort((-end_ns, start_ns))
    end = end_ns[order]
    return Items(
        start_ns=start_ns[order],
        end_ns=end,
        row=row[order],
        kind=kind[order],
        reach=np.maximum.accumulate(end) if len(end) else end,
    )


def _values(kinds: Collection[Kind]) -> list[int]:
    return [int(kind) for kind in kinds]
