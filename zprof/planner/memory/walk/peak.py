"""Walk through one steady step of the reference engine, moment by moment, and return its peak by tenant.

The walk goes from zero_grad() to the end of the optimizer and records the live bytes after each operator,
gather, reduction and copy. It covers at most two micro-batches: later ones are like the second, because this
rank's gradients exist from the first reduction on.

Stage 3 follows the schedule of the reference engine: in both passes the root is gathered first and released
last. Other units are released after their forward, and after their backward just before their gradients are
reduced.

The optimizer runs unit by unit. A fused AdamW reads gradients in the type of its weights, so 16-bit gradients
are copied first: this rank's part of one unit at a time, or a piece of it (CB). Stages 1 and 2 then gather
the unit's parameters in place. The paper leaves the copy out (16 bytes per parameter); a kernel that reads
16-bit gradients needs none.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from zprof.model.job import Job, Unit
from zprof.model.plan import Term
from zprof.planner.gpt_units import moments_by_unit
from zprof.planner.memory.walk.buffers import MAX_CONCURRENT, Gathers, Gradients, backend_copy_bytes
from zprof.planner.memory.walk.layout import (
    Run,
    group_units,
    has_backward,
    model_state_bytes,
    padded_trained_elements,
    shard_elements,
)
from zprof.planner.memory.walk.ledger import (
    CHECKPOINTS,
    GATHERED_CHECKPOINT,
    GATHERED_CHUNK,
    GRADIENT_COPY,
    HELD,
    OPTIMIZER_STATE,
    PARAMETERS,
    SAVED,
    SCRATCH,
    UNREDUCED,
    WORK,
    Ledger,
)
from zprof.planner.memory.walk.live import (
    NO_MOMENT,
    StoredCheckpoint,
    WalkState,
    chunk_bytes,
    stored_checkpoint,
)
from zprof.planner.unit_moments import Moment

_BYTES = attrgetter("saved_bytes", "checkpoint_bytes", "forward_work_bytes", "backward_work_bytes")


def peak_of(job: Job, stage: int) -> tuple[tuple[Term, ...], str]:
    """Return the terms at the highest moment of a step under a ZeRO stage, and that moment's name.

    ``job.units`` must be known, with all their bytes.

    Raises:
        ValueError: a unit does not know its bytes.
    """
    for unit in job.units:
        if None in _BYTES(unit):
            raise ValueError(f"unit {unit.name} does not know its bytes; a walk needs those of all units")
    ledger = walk_step(job, stage)
    return ledger.terms(), ledger.where


#: Units walked at each end of a shortened run, besides those within reach of prefetch and reductions.
_WALKED_ENDS = 3


def walk_step(job: Job, stage: int, *, ends: int | None = None) -> Ledger:
    """Walk all moments of a steady step and return the ledger.

    ``ends``: units walked at each end of a run of equal ones; None chooses as many as are needed.
    """
    reach = _WALKED_ENDS + job.overlap.prefetch + job.overlap.reductions_in_flight if ends is None else ends
    live = _start_walk(job, stage, reach)
    micro_batches = min(job.batch.micro_batches, 2)
    for number in range(micro_batches):
        walk_forward(live)
        walk_backward(live, last=number + 1 == micro_batches)
    walk_optimizer(job, stage, live.ledger, _walked_units(live))
    return live.ledger


def _start_walk(job: Job, stage: int, ends: int) -> WalkState:
    """Return the state at the start of a step."""
    ledger = Ledger()
    ledger.now = "between steps"
    states = model_state_bytes(job, stage)
    ledger.put({slot: states[slot.tenant] for slot in (PARAMETERS, OPTIMIZER_STATE)})
    ledger.put({GATHERED_CHUNK if job.residual.partition else CHECKPOINTS: chunk_bytes(job)})
    return WalkState(
        job=job,
        ledger=ledger,
        gathers=Gathers(job, stage, ledger),
        gradients=Gradients(job, stage, ledger),
        around=next((unit for unit in job.units if unit.encloses), None),
        inner=group_units([unit for unit in job.units if not unit.encloses], ends),
        known=moments_by_unit(job),
    )


def _walked_units(live: WalkState) -> Sequence[Unit]:
    """Return each kind of unit at least once, the enclosing one first."""
    inner = tuple(run.unit for run in live.inner if not run.skipped)
    return inner if live.around is None else (live.around, *inner)


def walk_forward(live: WalkState) -> None:
    """Walk from the tokens to the loss; the bytes that units keep stay in the ledger."""
    order = _pass_order(live, live.inner)
    around, last = live.around, None
    if around is not None:
        live.now(f"forward of {around.name}", "gather")
        live.gathers.need(order, 0)
        live.see_outer(live.moments(around).forward, f"forward of {around.name}")
    for run, place in _with_positions(live.inner, len(order)):
        if run.skipped:
            live.saved_bytes += run.skipped * _kept_bytes(live, run.unit)
            continue
        if last is not None:
            live.gathers.release(last)
        last = run.unit
        live.now(f"forward of {last.name}", "gather")
        live.gathers.need(order, place)
        _walk_unit_forward(live, last)
    if last is not None and not live.job.overlap.keep_last:
        live.gathers.release(last)
    if around is not None:
        live.see_outer(live.moments(around).forward_end, f"forward of {around.name}")
        live.gathers.release(around)


def walk_backward(live: WalkState, *, last: bool) -> None:
    """Walk from the loss to the tokens; ``last``: this is the last micro-batch of the step."""
    inner = tuple(reversed(live.inner))
    order, around = _pass_order(live, inner), live.around
    if around is not None:
        live.now(f"backward of {around.name}", "gather")
        live.gathers.need(order, 0)
        live.see_outer(live.moments(around).backward, f"backward of {around.name}")
    for run, place in _with_positions(inner, len(order)):
        if not has_backward(run.unit, live.job):
            continue  # it is still prefetched: the order is that of the forward, reversed
        if run.skipped:
            live.now(f"backward of {run.unit.name}", "end")
            live.drop(run.skipped * _kept_bytes(live, run.unit))
            live.gradients.skip(run.unit, run.skipped, last=last)
            continue
        live.now(f"backward of {run.unit.name}", "gather")
        live.gathers.need(order, place)
        _walk_unit_backward(live, run.unit)
        live.gathers.release(run.unit)
        _reduce_unit(live, run.unit, last=last)
    if around is not None:
        live.see_outer(live.moments(around).backward_end, f"backward of {around.name}")
        _reduce_unit(live, around, last=last)
    live.now("backward", "end")
    live.outer = NO_MOMENT
    live.gradients.end_backward()
    live.gathers.release_all()
    live.ledger.put({SAVED: 0, WORK: 0, HELD: 0, UNREDUCED: 0, GATHERED_CHECKPOINT: 0})


def _walk_unit_forward(live: WalkState, unit: Unit) -> None:
    moments = live.moments(unit)
    again = live.job.residual.checkpointing and has_backward(unit, live.job)
    for moment in moments.checkpointed if again else moments.forward:
        live.see(moment, f"forward of {unit.name}")
    live.saved_bytes += _kept_bytes(live, unit)


def _walk_unit_backward(live: WalkState, unit: Unit) -> None:
    moments, what = live.moments(unit), f"backward of {unit.name}"
    live.saved_bytes -= _kept_bytes(live, unit)
    if not live.job.residual.checkpointing:
        for moment in moments.backward:
            live.see(moment, what)
        return
    kept = stored_checkpoint(unit, live.job)
    live.see_gather(unit, kept, f"recompute of {unit.name}")
    for moment in _beside_gradient(moments.forward, live, unit):
        live.see_again(moment, unit, kept, f"recompute of {unit.name}")
    for moment in moments.backward:
        live.see_again(moment, unit, kept, what)


def _beside_gradient(moments: Iterable[Moment], live: WalkState, unit: Unit) -> Iterator[Moment]:
    """Add the gradient of the unit's output, which is already live during the recomputation."""
    gradient = unit.checkpoint_bytes or 0
    for moment in moments:
        yield Moment(
            operator=moment.operator,
            saved_bytes=moment.saved_bytes,
            work_bytes=moment.work_bytes + gradient,
        )


def _reduce_unit(live: WalkState, unit: Unit, *, last: bool) -> None:
    moments = live.moments(unit)
    end = (moments.backward_end or moments.backward)[-1]
    live.now(f"backward of {unit.name}", "reduction")
    live.gradients.reduce(unit, live.gradients.unreduced_bytes(end), last=last)


def _kept_bytes(live: WalkState, unit: Unit) -> int:
    """Return the bytes that a unit keeps from its forward to its backward."""
    if not has_backward(unit, live.job):
        return 0
    if live.job.residual.checkpointing:
        kept: StoredCheckpoint = stored_checkpoint(unit, live.job)
        return kept.stays_bytes
    return unit.saved_bytes or 0


def _with_positions(runs: Iterable[Run], length: int) -> Iterator[tuple[Run, int]]:
    """Yield runs with their position in the order of the pass, which does not contain skipped units."""
    runs = tuple(runs)
    place = length - sum(not run.skipped for run in runs)
    for run in runs:
        yield run, place
        place += not run.skipped


def _pass_order(live: WalkState, runs: Iterable[Run]) -> tuple[Unit, ...]:
    around = () if live.around is None else (live.around,)
    return (*around, *(run.unit for run in runs if not run.skipped))


def walk_optimizer(job: Job, stage: int, ledger: Ledger, units: Sequence[Unit]) -> None:
    """Update each trained unit; backend copies of gathers still in flight stay until the end."""
    running: deque[int] = deque()
    for unit in (each for each in units if shard_elements(each, job)):
        ledger.now = f"optimizer of {unit.name} (copy)"
        copied = _gradient_copy_bytes(job, stage, unit)
        ledger.add(GRADIENT_COPY, copied)
        ledger.add(GRADIENT_COPY, -copied)
        if stage not in (1, 2):
            continue
        ledger.now = f"optimizer of {unit.name} (gather)"
        size = backend_copy_bytes(job, padded_trained_elements(unit, job) * job.element_bytes.gathered)
        ledger.add(SCRATCH, size)
        running.append(size)
        if len(running) > MAX_CONCURRENT:
            ledger.add(SCRATCH, -running.popleft())
    ledger.add(SCRATCH, -sum(running))


def _gradient_copy_bytes(job: Job, stage: int, unit: Unit) -> int:
    elements = shard_elements(unit, job) if stage else padded_trained_elements(unit, job)
    most = job.residual.constant_buffer_elements
    return job.element_bytes.gradient_copy * (elements if most is None else min(elements, most))
