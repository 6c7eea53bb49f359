"""Gradients that are alive while forwards run: by step where there is a timeline, else at its peak."""

import bisect
import itertools
from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.memory import MemoryTimeline
from zprof.model.phases import Phase
from zprof.model.tenants import Tenant
from zprof.rules.memory.largest import Largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwards:
    """Gradient bytes in the forwards of each step, in their order; ``in_steps`` false: one of all steps."""

    levels: tuple[tuple[int, ...], ...]
    in_steps: bool

    @property
    def first_bytes(self) -> int:
        """What every step's first forward finds: the least of the steps."""
        return min(levels[0] for levels in self.levels)

    @property
    def most_bytes(self) -> int:
        """The most that any forward holds."""
        return max(max(levels) for levels in self.levels)

    @property
    def grows_over_micro_batches(self) -> bool:
        """Whether each forward of a step, from the second on, holds more than the one before."""
        return any(
            len(levels) > 2 and all(low < high for low, high in itertools.pairwise(levels[1:]))
            for levels in self.levels
        )


def forwards_of(analysis: RunAnalysis, big: Largest) -> Forwards | None:
    """The forwards of the largest rank; None where none was told apart."""
    timeline = next((t for t in analysis.memory.timelines if t.rank == big.rank), None)
    steps = _by_step(timeline) if timeline else ()
    if steps:
        return Forwards(levels=steps, in_steps=True)
    held = [
        phase.tenants.get(Tenant.GRADIENTS, 0) for phase in big.phases if phase.phase == Phase.FORWARD.value
    ]
    return Forwards(levels=((max(held),),), in_steps=False) if held else None


def _by_step(timeline: MemoryTimeline) -> tuple[tuple[int, ...], ...]:
    begins = [time_ns for time_ns, _ in timeline.steps]
    steps: dict[int, list[int]] = {}
    ends = [time_ns for time_ns, _ in timeline.phases[1:]]
    for (begin_ns, name), end_ns in itertools.zip_longest(timeline.phases, ends):
        step = bisect.bisect_right(begins, begin_ns) - 1
        if name == Phase.FORWARD.value and step >= 0:
            level = _level(timeline, begin_ns, end_ns)
            if level is not None:
                steps.setdefault(step, []).append(level)
    return tuple(tuple(levels) for _, levels in sorted(steps.items()))


def _level(timeline: MemoryTimeline, begin_ns: int, end_ns: int | None) -> int | None:
    """The least that gradients hold in [begin, end): what is there for all of it."""
    gradients = timeline.tenants.get(Tenant.GRADIENTS.value, ())
    first = bisect.bisect_left(timeline.time_ns, begin_ns)
    last = len(timeline.time_ns) if end_ns is None else bisect.bisect_left(timeline.time_ns, end_ns)
    return min(gradients[first:last], default=None)
