"""Walk through one steady step of the reference engine, operator by operator, and return its peak by tenant.

The walk goes from zero_grad() to the end of the optimizer and records the live bytes after each operator,
gather, reduction and copy. It covers at most two micro-batches: later micro-batches equal the second, because
this rank's gradients are live after the first reduction.

The schedule (:mod:`zprof.step.schedule`) orders gathers, passes, releases and reductions.

The optimizer runs unit by unit. A fused AdamW reads gradients in the type of its weights, so 16-bit gradients
are copied first: this rank's shard of one unit at a time, or a piece of the shard (CB). Stages 1 and 2 then
gather the unit's parameters in place. The paper's 16 bytes per parameter exclude the copy; a kernel that
reads 16-bit gradients needs none.

Bytes that a recomputed unit keeps between its forward and its backward pass:

    neither                  its input
    Pa   (partition)         1/N of it on each of N model-parallel ranks; gathered before its backward
    Pa+cpu (offload)         nothing: it is in host memory
    MD   (defragment)        the same, in one persistent chunk; slots are multiples of 256 bytes

Source: arXiv 1910.02054, sections 6.1 and 6.3, as implemented by the reference engine.
"""

from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter

from msgspec import Struct, field
from msgspec.structs import replace

from zprof.model.job import Job, ModelUnit
from zprof.model.plan import Term
from zprof.planner.gpt_units import moments_by_unit
from zprof.planner.memory.walk.layout import (
    WalkedUnit,
    compute_model_states,
    group_units,
    has_backward,
    padded_elements,
    padded_trained_elements,
    shard_elements,
    trained_elements,
)
from zprof.planner.memory.walk.ledger import (
    CHECKPOINTS,
    GATHERED_CHECKPOINT,
    GATHERED_CHUNK,
    GRADIENT_COPY,
    MAX_CONCURRENT,
    OPERATOR_OUTPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    RECOMPUTED,
    SAVED,
    SCRATCH,
    TIED_HEAD_GRADIENT,
    UNREDUCED,
    GatheredUnits,
    Gradients,
    LiveBytes,
    compute_backend_copy,
)
from zprof.planner.rounding import ceil_div
from zprof.planner.unit_times import UnitMoment, UnitMoments, with_gradients
from zprof.step.schedule import (
    Await,
    Compute,
    EndBackward,
    EnginePolicy,
    Launch,
    Pass,
    PassPhase,
    Release,
    StartPass,
    UnitSize,
    build_program,
    list_passes,
)

_BYTES = attrgetter("saved_bytes", "checkpoint_bytes", "forward_work_bytes", "backward_work_bytes")
#: Units walked at each end of a shortened run, in addition to those within reach of prefetch and reductions.
_WALKED_ENDS = 3
_SLOT_BYTES = 256
NO_MOMENT = UnitMoment(operator="", saved_bytes=0, work_bytes=0)


class StoredCheckpoint(Struct, frozen=True, kw_only=True):
    """Bytes of one checkpoint.

    ``stays_bytes``: kept from the forward to the backward pass, outside a chunk. ``copied_bytes``: copied
    back from the host to be gathered. ``input_is_new``: the recomputation reads a new tensor instead of the
    kept one. ``is_gathered``: ranks gather it from shards, which then count as communication buffers.
    """

    stays_bytes: int
    copied_bytes: int
    input_is_new: bool
    is_gathered: bool = False


class WalkState(Struct, kw_only=True):
    """State of a walk; ``saved_bytes``: of units with a finished pass; ``outer``: the enclosing unit."""

    job: Job
    ledger: LiveBytes
    gathers: GatheredUnits
    gradients: Gradients
    known: Callable[[ModelUnit], UnitMoments | None]
    saved_bytes: int = 0
    outer: UnitMoment = field(default=NO_MOMENT)

    def moments(self, unit: ModelUnit) -> UnitMoments:
        """Return the moments of a unit: by operator if known, else estimated from its sums."""
        known, trained = self.known(unit), trained_elements(unit, self.job)
        if known is None:
            return estimate_moments(unit, trained)
        return known if trained == unit.elements else with_gradients(known, trained, unit.elements)

    def set_location(self, what: str, operator: str) -> None:
        """Set the location of the following moments within the step."""
        self.ledger.current_location = f"{what} ({operator})"

    def drop(self, size_bytes: int) -> None:
        """Release the saved bytes of units with a finished backward pass."""
        self.saved_bytes -= size_bytes
        self.ledger.set_bytes({SAVED: self.outer.saved_bytes + self.saved_bytes})

    def record(self, moment: UnitMoment, what: str) -> None:
        """Record a moment of a unit, in addition to the bytes kept by other units."""
        self._set_bytes(
            moment,
            what,
            saved_bytes=self.saved_bytes + moment.saved_bytes,
            recomputed_bytes=0,
            gathered_bytes=0,
        )

    def record_recomputed(
        self, moment: UnitMoment, unit: ModelUnit, kept: StoredCheckpoint, what: str
    ) -> None:
        """Record a moment of a recomputed unit; its checkpoint is its input, or is live next to the input."""
        checkpoint = unit.checkpoint_bytes or 0
        has_input = moment.saved_bytes >= checkpoint
        in_chunk = not kept.input_is_new and not kept.stays_bytes
        input_bytes = checkpoint if has_input and (kept.is_gathered or not kept.input_is_new) else 0
        self._set_bytes(
            moment,
            what,
            saved_bytes=self.saved_bytes + (0 if in_chunk or kept.is_gathered else input_bytes),
            recomputed_bytes=moment.saved_bytes - input_bytes,
            gathered_bytes=kept.stays_bytes + input_bytes if kept.is_gathered else 0,
        )

    def record_gather(self, unit: ModelUnit, kept: StoredCheckpoint, what: str) -> None:
        """Record the moment at which ranks gather a checkpoint; do nothing if it is not gathered."""
        size = (unit.checkpoint_bytes or 0) + kept.stays_bytes + kept.copied_bytes
        gradient = UnitMoment(operator="gather", saved_bytes=0, work_bytes=unit.checkpoint_bytes or 0)
        if kept.is_gathered:
            self._set_bytes(
                gradient, what, saved_bytes=self.saved_bytes, recomputed_bytes=0, gathered_bytes=size
            )

    def _set_bytes(
        self, moment: UnitMoment, what: str, *, saved_bytes: int, recomputed_bytes: int, gathered_bytes: int
    ) -> None:
        ledger, gradients = self.ledger, self.gradients
        self.set_location(what, moment.operator)
        ledger.set_bytes(
            {
                SAVED: self.outer.saved_bytes + saved_bytes,
                RECOMPUTED: recomputed_bytes,
                GATHERED_CHECKPOINT: gathered_bytes,
                OPERATOR_OUTPUTS: moment.work_bytes,
                TIED_HEAD_GRADIENT: self.outer.held_bytes + moment.held_bytes,
                UNREDUCED: gradients.unreduced_bytes(self.outer) + gradients.unreduced_bytes(moment),
            }
        )

    def record_outer(self, moments: tuple[UnitMoment, ...], what: str) -> None:
        """Record the moments of the enclosing unit and keep the last."""
        self.outer = NO_MOMENT
        for moment in moments:
            self.record(moment, what)
        if moments:
            self.outer = moments[-1]


def find_peak(job: Job, stage: int) -> tuple[tuple[Term, ...], str]:
    """Return the terms at the peak of a step under a ZeRO stage, and the peak's location.

    ``job.units`` and all their bytes must be known.

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


def walk_step(job: Job, stage: int, *, ends: int | None = None) -> LiveBytes:
    """Walk through a steady step and return the ledger.

    ``ends``: units walked at each end of a run of equal units; None: as many as needed.
    """
    reach = _WALKED_ENDS + job.overlap.prefetch + job.overlap.reductions_in_flight if ends is None else ends
    live = _start_walk(job, stage)
    # The units in forward order, the enclosing unit first; each kind of unit at least once.
    roots = [WalkedUnit(unit=unit) for unit in job.units if unit.encloses]
    runs = (*roots[:1], *group_units([unit for unit in job.units if not unit.encloses], reach))
    units = _size_units(job, runs)
    backward = [index for index in reversed(range(len(units))) if not units[index].encloses]
    micro_batches = min(job.batch.micro_batches, 2)
    passes = list_passes(units, backward, micro_batches, stage >= 2, ends_forward=True)
    for op in build_program(
        _size_units(job, runs),
        passes,
        EnginePolicy(
            stage=stage,
            prefetch=job.overlap.prefetch,
            keep="last" if job.overlap.keep_last else "none",
            overlap_reduce=True,
            overlap_gather=True,
            in_flight=job.overlap.reductions_in_flight,
        ),
    ):
        match op:
            case StartPass() if passes[op.what].needs:
                live.set_location(_name_pass(runs, passes[op.what]), "gather")
            case Launch(key=key) if key.startswith("gather."):
                live.gathers.gather(runs[op.unit].unit)
            case Await(key=key) if key.startswith("gather."):
                live.gathers.wait(runs[op.unit].unit)
            case Compute() if op.what >= 0:
                _walk_pass(live, runs, passes[op.what])
            case Release():
                live.gathers.release(runs[op.unit].unit)
            case Launch(key=key) if key.startswith("reduce."):
                _reduce_unit(live, runs[op.unit].unit)
            case EndBackward():
                _end_backward(live)
    walk_optimizer(job, stage, live.ledger, [run.unit for run in runs if not run.skipped])
    return live.ledger


def _start_walk(job: Job, stage: int) -> WalkState:
    """Return the state at the start of a step."""
    ledger = LiveBytes()
    ledger.current_location = "between steps"
    states = compute_model_states(job, stage)
    ledger.set_bytes({slot: states[slot.tenant] for slot in (PARAMETERS, OPTIMIZER_STATE)})
    ledger.set_bytes({GATHERED_CHUNK if job.residual.partition else CHECKPOINTS: compute_chunk_bytes(job)})
    return WalkState(
        job=job,
        ledger=ledger,
        gathers=GatheredUnits(job, ledger),
        gradients=Gradients(job, stage, ledger),
        known=moments_by_unit(job),
    )


def _size_units(job: Job, runs: Sequence[WalkedUnit]) -> tuple[UnitSize, ...]:
    sizes = job.element_bytes
    return tuple(
        UnitSize(
            name=run.unit.name,
            gather_bytes=padded_elements(run.unit, job) * sizes.gathered,
            reduce_bytes=padded_trained_elements(run.unit, job) * sizes.reduced,
            encloses=run.unit.encloses,
            skipped=run.skipped,
            has_backward=has_backward(run.unit, job),
        )
        for run in runs
    )


def _name_pass(runs: Sequence[WalkedUnit], each: Pass) -> str:
    return f"{each.phase} of {runs[each.unit].unit.name}"


def _walk_pass(live: WalkState, runs: Sequence[WalkedUnit], each: Pass) -> None:
    """Walk through one pass of a unit and update the ledger."""
    run, is_forward = runs[each.unit], each.phase is PassPhase.FORWARD
    unit, what = run.unit, _name_pass(runs, each)
    if unit.encloses:
        moments = live.moments(unit)
        begins, ends = (
            (moments.forward, moments.forward_end) if is_forward else (moments.backward, moments.backward_end)
        )
        live.record_outer(begins if each.needs else ends, what)
    elif run.skipped and is_forward:
        live.saved_bytes += run.skipped * _kept_bytes(live, unit)
    elif run.skipped:
        live.set_location(what, "end")
        live.drop(run.skipped * _kept_bytes(live, unit))
        if each.reduces:
            live.gradients.skip(unit, run.skipped)
    elif is_forward:
        moments = live.moments(unit)
        is_recomputed = live.job.residual.checkpointing and has_backward(unit, live.job)
        for moment in moments.checkpointed if is_recomputed else moments.forward:
            live.record(moment, what)
        live.saved_bytes += _kept_bytes(live, unit)
    else:
        _walk_unit_backward(live, unit)


def _end_backward(live: WalkState) -> None:
    live.set_location("backward", "end")
    live.outer = NO_MOMENT
    live.gradients.end_backward()
    live.ledger.set_bytes(
        {SAVED: 0, OPERATOR_OUTPUTS: 0, TIED_HEAD_GRADIENT: 0, UNREDUCED: 0, GATHERED_CHECKPOINT: 0}
    )


def _walk_unit_backward(live: WalkState, unit: ModelUnit) -> None:
    moments, what = live.moments(unit), f"backward of {unit.name}"
    live.saved_bytes -= _kept_bytes(live, unit)
    if not live.job.residual.checkpointing:
        for moment in moments.backward:
            live.record(moment, what)
        return
    kept = store_checkpoint(unit, live.job)
    live.record_gather(unit, kept, f"recompute of {unit.name}")
    # The output gradient is already live during the recomputation.
    gradient_bytes = unit.checkpoint_bytes or 0
    for moment in moments.forward:
        with_gradient = UnitMoment(
            operator=moment.operator,
            saved_bytes=moment.saved_bytes,
            work_bytes=moment.work_bytes + gradient_bytes,
        )
        live.record_recomputed(with_gradient, unit, kept, f"recompute of {unit.name}")
    for moment in moments.backward:
        live.record_recomputed(moment, unit, kept, what)


def _reduce_unit(live: WalkState, unit: ModelUnit) -> None:
    moments = live.moments(unit)
    end = (moments.backward_end or moments.backward)[-1]
    live.set_location(f"backward of {unit.name}", "reduction")
    live.gradients.reduce(unit, live.gradients.unreduced_bytes(end))


def _kept_bytes(live: WalkState, unit: ModelUnit) -> int:
    """Return the bytes that a unit keeps from its forward to its backward pass."""
    if not has_backward(unit, live.job):
        return 0
    if live.job.residual.checkpointing:
        kept: StoredCheckpoint = store_checkpoint(unit, live.job)
        return kept.stays_bytes
    return unit.saved_bytes or 0


def walk_optimizer(job: Job, stage: int, ledger: LiveBytes, units: Sequence[ModelUnit]) -> None:
    """Update each trained unit; backend copies of gathers still in flight stay until the end."""
    running: deque[int] = deque()
    for unit in (unit for unit in units if shard_elements(unit, job)):
        ledger.current_location = f"optimizer of {unit.name} (copy)"
        elements = shard_elements(unit, job) if stage else padded_trained_elements(unit, job)
        max_elements = job.residual.constant_buffer_elements
        copied = job.element_bytes.gradient_copy * (
            elements if max_elements is None else min(elements, max_elements)
        )
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


def store_checkpoint(unit: ModelUnit, job: Job) -> StoredCheckpoint:
    """Return the bytes kept of a unit's checkpoint."""
    residual, full_bytes = job.residual, unit.checkpoint_bytes or 0
    part = ceil_div(full_bytes, job.degrees.mp) if residual.partition else full_bytes
    if residual.offload:
        return StoredCheckpoint(
            stays_bytes=0,
            copied_bytes=part if residual.partition else 0,
            input_is_new=True,
            is_gathered=residual.partition,
        )
    stays = 0 if residual.defragment else part
    return StoredCheckpoint(
        stays_bytes=stays, copied_bytes=0, input_is_new=residual.partition, is_gathered=residual.partition
    )


def compute_chunk_bytes(job: Job) -> int:
    """Return the bytes of the chunk that holds all checkpoints; 0 without a chunk."""
    residual = job.residual
    if not (residual.checkpointing and residual.defragment) or residual.offload:
        return 0
    share = job.degrees.mp if residual.partition else 1
    inner = [unit.checkpoint_bytes or 0 for unit in job.units if not unit.encloses]
    largest = ceil_div(max(inner, default=0), share)
    return len(inner) * ceil_div(largest, _SLOT_BYTES) * _SLOT_BYTES


def estimate_moments(unit: ModelUnit, trained: int) -> UnitMoments:
    """Estimate the moments of a unit from its sums, as an upper bound.

    ``trained``: elements with a gradient.
    """
    saved, kept = unit.saved_bytes or 0, unit.checkpoint_bytes or 0
    forward, backward = unit.forward_work_bytes or 0, unit.backward_work_bytes or 0
    known = unit.largest_gradient_elements
    largest = trained if known is None else min(known, trained)
    first = UnitMoment(operator="forward", saved_bytes=saved, work_bytes=forward)
    stays = UnitMoment(operator="end", saved_bytes=saved, work_bytes=0)
    start = UnitMoment(
        operator="backward",
        saved_bytes=saved,
        work_bytes=backward,
        gradient_elements=0 if known is None else largest,
        fresh_elements=0 if known is None else largest,
    )
    end = UnitMoment(
        operator="gradients",
        saved_bytes=kept,
        work_bytes=backward,
        gradient_elements=trained,
        fresh_elements=largest,
    )
    freed = UnitMoment(operator="end", saved_bytes=0, work_bytes=0, gradient_elements=trained)
    if unit.encloses:
        empty = UnitMoment(operator="begin", saved_bytes=0, work_bytes=0)
        return UnitMoments(
            forward=(empty,),
            forward_end=(first, stays),
            backward=(start, replace(empty, gradient_elements=min(unit.early_gradient_elements, trained))),
            backward_end=(end, freed),
        )
    recompute = UnitMoment(operator="forward", saved_bytes=kept, work_bytes=saved - kept + forward)
    after_recompute = UnitMoment(operator="end", saved_bytes=kept, work_bytes=0)
    return UnitMoments(
        forward=(first, stays), checkpointed=(recompute, after_recompute), backward=(start, end, freed)
    )
