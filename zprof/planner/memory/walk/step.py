"""One step, moment by moment: forward, backward with recomputation and reductions, optimizer.

Micro-batches after the second are like it: this rank's gradients are there from the first reduction on.
"""

from zprof.model.planning.job import Job, Unit
from zprof.planner.memory.walk.checkpoints import chunk_bytes
from zprof.planner.memory.walk.gathers import Gathers
from zprof.planner.memory.walk.gradients import Gradients
from zprof.planner.memory.walk.layout import Run, in_runs
from zprof.planner.memory.walk.ledger import Ledger
from zprof.planner.memory.walk.live import Live
from zprof.planner.memory.walk.optimizer import walk_optimizer
from zprof.planner.memory.walk.passes import walk_backward, walk_forward
from zprof.planner.memory.walk.slots import CHECKPOINTS, OPTIMIZER_STATE, PARAMETERS
from zprof.planner.memory.walk.states import states_of
from zprof.planner.models.units import moments_of

#: Units at each end of a row that is cut short, beside those that prefetch and reductions reach over.
_ENDS = 3


class Step:
    """A step of a job under a stage."""

    def __init__(self, job: Job, stage: int) -> None:
        self._job, self._stage = job, stage
        self._ledger = Ledger()
        ends = _ENDS + job.overlap.prefetch + job.overlap.reductions_in_flight
        inner = in_runs([unit for unit in job.units if not unit.encloses], ends)
        around = next((unit for unit in job.units if unit.encloses), None)
        self._around: Unit | None = around
        self._inner: tuple[Run, ...] = inner

    def walk(self) -> Ledger:
        """All moments of a steady step."""
        job, stage, ledger = self._job, self._stage, self._ledger
        ledger.now = "between steps"
        states = states_of(job, stage)
        ledger.put({slot: states[slot.tenant] for slot in (PARAMETERS, OPTIMIZER_STATE)})
        ledger.put({CHECKPOINTS: chunk_bytes(job)})
        gradients, gathers = Gradients(job, stage, ledger), Gathers(job, stage, ledger)
        live = Live(
            job=job,
            ledger=ledger,
            gathers=gathers,
            gradients=gradients,
            around=self._around,
            inner=self._inner,
            known=moments_of(job),
        )
        gradients.begin_step()
        for number in range(min(job.batch.micro_batches, 2)):
            walk_forward(live)
            walk_backward(live, last=number + 1 == min(job.batch.micro_batches, 2))
        walk_optimizer(job, stage, ledger, self._units())
        return ledger

    def _units(self) -> tuple[Unit, ...]:
        """Each kind of unit at least once, the enclosing one first."""
        inner = tuple(run.unit for run in self._inner if not run.skipped)
        return inner if self._around is None else (self._around, *inner)
