"""Where gradients lie on their way to the optimizer, and what their reductions need (reference engine).

    stage   whole gradients until the reduction              reduction
    0, 1    flat, stay; one operator's are in hand           in place
    2, 3    as autograd made them, until the unit is over    copied into a buffer, this rank's part comes out
    CB      the same                                         piece by piece through buffers that stay
    MD      stages 2, 3: into a kept buffer one by one       from there

Where gradients are reduced in another type than they stay in, stages 0 and 1 go through buffers too.  This
rank's part is allocated with the first reduction of a step, and dropped when the next begins.

Frozen parameters have no gradient: elements are those that are trained.
"""

from zprof.model.planning.job import Job, Unit
from zprof.planner.memory.walk.backend import copied_bytes
from zprof.planner.memory.walk.layout import block_elements, padded_trained, padded_trained_sum, shard
from zprof.planner.memory.walk.ledger import Ledger
from zprof.planner.memory.walk.pool import FreshPool, KeptPool, Pool
from zprof.planner.memory.walk.slots import GRADIENTS, KEPT_BUFFERS, SCRATCH, UNREDUCED
from zprof.planner.models.units_moments import Moment


class Gradients:
    """The gradients of a step, and the memory that their reductions share."""

    def __init__(self, job: Job, stage: int, ledger: Ledger) -> None:
        self._job = job
        self._ledger = ledger
        self._stage = stage
        self._flat = stage < 2
        self._constant = _constant_elements(job)
        self._copies: int = 0
        residual, sizes = job.residual, job.element_bytes
        self._in_hand = self._flat or residual.defragment
        same_type = sizes.reduced == sizes.gradient
        self._in_place = self._flat and same_type and (stage == 0 or self._constant is None)
        limit = job.overlap.reductions_in_flight
        kept = self._constant is not None or residual.defragment
        self._pool: Pool = KeptPool(ledger, limit) if kept else FreshPool(ledger, limit)
        self._has_parts = False
        ledger.add(KEPT_BUFFERS, self._kept_bytes())
        if self._flat:
            ledger.add(GRADIENTS, sizes.gradient * padded_trained_sum(job))
        elif residual.defragment:
            ledger.add(GRADIENTS, sizes.reduced * (padded_trained_sum(job) // job.degrees.dp))

    def unreduced_bytes(self, moment: Moment) -> int:
        """Of a unit's whole gradients beside those that stay."""
        elements = moment.fresh_elements if self._in_hand else moment.gradient_elements
        return elements * self._job.element_bytes.parameter

    def reduce(self, unit: Unit, unreduced_bytes: int, *, last: bool) -> None:
        """A unit's gradients are complete: their reduction is launched.

        ``unreduced_bytes``: of them, whole, where they do not stay.  ``last``: of the step's micro-batches.
        """
        if (self._flat and not last) or not shard(unit, self._job):
            return
        if self._in_place:
            self._reduce_in_place(unit)
        elif self._constant is not None or self._flat:
            self._reduce_pieces(unit, unreduced_bytes)
        else:
            self._reduce_bucket(unit, unreduced_bytes)

    def skip(self, unit: Unit, count: int, *, last: bool) -> None:
        """So many units more like the one before have been reduced."""
        if self._flat and self._in_place and last:
            self._add_copies(self._copy_of_flat(unit) * count)
        elif not self._flat:
            self._add_part(unit, count)

    def end_backward(self) -> None:
        """All reductions are over."""
        self._pool.drain()
        self._add_copies(-self._copies)
        self._has_parts = True

    def _reduce_in_place(self, unit: Unit) -> None:
        self._add_copies(self._copy_of_flat(unit))

    def _copy_of_flat(self, unit: Unit) -> int:
        """gloo copies what a reduce-scatter reads; an all-reduce works in place."""
        whole = padded_trained(unit, self._job) * self._job.element_bytes.reduced
        return copied_bytes(self._job, whole) if self._stage else 0

    def _add_copies(self, size_bytes: int) -> None:
        self._copies += size_bytes
        self._ledger.add(SCRATCH, size_bytes)

    def _reduce_bucket(self, unit: Unit, unreduced_bytes: int) -> None:
        size = padded_trained(unit, self._job) * self._job.element_bytes.reduced
        self._pool.take(size)
        self._ledger.add(UNREDUCED, -unreduced_bytes)
        self._add_part(unit)
        self._pool.lend(size, copied_bytes(self._job, size))

    def _reduce_pieces(self, unit: Unit, unreduced_bytes: int) -> None:
        for elements in self._pieces(unit):
            size = elements * self._job.element_bytes.reduced
            self._pool.take(size)
            self._pool.lend(size, copied_bytes(self._job, size) if self._stage else 0)
        if not self._flat:
            self._add_part(unit)
            self._ledger.add(UNREDUCED, -unreduced_bytes)

    def _pieces(self, unit: Unit) -> tuple[int, ...]:
        """Elements of the pieces of a unit; of more full ones than are ever in flight those only."""
        whole = padded_trained(unit, self._job)
        if self._constant is None or whole <= self._constant:
            return (whole,)
        full, rest = divmod(whole, self._constant)
        fill = [self._constant] * min(full, self._job.overlap.reductions_in_flight + 1)
        return (*fill, rest) if rest else tuple(fill)

    def _add_part(self, unit: Unit, count: int = 1) -> None:
        if not self._has_parts and not self._job.residual.defragment:
            self._ledger.add(GRADIENTS, count * shard(unit, self._job) * self._job.element_bytes.reduced)

    def _kept_bytes(self) -> int:
        """Buffers that are allocated once: those of constant size (CB), and whole units' (MD)."""
        sizes, job = self._job.element_bytes, self._job
        limit, kept = job.overlap.reductions_in_flight, 0
        if self._constant is not None and not self._in_place:
            kept += limit * self._constant * sizes.reduced
        if not job.residual.defragment or self._in_place:
            return kept
        if self._flat:
            largest = max(padded_trained(unit, job) for unit in job.units)
            return kept or limit * largest * sizes.reduced
        around = [padded_trained(unit, job) for unit in job.units if unit.encloses]
        inner = [padded_trained(unit, job) for unit in job.units if not unit.encloses]
        elements = sum(around) + limit * max(inner, default=0)
        return kept + elements * (sizes.reduced if self._constant is None else sizes.parameter)


def _constant_elements(job: Job) -> int | None:
    """Of a buffer of constant size: whole aligned parts for every rank."""
    asked, block = job.residual.constant_buffer_elements, block_elements(job)
    return None if asked is None else max(asked // block, 1) * block
