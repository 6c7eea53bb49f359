"""The model states of a device, to the byte (arXiv 1910.02054, section 5, with what an engine adds).

    parameters        stage 0 - 2: p x padded          stage 3: p x padded / N
    gradients         stage 0, 1:  g x padded          stage 2, 3: r x padded / N
    optimizer state   stage 0:     k x padded          stage 1 - 3: k x padded / N;  4 a unit: its step count

p, g, k: bytes an element; r: of a reduced gradient; sums over the units of one model-parallel rank.
"""

from collections.abc import Mapping

from zprof.model.planning.job import Job
from zprof.model.tenants import Tenant
from zprof.planner.memory.walk.layout import padded_sum

COUNTER_BYTES = 4


def states_of(job: Job, stage: int) -> Mapping[Tenant, int]:
    """Bytes of each model state where it is complete: gradients when the optimizer begins."""
    sizes = job.element_bytes
    whole = padded_sum(job)
    own = whole // job.degrees.dp
    return {
        Tenant.PARAMETERS: sizes.parameter * (own if stage >= 3 else whole),
        Tenant.GRADIENTS: sizes.reduced * own if stage >= 2 else sizes.gradient * whole,
        Tenant.OPTIMIZER_STATE: sizes.optimizer_state * (own if stage >= 1 else whole)
        + COUNTER_BYTES * len(job.units),
    }
