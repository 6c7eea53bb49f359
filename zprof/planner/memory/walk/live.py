"""Keep the state of a walk: units with their moments, checkpoints, and the bytes that finished units keep.

Bytes kept of a recomputed unit between its forward and its backward:

    neither                  its input
    Pa   (partition)         1/N of it on each of N model-parallel ranks; gathered before its backward
    Pa+cpu (offload)         nothing: it is in host memory
    MD   (defragment)        the same, in one persistent chunk; slots are multiples of 256 bytes

Source: arXiv 1910.02054, sections 6.1 and 6.3, as implemented by the reference engine.
"""

from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from zprof.model.job import Job, ModelUnit
from zprof.planner.memory.walk.buffers import GatheredUnits, Gradients
from zprof.planner.memory.walk.layout import trained_elements
from zprof.planner.memory.walk.ledger import (
    GATHERED_CHECKPOINT,
    OPERATOR_OUTPUTS,
    RECOMPUTED,
    SAVED,
    TIED_HEAD_GRADIENT,
    UNREDUCED,
    LiveBytes,
)
from zprof.planner.rounding import ceil_div
from zprof.planner.unit_moments import UnitMoment, UnitMoments, with_gradients

_SLOT_BYTES = 256
NO_MOMENT = UnitMoment(operator="", saved_bytes=0, work_bytes=0)


class StoredCheckpoint(Struct, frozen=True, kw_only=True):
    """Bytes of one checkpoint.

    ``stays_bytes``: kept from forward to backward, outside a chunk. ``copied_bytes``: copied back from the
    host to be gathered. ``input_is_new``: the recomputation reads a new tensor instead of the kept one.
    ``is_gathered``: ranks gather it from shards, which count as communication buffers from then on.
    """

    stays_bytes: int
    copied_bytes: int
    input_is_new: bool
    is_gathered: bool = False


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
    """Return the bytes of the chunk that holds all checkpoints; 0 if each has its own memory."""
    residual = job.residual
    if not (residual.checkpointing and residual.defragment) or residual.offload:
        return 0
    share = job.degrees.mp if residual.partition else 1
    inner = [unit.checkpoint_bytes or 0 for unit in job.units if not unit.encloses]
    largest = ceil_div(max(inner, default=0), share)
    return len(inner) * ceil_div(largest, _SLOT_BYTES) * _SLOT_BYTES


class WalkState(Struct, kw_only=True):
    """State of a walk; ``saved_bytes`` covers units whose pass has finished, ``outer`` the enclosing unit."""

    job: Job
    ledger: LiveBytes
    gathers: GatheredUnits
    gradients: Gradients
    known: Callable[[ModelUnit], UnitMoments | None]
    saved_bytes: int = 0
    outer: UnitMoment = field(default=NO_MOMENT)

    def moments(self, unit: ModelUnit) -> UnitMoments:
        """Return the moments of a unit, operator by operator if known, else estimated from its sums."""
        known, trained = self.known(unit), trained_elements(unit, self.job)
        if known is None:
            return estimate_moments(unit, trained)
        return known if trained == unit.elements else with_gradients(known, trained, unit.elements)

    def set_location(self, what: str, operator: str) -> None:
        """Set the location of the following moments within the step."""
        self.ledger.current_location = f"{what} ({operator})"

    def drop(self, size_bytes: int) -> None:
        """Release the saved bytes of units whose backward has finished."""
        self.saved_bytes -= size_bytes
        self.ledger.set_bytes({SAVED: self.outer.saved_bytes + self.saved_bytes})

    def record(self, moment: UnitMoment, what: str) -> None:
        """Record a moment of a unit on top of the bytes that other units keep."""
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
        """Record a moment of a recomputed unit, whose checkpoint is its input or stays in addition to it."""
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
        """Record the moments of the enclosing unit; the last one stays."""
        self.outer = NO_MOMENT
        for moment in moments:
            self.record(moment, what)
        if moments:
            self.outer = moments[-1]


def estimate_moments(unit: ModelUnit, trained: int) -> UnitMoments:
    """Estimate the moments of a unit from its sums; they are an upper bound.

    ``trained``: elements that have a gradient.
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
