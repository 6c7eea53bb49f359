"""Units in runs of identical ones, so that a model of a hundred thousand layers is as quick as one of ten."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from zprof.model.planning.job import Job, Unit

#: A product of matrices has 2 flop for each weight and token (arXiv 1910.02054, section 4.2).
_FLOP_PER_ELEMENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """So many units one after another, alike in all that time depends on.

    ``flop_per_token``: of the forward of one of them.
    """

    count: int
    elements: int
    flop_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The units of one device in the order of the forward; ``root`` encloses the others, if there is one."""

    runs: tuple[Run, ...]
    root: Run | None = None

    @property
    def blocks(self) -> int:
        """Units without the root."""
        return sum(run.count for run in self.runs)

    @property
    def all(self) -> tuple[Run, ...]:
        """With the root first."""
        return self.runs if self.root is None else (self.root, *self.runs)

    @property
    def elements(self) -> int:
        """Of all units."""
        return sum(run.count * run.elements for run in self.all)

    @property
    def last(self) -> Run:
        """Of the last unit; the root only where it is alone, as its forward encloses the others."""
        return self.all[-1]


def stack_of(job: Job) -> Stack | None:
    """The units of a job; None where they are not known, or their flop cannot be."""
    if not job.units:
        return None
    inner = [unit for unit in job.units if not unit.encloses]
    roots = [unit for unit in job.units if unit.encloses]
    if len(roots) > 1:  # only the outermost one encloses all; what is in it takes its turn
        inner, roots = [*roots[1:], *inner], roots[:1]
    tokens = job.batch.tokens
    return Stack(runs=_runs(inner, tokens), root=next(iter(_runs(roots, tokens)), None))


def first_of(stack: Stack, count: int) -> Stack:
    """The first ``count`` blocks, with the root."""
    left, kept = count, []
    for run in stack.runs:
        taken = min(left, run.count)
        if taken:
            kept.append(Run(count=taken, elements=run.elements, flop_per_token=run.flop_per_token))
        left -= taken
    return Stack(runs=tuple(kept), root=stack.root)


def _runs(units: Sequence[Unit], tokens: int | None) -> tuple[Run, ...]:
    alike = groupby(units, key=lambda unit: (unit.elements, _flop_per_token(unit, tokens)))
    return tuple(
        Run(count=sum(1 for _ in members), elements=elements, flop_per_token=flop)
        for (elements, flop), members in alike
    )


def _flop_per_token(unit: Unit, tokens: int | None) -> float:
    """As the unit says; else of matrices alone: without attention over the sequence, which adds s/6h."""
    if unit.forward_flop is None or not tokens:
        return float(_FLOP_PER_ELEMENT * unit.elements)
    return unit.forward_flop / tokens
