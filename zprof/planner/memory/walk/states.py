"""The model states of a device, to the byte (arXiv 1910.02054, section 5, with what an engine adds).

    parameters        stage 0 - 2: p x padded          stage 3: p x padded / N
    gradients         stage 0, 1:  g x padded          stage 2, 3: r x padded / N
    optimizer state   stage 0:     k x padded          stage 1 - 3: k x padded / N;  4 a unit: its step count

p, g, k: bytes an element; r: of a reduced gradient; sums over the units of one model-parallel rank.  Of
gradients and optimizer state padded is that of what is trained.
"""

from collections.abc import Mapping

from zprof.model.planning.job import Job
from zprof.model.tenants import Tenant
from zprof.planner.memory.walk.layout import padded_sum, padded_trained_sum, trained_elements

COUNTER_BYTES = 4


def states_of(job: Job, stage: int) -> Mapping[Tenant, int]:
    """Bytes of each model state where it is complete: gradients when the optimizer begins."""
    sizes = job.element_bytes
    stored, trained, ranks = padded_sum(job), padded_trained_sum(job), job.degrees.dp
    return {
        Tenant.PARAMETERS: sizes.parameter * (stored // ranks if stage >= 3 else stored),
        Tenant.GRADIENTS: sizes.reduced * (trained // ranks) if stage >= 2 else sizes.gradient * trained,
        Tenant.OPTIMIZER_STATE: sizes.optimizer_state * (trained // ranks if stage >= 1 else trained)
        + COUNTER_BYTES * _trained_units(job),
    }


def _trained_units(job: Job) -> int:
    """How many have a step count."""
    return sum(trained_elements(unit, job) > 0 for unit in job.units)
