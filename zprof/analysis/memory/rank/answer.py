"""What one rank has to say of memory: parts of the leaves of ``zprof.model.memory``, and its gaps."""

from collections.abc import Sequence
from dataclasses import dataclass

from zprof.analysis.law_checks import MeasuredStates
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
class RankAnswer:
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


def no_memory(rank: int, reason: str, remedy: str) -> RankAnswer:
    """A rank of which nothing is known, and why."""
    return RankAnswer(gaps=(Gap(what=MEMORY, rank=rank, reason=reason, remedy=remedy),))


def gaps_of(answers: Sequence[RankAnswer]) -> tuple[Gap, ...]:
    """All gaps, in the order of the ranks."""
    return tuple(gap for answer in answers for gap in answer.gaps)
