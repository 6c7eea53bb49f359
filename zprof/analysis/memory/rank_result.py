"""Define the result of analysing one rank's memory: its parts of ``zprof.model.memory``, and its gaps."""

from msgspec import Struct

from zprof.analysis.memory.state_checks import MeasuredStates
from zprof.model.endings import OutOfMemory
from zprof.model.gaps import Gap, GapKind
from zprof.model.memory import (
    Allocation,
    AllocatorCounters,
    DeviceMemory,
    HistoryWindow,
    MemoryTimeline,
    ModulePeak,
    PeakGrowth,
    PhasePeak,
    RankMemory,
    StackTree,
)


class RankMemoryResult(Struct, frozen=True, kw_only=True):
    """Leaves of one rank, from a live recording or from a snapshot.

    ``per_rank``, ``states`` and ``timelines`` have at most one entry, for the rank's own device. The formula
    checks and the choice of timelines to show are made once all ranks are available.
    """

    per_rank: tuple[RankMemory, ...] = ()
    top: tuple[Allocation, ...] = ()
    phases: tuple[PhasePeak, ...] = ()
    modules: tuple[ModulePeak, ...] = ()
    states: tuple[MeasuredStates, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    counters: tuple[AllocatorCounters, ...] = ()
    host: tuple[RankMemory, ...] = ()
    init: tuple[RankMemory, ...] = ()
    timelines: tuple[MemoryTimeline, ...] = ()
    stacks: tuple[StackTree, ...] = ()
    windows: tuple[HistoryWindow, ...] = ()
    growth: tuple[PeakGrowth, ...] = ()
    out_of_memory: tuple[OutOfMemory, ...] = ()
    gaps: tuple[Gap, ...] = ()


def make_unknown_result(rank: int, reason: str, remedy: str) -> RankMemoryResult:
    """Return an empty result for a rank, with the reason as a gap."""
    return RankMemoryResult(
        gaps=(Gap(kind=GapKind.MEMORY, what="memory", rank=rank, reason=reason, remedy=remedy),)
    )
