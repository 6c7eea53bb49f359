"""A timeline lane: its events, searchable by time, and the share of each role per column.

Both are prepared once, so a column costs O(log n).
"""

import math
from collections.abc import Mapping
from enum import IntEnum, StrEnum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zprof.analysis.columns import Floats
from zprof.analysis.intervals import Int64s, Intervals, union

#: Marks a column in which nothing ran, instead of a role.
IDLE = -1


class LaneRole(StrEnum):
    """Role shown in a lane's column; all but the last are ledger terms under their report names."""

    COMPUTE = "compute_ns"
    TRANSFER = "exposed_transfer_ns"
    WAIT = "exposed_wait_ns"
    HIDDEN = "overlapped_ns"
    MEMCPY = "exposed_memcpy_ns"
    UNEXPLAINED = "unexplained_ns"
    HOST = "host"


#: Display names of the roles.
ROLE_NAMES: Mapping[LaneRole, str] = {
    LaneRole.COMPUTE: "compute",
    LaneRole.TRANSFER: "exposed transfer",
    LaneRole.WAIT: "exposed wait",
    LaneRole.HIDDEN: "hidden communication",
    LaneRole.MEMCPY: "copies",
    LaneRole.UNEXPLAINED: "unexplained",
    LaneRole.HOST: "other host work",
}


class Cover(Struct, frozen=True, eq=False):
    """A set of intervals, prepared for measuring its length between any two times.

    ``edges``: alternating starts and ends. ``covered_before``: covered length before each edge. Between two
    edges, the covered length grows by 1 or 0 per nanosecond, so linear interpolation is exact: times are
    integers since the start of a step, far below 2**53.
    """

    edges: Floats
    covered_before: Floats

    @property
    def spans(self) -> Intervals:
        """The disjoint intervals."""
        return self.edges.astype(np.int64).reshape(-1, 2)

    @property
    def length_ns(self) -> int:
        """Total covered length."""
        return int(self.covered_before[-1]) if len(self.covered_before) else 0

    def between(self, points: Floats) -> Floats:
        """Return the covered length between each pair of neighbouring points; points must be ascending."""
        if not len(self.edges):
            return np.zeros(max(0, len(points) - 1))
        return np.diff(np.interp(points, self.edges, self.covered_before))


def build_cover(spans: Intervals) -> Cover:
    """Build a cover from intervals in any order, which may overlap."""
    merged = union(spans)
    lengths = np.zeros(2 * len(merged))
    lengths[1::2] = merged[:, 1] - merged[:, 0]
    return Cover(edges=merged.ravel().astype(np.float64), covered_before=np.cumsum(lengths))


class EventKind(IntEnum):
    """Kind of an event, as classified by the analysis."""

    RANGE = 0
    HOST = 1
    COPY = 2
    NAMELESS = 3
    COLLECTIVE = 4
    COMPUTE = 5
    WAIT = 6


_COMMUNICATION_KINDS = (EventKind.COLLECTIVE, EventKind.WAIT, EventKind.NAMELESS)
#: Event kinds to show for a role, in order of preference.
_KINDS_OF_ROLE: dict[LaneRole | None, tuple[EventKind, ...]] = {
    LaneRole.COMPUTE: (EventKind.COMPUTE,),
    LaneRole.TRANSFER: _COMMUNICATION_KINDS,
    LaneRole.WAIT: _COMMUNICATION_KINDS,
    LaneRole.HIDDEN: _COMMUNICATION_KINDS,
    LaneRole.UNEXPLAINED: _COMMUNICATION_KINDS,
    LaneRole.MEMCPY: (EventKind.COPY,),
    LaneRole.HOST: (EventKind.HOST, EventKind.WAIT, EventKind.COMPUTE),
}


class Items(Struct, frozen=True, kw_only=True, eq=False):
    """Events sorted by start, with times since the start of the step.

    ``row``: each event's row in its source table. ``kind``: each event's kind. ``reach``: running maximum of
    the ends, to find the events that contain a moment.
    """

    start_ns: Int64s
    end_ns: Int64s
    row: Int64s
    kind: npt.NDArray[np.int8]
    reach: Int64s

    def __len__(self) -> int:
        return len(self.row)

    def touching(self, begin_ns: float, end_ns: float) -> Int64s:
        """Return the indices of the events that overlap an interval."""
        # Integer bounds: numpy would copy all times to compare them with a float.
        low = int(np.searchsorted(self.reach, math.floor(begin_ns), side="right"))
        high = int(np.searchsorted(self.start_ns, math.ceil(end_ns), side="left"))
        if high <= low:
            return np.empty(0, dtype=np.int64)
        return low + np.flatnonzero(self.end_ns[low:high] > begin_ns)

    def select_event(self, begin_ns: float, end_ns: float, role: LaneRole | None) -> int | None:
        """Return the index of the event to show for an interval, or None.

        Events of its role come first, then other work, then ranges; among equals, the largest overlap wins,
        then the shortest (innermost) event.
        """
        indices = self.touching(begin_ns, end_ns)
        of_role = indices[np.isin(self.kind[indices], [int(kind) for kind in _KINDS_OF_ROLE.get(role, ())])]
        work = indices[self.kind[indices] != EventKind.RANGE]
        for candidates in (of_role, work, indices):
            if len(candidates):
                start, end = self.start_ns[candidates], self.end_ns[candidates]
                inside = np.minimum(end, end_ns) - np.maximum(start, begin_ns)
                return int(candidates[np.lexsort((end - start, -inside))[0]])
        return None

    def find_enclosing(self, index: int) -> list[int]:
        """Return the indices of the events that enclose one, innermost first."""
        start, end = int(self.start_ns[index]), int(self.end_ns[index])
        indices = self.touching(start, max(end, start + 1))
        indices = indices[
            (self.start_ns[indices] <= start) & (self.end_ns[indices] >= end) & (indices != index)
        ]
        lengths = self.end_ns[indices] - self.start_ns[indices]
        return [int(outer) for outer in indices[np.argsort(lengths, kind="stable")]]


def build_items(start_ns: Int64s, end_ns: Int64s, row: Int64s, kind: npt.NDArray[np.int8]) -> Items:
    """Build items from events in any order."""
    order = np.lexsort((-end_ns, start_ns))
    end = end_ns[order]
    return Items(
        start_ns=start_ns[order],
        end_ns=end,
        row=row[order],
        kind=kind[order],
        reach=np.maximum.accumulate(end) if len(end) else end,
    )


class LaneKind(StrEnum):
    """Content of a lane; lanes of ``PHASES`` and ``UNITS`` show names."""

    PHASES = "phases"
    UNITS = "units"
    COLLECTIVES = "collectives"
    STREAM = "stream"
    THREAD = "thread"


class TimelineLane(Struct, frozen=True, kw_only=True, eq=False):
    """One row of the timeline.

    ``names``: the list indexed by ``items.row`` if the lane shows names. ``shows_idle``: an empty column
    means that the rank is idle, according to this lane.
    """

    key: str
    label: str
    title: str
    kind: LaneKind
    covers: Mapping[LaneRole, Cover]
    items: Items
    names: tuple[str, ...] = ()
    shows_idle: bool = False

    @property
    def busy_ns(self) -> int:
        """Total time in which anything ran in the lane."""
        return sum(cover.length_ns for cover in self.covers.values())

    @property
    def is_named(self) -> bool:
        """Return True if the lane shows names instead of glyphs."""
        return self.kind in (LaneKind.PHASES, LaneKind.UNITS)


class Columns(Struct, frozen=True, kw_only=True, eq=False):
    """A lane drawn in columns: each column's dominant role, and the shares of all roles.

    ``shares`` has shape (roles, columns). ``first``: each dominant role's index in ``roles``, `IDLE` if
    nothing ran.
    """

    roles: tuple[LaneRole, ...]
    shares: Floats
    first: Int64s

    def share(self, column: int) -> dict[LaneRole, float]:
        """Return the share of each role in a column, largest first."""
        shares = {role: float(self.shares[index, column]) for index, role in enumerate(self.roles)}
        return dict(sorted(((r, s) for r, s in shares.items() if s > 0), key=lambda pair: -pair[1]))

    def role(self, column: int) -> LaneRole | None:
        """Return the dominant role of a column, or None if nothing ran."""
        index = int(self.first[column])
        return None if index == IDLE else self.roles[index]


def compute_columns(lane: TimelineLane, edges: Floats) -> Columns:
    """Return the columns between neighbouring edges, in O(columns log n)."""
    roles = tuple(lane.covers)
    width = max(0, len(edges) - 1)
    if not roles or not width:
        return Columns(roles=(), shares=np.zeros((0, width)), first=np.full(width, IDLE))
    shares = np.stack([lane.covers[role].between(edges) for role in roles]) / np.diff(edges)
    first = np.where(shares.max(axis=0) > 0, shares.argmax(axis=0), IDLE).astype(np.int64)
    return Columns(roles=roles, shares=shares, first=first)
