"""Elements of a unit as they are stored, and the model states of a device to the byte.

padded = ceil(elements / (ranks x alignment)) x ranks x alignment;  a rank owns 1/ranks of it (reference
engine, one flat tensor a unit; the paper's formulas leave padding out).  Frozen parameters of a unit are a
flat tensor of their own.  Where units do not say what of them is frozen, each has its share.

    parameters        stage 0 - 2: p x padded          stage 3: p x padded / N
    gradients         stage 0, 1:  g x padded          stage 2, 3: r x padded / N
    optimizer state   stage 0:     k x padded          stage 1 - 3: k x padded / N;  4 a unit: its step count

p, g, k: bytes an element; r: of a reduced gradient; sums over the units of one model-parallel rank.  Of
gradients and optimizer state padded is that of what is trained.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

from zprof.model.job import Job, Unit
from zprof.model.tenants import Tenant
from zprof.planner.rounding import ceil_div

#: All of a unit but its name.
_KIND = attrgetter(*(field.name for field in fields(Unit) if field.name != "name"))
_ELEMENTS = attrgetter("elements", "frozen_elements")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Units that follow each other in the forward, ``skipped`` of them like those beside it left out.

    A step changes by the same amount with each of a row of equal units, so that its extremes lie at their
    ends: only these are walked through, and what the rest keep is added at once.
    """

    unit: Unit
    skipped: int = 0


def storage_block_elements(job: Job) -> int:
    """A stored unit is a multiple of it."""
    return job.degrees.dp * job.overlap.alignment_elements


def trained_elements(unit: Unit, job: Job) -> int:
    """Of a unit, those that have a gradient; a share that is no whole element is rounded up."""
    if unit.frozen_elements or not job.frozen_parameters:
        return unit.elements - unit.frozen_elements
    if any(other.frozen_elements for other in job.units):
        return unit.elements
    return ceil_div(unit.elements * (job.parameters - job.frozen_parameters), job.parameters)


def has_backward(unit: Unit, job: Job) -> bool:
    """A frozen unit that keeps nothing has none: no gradient goes through it."""
    return bool(unit.saved_bytes or trained_elements(unit, job))


def flat_tensors(unit: Unit, job: Job) -> tuple[int, ...]:
    """Elements of a unit as they are stored: those that are trained, those that are frozen, if any."""
    trained = trained_elements(unit, job)
    return tuple(_pad_elements(elements, job) for elements in (trained, unit.elements - trained) if elements)


def padded_elements(unit: Unit, job: Job) -> int:
    """Elements of the whole unit as it is stored."""
    return sum(flat_tensors(unit, job))


def padded_trained_elements(unit: Unit, job: Job) -> int:
    """Of them those that have a gradient."""
    return _pad_elements(trained_elements(unit, job), job)


def sum_padded_elements(job: Job) -> int:
    """Elements of all units as they are stored."""
    return _sum_over_units(job, padded_elements)


def sum_padded_trained_elements(job: Job) -> int:
    """Of them those that have a gradient."""
    return _sum_over_units(job, padded_trained_elements)


def shard_elements(unit: Unit, job: Job) -> int:
    """Elements with a gradient that a rank owns."""
    return padded_trained_elements(unit, job) // job.degrees.dp


def _sum_over_units(job: Job, size_of: Callable[[Unit, Job], int]) -> int:
    """Over all units; those of the same elements are looked at once."""
    kinds = {_ELEMENTS(unit): unit for unit in job.units}
    counts = Counter(map(_ELEMENTS, job.units))
    return sum(size_of(unit, job) * counts[kind] for kind, unit in kinds.items())


def _pad_elements(elements: int, job: Job) -> int:
    block = storage_block_elements(job)
    return ceil_div(elements, block) * block


def group_units(units: Sequence[Unit], ends: int) -> tuple[Run, ...]:
    """The units, all but ``ends`` at each end of a row of equal ones left out."""
    found: list[Run] = []
    begin = 0
    for stop in _find_run_ends(units):
        first = min(begin + ends, stop)
        last = max(stop - ends, first)
        found += [Run(unit=unit) for unit in units[begin:first]]
        if last > first:
            found.append(Run(unit=units[first], skipped=last - first))
        found += [Run(unit=unit) for unit in units[last:stop]]
        begin = stop
    return tuple(found)


def _find_run_ends(units: Sequence[Unit]) -> list[int]:
    """Where rows of equal units end."""
    kinds = list(map(_KIND, units))
    last = len(kinds)
    return [index for index in range(1, last + 1) if index == last or kinds[index] != kinds[index - 1]]


COUNTER_BYTES = 4


def model_state_bytes(job: Job, stage: int) -> Mapping[Tenant, int]:
    """Bytes of each model state where it is complete: gradients when the optimizer begins."""
    sizes = job.element_bytes
    stored, trained, ranks = sum_padded_elements(job), sum_padded_trained_elements(job), job.degrees.dp
    return {
        Tenant.PARAMETERS: sizes.parameter * (stored // ranks if stage >= 3 else stored),
        Tenant.GRADIENTS: sizes.reduced * (trained // ranks) if stage >= 2 else sizes.gradient * trained,
        Tenant.OPTIMIZER_STATE: sizes.optimizer_state * (trained // ranks if stage >= 1 else trained)
        + COUNTER_BYTES * _count_trained_units(job),
    }


def _count_trained_units(job: Job) -> int:
    """How many have a step count."""
    return sum(trained_elements(unit, job) > 0 for unit in job.units)
