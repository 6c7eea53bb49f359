"""One step, moment by moment: forward, backward with recomputation and reductions, optimizer.

Micro-batches after the second are like it: this rank's gradients are there from the first reduction on.
"""

from collections.abc import Sequence

from zprof.model.planning.job import Job, Unit
from zprof.planner.memory.walk.checkpoints import chunk_bytes
from zprof.planner.memory.walk.gathers import Gathers
from zprof.planner.memory.walk.gradients import Gradients
from zprof.planner.memory.walk.layout import in_runs
from zprof.planner.memory.walk.ledger import Ledger
from zprof.planner.memory.walk.live import Live
from zprof.planner.memory.walk.optimizer import walk_optimizer
from zprof.planner.memory.walk.passes import walk_backward, walk_forward
from zprof.planner.memory.walk.slots import CHECKPOINTS, GATHERED_CHUNK, OPTIMIZER_STATE, PARAMETERS
from zprof.planner.memory.walk.states import states_of
from zprof.planner.models.units import moments_of

#: Units at each end of a row that is cut short, beside those that prefetch and reductions reach over.
_ENDS = 3


def walk_step(job: Job, stage: int, *, ends: int | None = None) -> Ledger:
    """All moments of a steady step.

    ``ends``: units at each end of a row of equal ones that are walked through; None: as many as it takes.
    """
    reach = _ENDS + job.overlap.prefetch + job.overlap.reductions_in_flight if ends is None else ends
    live = _begin(job, stage, reach)
    micro_batches = min(job.batch.micro_batches, 2)
    for number in range(micro_batches):
        walk_forward(live)
        walk_backward(live, last=number + 1 == micro_batches)
    walk_optimizer(job, stage, live.ledger, _walked(live))
    return live.ledger


def _begin(job: Job, stage: int, ends: int) -> Live:
    """What is live when a step begins."""
    ledger = Ledger()
    ledger.now = "between steps"
    states = states_of(job, stage)
    ledger.put({slot: states[slot.tenant] for slot in (PARAMETERS, OPTIMIZER_STATE)})
    ledger.put({GATHERED_CHUNK if job.residual.partition else CHECKPOINTS: chunk_bytes(job)})
    return Live(
        job=job,
        ledger=ledger,
        gathers=Gathers(job, stage, ledger),
        gradients=Gradients(job, stage, ledger),
        around=next((unit for unit in job.units if unit.encloses), None),
        inner=in_runs([unit for unit in job.units if not unit.encloses], ends),
        known=moments_of(job),
    )


def _walked(live: Live) -> Sequence[Unit]:
    """Each kind of unit at least once, the enclosing one first."""
    inner = tuple(run.unit for run in live.inner if not run.skipped)
    return inner if live.around is None else (live.around, *inner)
