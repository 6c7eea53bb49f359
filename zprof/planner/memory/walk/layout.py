"""Elements of a unit as they are stored: padded, so that every rank's shard has the same size.

padded = ceil(elements / (ranks x alignment)) x ranks x alignment;  a rank owns 1/ranks of it (reference
engine, one flat tensor a unit; the paper's formulas leave padding out).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zprof.model.planning.job import Job, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Units that follow each other in the forward, ``skipped`` of them like those beside it left out.

    A step changes by the same amount with each of a row of equal units, so that its extremes lie at their
    ends: only these are walked through, and what the rest keep is added at once.
    """

    unit: Unit
    skipped: int = 0


def block_elements(job: Job) -> int:
    """A stored unit is a multiple of it."""
    return job.degrees.dp * job.overlap.alignment_elements


def padded(unit: Unit, job: Job) -> int:
    """Elements of the whole unit as it is stored."""
    block = block_elements(job)
    return -(-unit.elements // block) * block


def shard(unit: Unit, job: Job) -> int:
    """Elements of it that a rank owns."""
    return padded(unit, job) // job.degrees.dp


def in_runs(units: Sequence[Unit], ends: int) -> tuple[Run, ...]:
    """The units, all but ``ends`` at each end of a row of equal ones left out."""
    found: list[Run] = []
    begin = 0
    for stop in _stops(units):
        first = min(begin + ends, stop)
        last = max(stop - ends, first)
        found += [Run(unit=unit) for unit in units[begin:first]]
        if last > first:
            found.append(Run(unit=units[first], skipped=last - first))
        found += [Run(unit=unit) for unit in units[last:stop]]
        begin = stop
    return tuple(found)


def _stops(units: Sequence[Unit]) -> list[int]:
    """Where rows of equal units end."""
    nameless = [replace(unit, name="") for unit in units]
    return [
        index
        for index in range(1, len(units) + 1)
        if index == len(units) or nameless[index] != nameless[index - 1]
    ]
