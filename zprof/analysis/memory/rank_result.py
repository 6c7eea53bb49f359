"""What the analysis of one rank's memory returns: its parts of ``zprof.model.memory``, and its gaps."""

from collections.abc import Sequence
from dataclasses import dataclass

from zprof.analysis.memory.state_checks import MeasuredStates
from zprof.model.gaps import MEMORY, Gap
from zprof.model.memory import (
    Allocation,
    AllocatorCounters,
    DeviceMemory,
    MemoryTimeline,
    ModulePeak,
    PhasePeak,
    RankMemory,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemoryResult:
    """The leaves of one rank, from a live recording or from a snapshot.

    ``per_rank`` has at most one entry: the rank's own device.  ``states`` and ``timelines`` too: the laws
    and which ranks a report shows are decided when all ranks are there.
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
    gaps: tuple[Gap, ...] = ()


def make_unknown_result(rank: int, reason: str, remedy: str) -> RankMemoryResult:
    """A rank of which nothing is known, and why."""
    return RankMemoryResult(gaps=(Gap(what=MEMORY, rank=rank, reason=reason, remedy=remedy),))


def collect_gaps(answers: Sequence[RankMemoryResult]) -> tuple[Gap, ...]:
    """All gaps, in the order of the ranks."""
    return tuple(gap for answer in answers for gap in answer.gaps)
