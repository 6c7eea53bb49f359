"""The optimizer's own buffers, unit after unit: the fp32 copy of a gradient, and parameters told to others.

A fused AdamW reads gradients of the type of its weights: 16-bit ones are copied first, this rank's part of a
unit at a time, or a piece of it (CB).  Stages 1 and 2 then gather the unit's parameters in place.
The paper leaves the copy out (16 bytes a parameter); a kernel that reads 16-bit gradients needs none.
"""

from collections import deque
from collections.abc import Sequence

from zprof.model.planning.job import Job, Unit
from zprof.planner.memory.walk.backend import AT_ONCE, copied_bytes
from zprof.planner.memory.walk.layout import padded_trained, shard
from zprof.planner.memory.walk.ledger import Ledger
from zprof.planner.memory.walk.slots import GRADIENT_COPY, SCRATCH


def walk_optimizer(job: Job, stage: int, ledger: Ledger, units: Sequence[Unit]) -> None:
    """Update each unit that is trained; what is copied for gathers that still run stays until the end."""
    running: deque[int] = deque()
    for unit in (each for each in units if shard(each, job)):
        ledger.now = f"optimizer of {unit.name} (copy)"
        copied = _copied_gradient(job, stage, unit)
        ledger.add(GRADIENT_COPY, copied)
        ledger.add(GRADIENT_COPY, -copied)
        if stage not in (1, 2):
            continue
        ledger.now = f"optimizer of {unit.name} (gather)"
        size = copied_bytes(job, padded_trained(unit, job) * job.element_bytes.gathered)
        ledger.add(SCRATCH, size)
        running.append(size)
        if len(running) > AT_ONCE:
            ledger.add(SCRATCH, -running.popleft())
    ledger.add(SCRATCH, -sum(running))


def _copied_gradient(job: Job, stage: int, unit: Unit) -> int:
    elements = shard(unit, job) if stage else padded_trained(unit, job)
    most = job.residual.constant_buffer_elements
    return job.element_bytes.gradient_copy * (elements if most is None else min(elements, most))
