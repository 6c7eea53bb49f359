"""The phases of a step under each stage: the passes of every micro-batch, with what travels beside them.

    stage   gathers of all parameters                  reductions of all gradients
    0       none                                       all-reduce, last micro-batch
    1       once, beside the first forward             last micro-batch
    2       once, beside the first forward             every micro-batch
    3       in every forward and every backward        every micro-batch

Source: arXiv 1910.02054, section 7; with A micro-batches a sharded gradient cannot wait for the last one, and
a sharded parameter is there for one pass only.  So elements a step are 2, 2, A+1 and 3A times the model's,
as ``zprof.analysis.laws.volume_law`` has it.
"""

from dataclasses import dataclass

from zprof.model.planning.job import Overlap
from zprof.planner.step.backward import gathered_backward, kept_backward, plain_backward, reduced_backward
from zprof.planner.step.forward import gathered_forward, plain_forward, refreshed_forward
from zprof.planner.step.phases import Phase, repeated
from zprof.planner.step.times import StackTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Phases of one micro-batch."""

    forward: tuple[Phase, ...]
    backward: tuple[Phase, ...]

    @property
    def all(self) -> tuple[Phase, ...]:
        """One after another."""
        return (*self.forward, *self.backward)


def step_phases(times: StackTimes, *, stage: int, micro_batches: int, overlap: Overlap) -> tuple[Phase, ...]:
    """All phases of a step."""
    if stage == 3:
        return repeated(sharded_passes(times, overlap).all, micro_batches)
    plain = Passes(forward=plain_forward(times), backward=plain_backward(times))
    first = plain_forward(times) if stage == 0 else refreshed_forward(times)
    reduced = reduced_backward(times)
    if stage == 2:
        return (*first, *repeated(plain.forward, micro_batches - 1), *repeated(reduced, micro_batches))
    return (
        *first,
        *repeated(plain.forward, micro_batches - 1),
        *repeated(plain.backward, micro_batches - 1),
        *reduced,
    )


def sharded_passes(times: StackTimes, overlap: Overlap) -> Passes:
    """Stage 3: one micro-batch."""
    if overlap.prefetch == 0:
        return _nothing_hidden(times, overlap)
    backward = kept_backward(times) if overlap.keep_last else gathered_backward(times)
    return Passes(forward=gathered_forward(times), backward=backward)


def _nothing_hidden(times: StackTimes, overlap: Overlap) -> Passes:
    """Without prefetch a unit waits for its gather, and for the reduction that is on the link before it."""
    last = times.computed[-1] if not times.units else times.units[-1]
    kept = last.gather_ns if overlap.keep_last else 0
    gathered = sum(unit.count * unit.gather_ns for unit in times.computed)
    reduced = sum(unit.count * unit.reduce_ns for unit in times.computed)
    return Passes(
        forward=(Phase(link_ns=gathered), *plain_forward(times)),
        backward=(Phase(link_ns=gathered - kept + reduced), *plain_backward(times)),
    )
