"""Elements of a unit as they are stored: padded, so that every rank's shard has the same size.

padded = ceil(elements / (ranks x alignment)) x ranks x alignment;  a rank owns 1/ranks of it (reference
engine, one flat tensor a unit; the paper's formulas leave padding out).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

from zprof.model.planning.job import Job, Unit

#: All of a unit but its name.
_KIND = attrgetter(*(field.name for field in fields(Unit) if field.name != "name"))


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
    return _padded(unit.elements, job)


def padded_sum(job: Job) -> int:
    """Elements of all units as they are stored."""
    counts = Counter(map(attrgetter("elements"), job.units))
    return sum(_padded(elements, job) * count for elements, count in counts.items())


def shard(unit: Unit, job: Job) -> int:
    """Elements of it that a rank owns."""
    return padded(unit, job) // job.degrees.dp


def _padded(elements: int, job: Job) -> int:
    block = block_elements(job)
    return -(-elements // block) * block


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
    kinds = list(map(_KIND, units))
    last = len(kinds)
    return [index for index in range(1, last + 1) if index == last or kinds[index] != kinds[index - 1]]
