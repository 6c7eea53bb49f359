"""When each rank did what, for those who draw it: the instants behind the sums of the ledger."""

from dataclasses import dataclass

from zprof.analysis.intervals import Intervals
from zprof.analysis.time.activity.steps import StepWindows
from zprof.analysis.time.activity.timeline import RankTimeline
from zprof.analysis.time.clocks.offsets import RankClock
from zprof.analysis.time.exposure import Exposure


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTracks:
    """One rank, all on the common clock; ``clock`` brings its other times there.

    ``waiting`` and ``moving``: when it was held up by a collective, before and after the last rank's
    arrival.  Cut to ``steps`` they are the exposed wait and transfer of the ledger.  ``host_steps``: the same
    steps by the host's marks.  ``wait_before_ns``: how long it waited in the first collective of the
    recording, where that was launched before its steps.
    """

    rank: int
    host: str
    clock: RankClock
    steps: StepWindows
    host_steps: StepWindows
    coverage: Intervals
    waiting: Intervals
    moving: Intervals
    wait_before_ns: int = 0


def rank_tracks(
    timeline: RankTimeline, clock: RankClock, exposure: Exposure, wait_before_ns: int
) -> RankTracks:
    """What is kept of a rank that has been measured; ``timeline`` is on the common clock."""
    return RankTracks(
        rank=timeline.rank,
        host=timeline.host,
        clock=clock,
        steps=timeline.steps,
        host_steps=timeline.host_steps,
        coverage=timeline.activity.coverage,
        waiting=exposure.waiting,
        moving=exposure.moving,
        wait_before_ns=wait_before_ns,
    )
