"""The meeting of a group: the transfer begins when the last rank is there, and all leave together.

Ends differ between ranks by a small spread, as the last bytes reach some of them later.
"""

from dataclasses import dataclass

import numpy as np

from zprof.model.time import LateReason
from zprof.simulator.engine.instants import Instant, after, reason_of
from zprof.simulator.engine.network import Links
from zprof.simulator.engine.schedule import Times
from zprof.simulator.plan import Plan
from zprof.simulator.program.instructions import Collective
from zprof.simulator.program.mesh import Groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """How a collective went.  ``late``: of each group, the rank that came last and why."""

    end: Instant
    arrival: Times
    late: tuple[tuple[int, LateReason], ...]


class Meetings:
    """Carries out collectives over a network."""

    def __init__(self, plan: Plan, random: np.random.Generator) -> None:
        self._links = Links(plan)
        self._network = plan.network
        self._random = random

    def meet(self, collective: Collective, groups: Groups, begin: Instant, since: Instant) -> Meeting:
        """Let all groups along an axis meet; a late rank is judged by what it did since ``since``."""
        members = groups.members
        starts = begin[0][members]
        last = np.take_along_axis(members, starts.argmax(axis=1)[:, None], axis=1)
        transfer = self._links.transfer_ns(collective, groups)
        arrival, duration = np.empty_like(begin[0]), np.empty_like(begin[0])
        arrival[members] = begin[0][last]
        duration[members] = transfer[:, None]
        duration += self._spread(duration)
        return Meeting(
            end=after(begin, LateReason.PREVIOUS_COLLECTIVE, arrival + duration - begin[0]),
            arrival=arrival,
            late=tuple(
                (int(rank), reason_of(begin - since, int(rank), group[group != rank]))
                for rank, group in zip(last[:, 0], members, strict=True)
            ),
        )

    def _spread(self, duration: Times) -> Times:
        most = self._network.spread_ns + duration * self._network.spread_ratio
        return np.rint(self._random.random(len(duration)) * most).astype(np.int64)
