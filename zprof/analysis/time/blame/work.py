"""What one rank did, as far as it can tell why the rank came late."""

from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Int64s, Intervals, covered, subtract, union
from zprof.analysis.time.activity.events import Activity
from zprof.analysis.time.exposure import Exposure

_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """On the common clock.  ``blocked``: held up by a collective.  ``copies``: under neither of the others.

    ``kernels``: launch, duration and end of each compute kernel of a device, by launch.
    ``begin_ns``: of the window.
    """

    on_device: bool
    begin_ns: int
    compute: Intervals
    copies: Intervals
    blocked: Intervals
    kernels: Int64s

    def computed(self, starts: Int64s, ends: Int64s) -> Int64s:
        """Compute of each stretch of time."""
        return covered(self.compute, starts, ends)

    def computed_in_program(self, launched_from: Int64s, launched_to: Int64s) -> Int64s:
        """Duration of the kernels that each stretch of the program launched, whenever they ran."""
        total = np.concatenate(([0], np.cumsum(self.kernels[:, 1])))
        low, high = (np.searchsorted(self.kernels[:, 0], edge) for edge in (launched_from, launched_to))
        computed: Int64s = np.maximum(0, total[high] - total[low])
        return computed

    def reached(self, launches: Int64s) -> Int64s:
        """When each place of the program was reached: launched, and the compute before it done."""
        done = np.concatenate(([_NEVER], np.maximum.accumulate(self.kernels[:, 2])))
        before = np.searchsorted(self.kernels[:, 0], launches, side="left")
        reached: Int64s = np.maximum(launches, done[before])
        return reached

    def copied(self, starts: Int64s, ends: Int64s) -> Int64s:
        """Exposed copies of each stretch of time."""
        return covered(self.copies, starts, ends)

    def held_up(self, starts: Int64s, ends: Int64s) -> Int64s:
        """Blocked time of each stretch of time."""
        return covered(self.blocked, starts, ends)

    @property
    def busy(self) -> Intervals:
        """All of it together."""
        return union(self.compute, self.copies, self.blocked)

    def idle(self, starts: Int64s, ends: Int64s) -> Int64s:
        """What is left of each stretch of time."""
        idle: Int64s = np.maximum(0, ends - starts) - covered(self.busy, starts, ends)
        return idle


def rank_work(activity: Activity, exposure: Exposure, begin_ns: int) -> RankWork:
    """Keep what is needed of a rank that has been measured."""
    blocked = union(exposure.waiting, exposure.moving)
    order = np.argsort(activity.kernels[:, 0], kind="stable")
    launch, start, end = activity.kernels[order].T
    return RankWork(
        on_device=activity.on_device,
        begin_ns=begin_ns,
        compute=activity.compute,
        copies=subtract(activity.copies, union(activity.compute, blocked)),
        blocked=blocked,
        kernels=np.column_stack((launch, end - start, end)),
    )
