"""Read how many bytes of gradients are alive throughout each forward of the largest rank."""

import bisect
import itertools

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.memory.largest_rank import LargestRank
from zprof.model.memory import MemoryTimeline
from zprof.model.tenants import Tenant
from zprof.model.training import Engine, Phase

#: Minimum share of a step's gradients in a forward, so that a few late ones do not count.
_HALF_RATIO = 0.5


class ForwardGradients(Struct, frozen=True, kw_only=True):
    """Gradient bytes in the forwards of each step, in order; if not ``in_steps``, one value for all steps."""

    levels: tuple[tuple[int, ...], ...]
    in_steps: bool

    @property
    def first_bytes(self) -> int:
        """Gradient bytes alive at the first forward of every step: the minimum over the steps."""
        return min(levels[0] for levels in self.levels)

    @property
    def max_bytes(self) -> int:
        """Maximum gradient bytes in any forward."""
        return max(max(levels) for levels in self.levels)

    @property
    def grows_over_micro_batches(self) -> bool:
        """True if in some step each forward, from the third, holds more than the previous one."""
        return any(
            len(levels) > 2 and all(low < high for low, high in itertools.pairwise(levels[1:]))
            for levels in self.levels
        )


def read_forward_gradients(analysis: RunAnalysis, largest: LargestRank) -> ForwardGradients | None:
    """Return the forwards of the largest rank, None if no forward was identified."""
    timeline = next((t for t in analysis.memory.timelines if t.rank == largest.rank), None)
    steps = _levels_by_step(timeline) if timeline else ()
    if steps:
        return ForwardGradients(levels=steps, in_steps=True)
    held = [
        phase.tenants.get(Tenant.GRADIENTS, 0)
        for phase in largest.phases
        if phase.phase == Phase.FORWARD.value
    ]
    return ForwardGradients(levels=((max(held),),), in_steps=False) if held else None


def _levels_by_step(timeline: MemoryTimeline) -> tuple[tuple[int, ...], ...]:
    begins = [time_ns for time_ns, _ in timeline.steps]
    steps: dict[int, list[int]] = {}
    ends = [time_ns for time_ns, _ in timeline.phases[1:]]
    for (begin_ns, name), end_ns in itertools.zip_longest(timeline.phases, ends):
        step = bisect.bisect_right(begins, begin_ns) - 1
        if name == Phase.FORWARD.value and step >= 0:
            # The minimum of the gradients in [begin, end): the bytes alive throughout.
            gradients = timeline.tenants.get(Tenant.GRADIENTS.value, ())
            first = bisect.bisect_left(timeline.time_ns, begin_ns)
            last = len(timeline.time_ns) if end_ns is None else bisect.bisect_left(timeline.time_ns, end_ns)
            level = min(gradients[first:last], default=None)
            if level is not None:
                steps.setdefault(step, []).append(level)
    return tuple(tuple(levels) for _, levels in sorted(steps.items()))


def are_gradients_kept(analysis: RunAnalysis, largest: LargestRank, forwards: ForwardGradients) -> bool:
    """Return True if the first forward of each step still holds the gradients of the step before."""
    held = forwards.first_bytes
    # DDP's gradients are views of its buckets, which remain even if ``.grad`` is reset.
    if analysis.training.engine == "ddp" and largest.of(Tenant.COMMUNICATION_BUFFERS) < _HALF_RATIO * held:
        return False
    # In DeepSpeed's ZeRO a rank's part of the gradients has memory that is allocated once.
    if analysis.engine is Engine.DEEPSPEED and analysis.training.stage:
        return False
    states = largest.memory.state_bytes or {}
    if held < max(1, _HALF_RATIO * states.get(Tenant.GRADIENTS, 0)):
        return False
    # else they may be accumulated, as intended
    return forwards.in_steps or analysis.training.micro_batches <= 1
