"""Walk through one steady step of the reference engine, operator by operator, and return its peak by tenant.

The walk goes from zero_grad() to the end of the optimizer and records the live bytes after each operator,
gather, reduction and copy. It covers at most two micro-batches: later ones are the same as the second,
because this rank's gradients exist from the first reduction on.

Stage 3 follows the schedule of the reference engine: in both passes the root is gathered first and released
last. Other units are released after their forward, and after their backward just before their gradients are
reduced.

The optimizer runs unit by unit. A fused AdamW reads gradients in the type of its weights, so 16-bit gradients
are copied first: this rank's shard of one unit at a time, or a piece of the shard (CB). Stages 1 and 2 then
gather the unit's parameters in place. The paper's 16 bytes per parameter exclude the copy; a kernel that
reads 16-bit gradients needs none.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from zprof.model.job import Job, Unit
from zprof.model.plan import Term
from zprof.planner.gpt_units import moments_by_unit
from zprof.planner.memory.walk.buffers import MAX_CONCURRENT, Gathers, Gradients, compute_backend_copy
from zprof.planner.memory.walk.layout import (
    Run,
    compute_model_states,
    group_units,
    has_backward,
    padded_trained_elements,
    shard_elements,
)
from zprof.planner.memory.walk.ledger import (
    CHECKPOINTS,
    GATHERED_CHECKPOINT,
    GATHERED_CHUNK,
    GRADIENT_COPY,
    OPERATOR_OUTPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    SAVED,
    SCRATCH,
    TIED_HEAD_GRADIENT,
    UNREDUCED,
    Ledger,
)
from zprof.planner.memory.walk.live import (
    NO_MOMENT,
    StoredCheckpoint,
    WalkState,
    compute_chunk_bytes,
    store_checkpoint,
)
from zprof.planner.unit_moments import Moment

_BYTES = attrgetter("saved_bytes", "checkpoint_bytes", "forward_work_bytes", "backward_work_bytes")


def find_peak(job: Job, stage: int) -> tuple[tuple[Term, ...], str]:
    """Return the terms at the peak of a step under a ZeRO stage, and the peak's location.

    ``job.units`` must be known, with all their bytes.

    Raises:
        ValueError: the bytes of a unit are unknown.
    """
    for unit in job.units:
        if None in _BYTES(unit):
            raise ValueError(
                f"the bytes of unit {unit.name} are unknown; a walk needs the bytes of all units"
            )
    ledger = walk_step(job, stage)
    return ledger.terms(), ledger.peak_location


#: Units walked at each end of a shortened run, besides those within reach of prefetch and reductions.
_WALKED_ENDS = 3


def walk_step(job: Job, stage: int, *, ends: int | None = None) -> Ledger:
    """Walk through a steady step and return the ledger.

    ``ends``: units walked at each end of a run of equal ones; None uses as many as are needed.
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
    ledger.current_location = "between steps"
    states = compute_model_states(job, stage)
    ledger.set_bytes({slot: states[slot.tenant] for slot in (PARAMETERS, OPTIMIZER_STATE)})
    ledger.set_bytes({GATHERED_CHUNK if job.residual.partition else CHECKPOINTS: compute_chunk_bytes(job)})
    return WalkState(
        job=job,
        ledger=ledger,
        gathers=Gathers(job, stage, ledger),
        gradients=Gradients(job, stage, ledger),
        root=next((unit for unit in job.units if unit.encloses), None),
        inner=group_units([unit for unit in job.units if not unit.encloses], ends),
        known=moments_by_unit(job),
    )


def _walked_units(live: WalkState) -> Sequence[Unit]:
    """Return each kind of unit at least once, the enclosing one first."""
    inner = tuple(run.unit for run in live.inner if not run.skipped)
    return inner if live.root is None else (live.root, *inner)


def walk_forward(live: WalkState) -> None:
    """Walk from the tokens to the loss; the bytes that units keep stay in the ledger."""
    order = _pass_order(live, live.inner)
    root, last = live.root, None
    if root is not None:
        live.set_location(f"forward of {root.name}", "gather")
        live.gathers.need(order, 0)
        live.record_outer(live.moments(root).forward, f"forward of {root.name}")
    for run, position in _with_positions(live.inner, len(order)):
        if run.skipped:
            live.saved_bytes += run.skipped * _kept_bytes(live, run.unit)
            continue
        if last is not None:
            live.gathers.release(last)
        last = run.unit
        live.set_location(f"forward of {last.name}", "gather")
        live.gathers.need(order, position)
        _walk_unit_forward(live, last)
    if last is not None and not live.job.overlap.keep_last:
        live.gathers.release(last)
    if root is not None:
        live.record_outer(live.moments(root).forward_end, f"forward of {root.name}")
        live.gathers.release(root)


def walk_backward(live: WalkState, *, last: bool) -> None:
    """Walk from the loss to the tokens; ``last``: this is the last micro-batch of the step."""
    inner = tuple(reversed(live.inner))
    order, root = _pass_order(live, inner), live.root
    if root is not None:
        live.set_location(f"backward of {root.name}", "gather")
        live.gathers.need(order, 0)
        live.record_outer(live.moments(root).backward, f"backward of {root.name}")
    for run, position in _with_positions(inner, len(order)):
        if not has_backward(run.unit, live.job):
            continue  # it is still prefetched: the order is that of the forward, reversed
        if run.skipped:
            live.set_location(f"backward of {run.unit.name}", "end")
            live.drop(run.skipped * _kept_bytes(live, run.unit))
            live.gradients.skip(run.unit, run.skipped, last=last)
            continue
        live.set_location(f"backward of {run.unit.name}", "gather")
        live.gathers.need(order, position)
        _walk_unit_backward(live, run.unit)
        live.gathers.release(run.unit)
        _reduce_unit(live, run.unit, last=last)
    if root is not None:
        live.record_outer(live.moments(root).backward_end, f"backward of {root.name}")
        _reduce_unit(live, root, last=last)
    live.set_location("backward", "end")
    live.outer = NO_MOMENT
    live.gradients.end_backward()
    live.gathers.release_all()
    live.ledger.set_bytes(
        {SAVED: 0, OPERATOR_OUTPUTS: 0, TIED_HEAD_GRADIENT: 0, UNREDUCED: 0, GATHERED_CHECKPOINT: 0}
    )


def _walk_unit_forward(live: WalkState, unit: Unit) -> None:
    moments = live.moments(unit)
    is_recomputed = live.job.residual.checkpointing and has_backward(unit, live.job)
    for moment in moments.checkpointed if is_recomputed else moments.forward:
        live.record(moment, f"forward of {unit.name}")
    live.saved_bytes += _kept_bytes(live, unit)


def _walk_unit_backward(live: WalkState, unit: Unit) -> None:
    moments, what = live.moments(unit), f"backward of {unit.name}"
    live.saved_bytes -= _kept_bytes(live, unit)
    if not live.job.residual.checkpointing:
        for moment in moments.backward:
            live.record(moment, what)
        return
    kept = store_checkpoint(unit, live.job)
    live.record_gather(unit, kept, f"recompute of {unit.name}")
    for moment in _with_output_gradient(moments.forward, live, unit):
        live.record_recomputed(moment, unit, kept, f"recompute of {unit.name}")
    for moment in moments.backward:
        live.record_recomputed(moment, unit, kept, what)


def _with_output_gradient(moments: Iterable[Moment], live: WalkState, unit: Unit) -> Iterator[Moment]:
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
    live.set_location(f"backward of {unit.name}", "reduction")
    live.gradients.reduce(unit, live.gradients.unreduced_bytes(end), last=last)


def _kept_bytes(live: WalkState, unit: Unit) -> int:
    """Return the bytes that a unit keeps from its forward to its backward."""
    if not has_backward(unit, live.job):
        return 0
    if live.job.residual.checkpointing:
        kept: StoredCheckpoint = store_checkpoint(unit, live.job)
        return kept.stays_bytes
    return unit.saved_bytes or 0


def _with_positions(runs: Iterable[Run], length: int) -> Iterator[tuple[Run, int]]:
    """Yield runs with their position in the order of the pass, which does not contain skipped units."""
    runs = tuple(runs)
    position = length - sum(not run.skipped for run in runs)
    for run in runs:
        yield run, position
        position += not run.skipped


def _pass_order(live: WalkState, runs: Iterable[Run]) -> tuple[Unit, ...]:
    root = () if live.root is None else (live.root,)
    return (*root, *(run.unit for run in runs if not run.skipped))


def walk_optimizer(job: Job, stage: int, ledger: Ledger, units: Sequence[Unit]) -> None:
    """Update each trained unit; backend copies of gathers still in flight stay until the end."""
    running: deque[int] = deque()
    for unit in (unit for unit in units if shard_elements(unit, job)):
        ledger.current_location = f"optimizer of {unit.name} (copy)"
        copied = _gradient_copy_bytes(job, stage, unit)
        ledger.add(GRADIENT_COPY, copied)
        ledger.add(GRADIENT_COPY, -copied)
        if stage not in (1, 2):
            continue
        ledger.current_location = f"optimizer of {unit.name} (gather)"
        size = compute_backend_copy(job, padded_trained_elements(unit, job) * job.element_bytes.gathered)
        ledger.add(SCRATCH, size)
        running.append(size)
        if len(running) > MAX_CONCURRENT:
            ledger.add(SCRATCH, -running.popleft())
    ledger.add(SCRATCH, -sum(running))


def _gradient_copy_bytes(job: Job, stage: int, unit: Unit) -> int:
    elements = shard_elements(unit, job) if stage else padded_trained_elements(unit, job)
    max_elements = job.residual.constant_buffer_elements
    return job.element_bytes.gradient_copy * (
        elements if max_elements is None else min(elements, max_elements)
    )
