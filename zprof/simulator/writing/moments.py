"""The schedule of one rank on its own clock."""

from dataclasses import dataclass

import numpy as np

from zprof.simulator.clocks import clock_of
from zprof.simulator.engine.schedule import Line, Schedule
from zprof.simulator.writing.sheet import Opening

_BEFORE_NS = 150_000
_BEHIND_NS = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One instruction on one rank, in nanoseconds of its clock."""

    line: Line
    host_begin: int
    host_end: int
    launch: int
    begin: int
    end: int


class Times:
    """All times of a schedule as one array, to be read rank by rank."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        lines = schedule.lines
        self._all = np.stack(
            [
                np.stack([getattr(line, name) for line in lines])
                for name in ("host_begin", "host_end", "launch", "begin", "end")
            ]
        )

    def moments(self, rank: int) -> list[Moment]:
        """What a rank did, in program order; what it took no part in is left out."""
        clock = clock_of(self._schedule.plan, rank)
        columns = clock.stamps(self._all[:, :, rank]).tolist()
        return [
            Moment(line=line, host_begin=called, host_end=returned, launch=launch, begin=begin, end=end)
            for line, called, returned, launch, begin, end in zip(self._schedule.lines, *columns, strict=True)
            if line.did is None or rank in line.did
        ]

    def common_opening(self, rank: int) -> Opening:
        """When a rank records, on the common clock since the origin."""
        window = self._schedule.plan.windows.get(rank)
        late, early = (window.opens_late_ns, window.closes_early_ns) if window else (0, 0)
        late += window.opening_ns if window else 0
        end = int(self._schedule.end_ns[rank])
        return Opening(opens_ns=late - _BEFORE_NS, closes_ns=end + _BEHIND_NS - early)

    def local_opening(self, rank: int) -> Opening:
        """The same on the rank's own clock."""
        common = self.common_opening(rank)
        stamps = clock_of(self._schedule.plan, rank).stamps(np.array([common.opens_ns, common.closes_ns]))
        return Opening(opens_ns=int(stamps[0]), closes_ns=int(stamps[1]))
