"""A lane: what one stream, thread or kind of thing did in a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.tui.timeline.cover import Cover, Floats, Role
from zprof.tui.timeline.items import Items

#: In place of a role where nothing ran.
IDLE = -1


class LaneKind(StrEnum):
    """What a lane is made of; the names of ``PHASES`` and ``UNITS`` are written into them."""

    PHASES = "phases"
    UNITS = "units"
    COLLECTIVES = "collectives"
    STREAM = "stream"
    THREAD = "thread"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lane:
    """One row.  ``names``: what ``items.row`` points to where the lane has names written into it.

    ``shows_idle``: nothing in it means that the rank does nothing, as far as this lane tells.
    """

    key: str
    label: str
    title: str
    kind: LaneKind
    covers: Mapping[Role, Cover]
    items: Items
    names: tuple[str, ...] = ()
    shows_idle: bool = False

    @property
    def busy_ns(self) -> int:
        """How long anything ran in it."""
        return sum(cover.length_ns for cover in self.covers.values())

    @property
    def is_named(self) -> bool:
        """Whether names stand in it, rather than glyphs."""
        return self.kind in (LaneKind.PHASES, LaneKind.UNITS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """A view of a lane: for each column the role that holds most of it, and the shares of all roles.

    ``first``: the place of that role in ``roles``, ``IDLE`` where nothing ran.
    """

    roles: tuple[Role, ...]
    shares: Floats
    first: Int64s

    def share(self, column: int) -> dict[Role, float]:
        """What holds a column, the most first."""
        found = {role: float(self.shares[place, column]) for place, role in enumerate(self.roles)}
        return dict(sorted(((r, s) for r, s in found.items() if s > 0), key=lambda pair: -pair[1]))

    def role(self, column: int) -> Role | None:
        """The role that holds most of a column."""
        place = int(self.first[column])
        return None if place == IDLE else self.roles[place]


def columns_of(lane: Lane, edges: Floats) -> Columns:
    """The columns between neighbouring edges: O(columns log n)."""
    roles = tuple(lane.covers)
    width = max(0, len(edges) - 1)
    if not roles or not width:
        return Columns(roles=(), shares=np.zeros((0, width)), first=np.full(width, IDLE))
    shares = np.stack([lane.covers[role].between(edges) for role in roles]) / np.diff(edges)
    first = np.where(shares.max(axis=0) > 0, shares.argmax(axis=0), IDLE).astype(np.int64)
    return Columns(roles=roles, shares=shares, first=first)
