"""Compute the stored (padded) elements of a unit, and the model states of a device to the byte.

padded = ceil(elements / (ranks x alignment)) x ranks x alignment; a rank owns 1/ranks of it (reference
engine, one flat tensor per unit; the paper omits padding). The frozen parameters of a unit form a separate
flat tensor. A unit that does not state its frozen elements has a proportional share.

    parameters        stage 0 - 2: p x padded          stage 3: p x padded / N
    gradients         stage 0, 1:  g x padded          stage 2, 3: r x padded / N
    optimizer state   stage 0:     k x padded          stage 1 - 3: k x padded / N;  4 per unit (step count)

p, g, k: bytes per element; r: bytes per element of a reduced gradient. All are sums over the units of one
model-parallel rank. For gradients and optimizer state, padded counts trained elements only.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import fields

from zprof.model.job import Job, ModelUnit
from zprof.model.tenants import Tenant
from zprof.planner.rounding import ceil_div

#: All fields of a unit except its name.
_KIND = attrgetter(*(field.name for field in fields(ModelUnit) if field.name != "name"))
_ELEMENTS = attrgetter("elements", "frozen_elements")
COUNTER_BYTES = 4


class WalkedUnit(Struct, frozen=True, kw_only=True):
    """A unit of the forward pass, or ``skipped`` units that equal its neighbours and are not walked.

    Within a run of equal units, each unit changes the ledger by the same amount, so the extremes are at the
    ends of the run. Only the ends are walked; the bytes kept by the other units are added at once.
    """

    unit: ModelUnit
    skipped: int = 0


def storage_block_elements(job: Job) -> int:
    """Return the elements in one storage block: a stored unit is a multiple of it."""
    return job.degrees.dp * job.overlap.alignment_elements


def trained_elements(unit: ModelUnit, job: Job) -> int:
    """Return the trained elements of a unit; a fractional share rounds up."""
    if unit.frozen_elements or not job.frozen_parameters:
        return unit.elements - unit.frozen_elements
    if any(other.frozen_elements for other in job.units):
        return unit.elements
    return ceil_div(unit.elements * (job.parameters - job.frozen_parameters), job.parameters)


def has_backward(unit: ModelUnit, job: Job) -> bool:
    """Return False for a frozen unit that saves nothing: no gradient passes through it."""
    return bool(unit.saved_bytes or trained_elements(unit, job))


def list_flat_tensors(unit: ModelUnit, job: Job) -> tuple[int, ...]:
    """Return the padded elements of a unit's flat tensors: trained, then frozen, without empty tensors."""
    trained = trained_elements(unit, job)
    return tuple(_pad_elements(elements, job) for elements in (trained, unit.elements - trained) if elements)


def padded_elements(unit: ModelUnit, job: Job) -> int:
    """Return the padded elements of a unit."""
    return sum(list_flat_tensors(unit, job))


def padded_trained_elements(unit: ModelUnit, job: Job) -> int:
    """Return the padded trained elements of a unit."""
    return _pad_elements(trained_elements(unit, job), job)


def sum_padded_elements(job: Job) -> int:
    """Return the padded elements of all units."""
    return _sum_over_units(job, padded_elements)


def sum_padded_trained_elements(job: Job) -> int:
    """Return the padded trained elements of all units."""
    return _sum_over_units(job, padded_trained_elements)


def shard_elements(unit: ModelUnit, job: Job) -> int:
    """Return the trained elements that one rank owns."""
    return padded_trained_elements(unit, job) // job.degrees.dp


def _sum_over_units(job: Job, get_size: Callable[[ModelUnit, Job], int]) -> int:
    """Sum over all units; units with equal element counts are evaluated once."""
    kinds = {_ELEMENTS(unit): unit for unit in job.units}
    counts = Counter(map(_ELEMENTS, job.units))
    return sum(get_size(unit, job) * counts[kind] for kind, unit in kinds.items())


def _pad_elements(elements: int, job: Job) -> int:
    block = storage_block_elements(job)
    return ceil_div(elements, block) * block


def group_units(units: Sequence[ModelUnit], ends: int) -> tuple[WalkedUnit, ...]:
    """Return the units as runs, skipping all but ``ends`` units at each end of a run of equal units."""
    runs: list[WalkedUnit] = []
    start = 0
    kinds = list(map(_KIND, units))
    for stop in range(1, len(units) + 1):
        if stop < len(units) and kinds[stop] == kinds[stop - 1]:
            continue
        first = min(start + ends, stop)
        last = max(stop - ends, first)
        runs += [WalkedUnit(unit=unit) for unit in units[start:first]]
        if last > first:
            runs.append(WalkedUnit(unit=units[first], skipped=last - first))
        runs += [WalkedUnit(unit=unit) for unit in units[last:stop]]
        start = stop
    return tuple(runs)


def compute_model_states(job: Job, stage: int) -> Mapping[Tenant, int]:
    """Return the bytes of each complete model state: gradients at the start of the optimizer."""
    sizes = job.element_bytes
    counters = sum(trained_elements(unit, job) > 0 for unit in job.units)
    stored, trained, ranks = sum_padded_elements(job), sum_padded_trained_elements(job), job.degrees.dp
    return {
        Tenant.PARAMETERS: sizes.parameter * (stored // ranks if stage >= 3 else stored),
        Tenant.GRADIENTS: sizes.reduced * (trained // ranks) if stage >= 2 else sizes.gradient * trained,
        Tenant.OPTIMIZER_STATE: sizes.optimizer_state * (trained // ranks if stage >= 1 else trained)
        + COUNTER_BYTES * counters,
    }
