"""Track the communication buffers of a walk: gathered units, gradients, and the pools that reduce them.

When units are gathered, released and reduced is up to the schedule (:mod:`zprof.step.schedule`). The paper
counts the states alone (arXiv 1910.02054, section 7.2.2); gathered units are the working set on top.

gloo copies a tensor from the launch of its gather until the gather ends; further gathers wait in a queue.

Gradients and their reductions, as in the reference engine:

    stage   unsharded gradients until the reduction           reduction
    0, 1    flat, persistent; plus those of one operator      in place
    2, 3    as autograd makes them, until the unit is done    copied into a buffer; this rank's shard is kept
    CB      the same                                          piece by piece through persistent buffers
    MD      stages 2, 3: one by one into a kept buffer        from there

If gradients are reduced in a different type than they are stored in, stages 0 and 1 go through buffers too.
This rank's shard is allocated with the first reduction of a step and dropped when the next step starts.

Frozen parameters have no gradient: element counts cover trained elements only.

Reduction buffers (the engine's BucketPool). At most ``limit`` are in flight; taking another waits for the
oldest. A returned buffer is reused if the size matches; otherwise it is freed before a new one is allocated.
"""

from collections import deque

from zprof.model.job import Backend, Job, ModelUnit
from zprof.planner.memory.walk.layout import (
    list_flat_tensors,
    padded_trained_elements,
    shard_elements,
    storage_block_elements,
    sum_padded_trained_elements,
)
from zprof.planner.memory.walk.ledger import (
    GATHERED,
    GRADIENTS,
    KEPT_BUFFERS,
    REDUCED,
    SCRATCH,
    UNREDUCED,
    LiveBytes,
)
from zprof.planner.unit_moments import UnitMoment

#: Collectives that gloo runs at the same time: the threads of a process group.
MAX_CONCURRENT = 2
#: Gathers that run at the same time within a pass: the backward's reductions take the other thread.
MAX_CONCURRENT_GATHERS = 1


class GatheredUnits:
    """Gathered units of a walk; below stage 3 all parameters are resident and none is gathered."""

    def __init__(self, job: Job, ledger: LiveBytes) -> None:
        self._job = job
        self._ledger = ledger
        self._gathered: dict[str, int] = {}
        self._running: deque[tuple[str, int]] = deque()

    def gather(self, unit: ModelUnit) -> None:
        """Launch the gathers of a unit."""
        for elements in list_flat_tensors(unit, self._job):
            size = elements * self._job.element_bytes.gathered
            self._gathered[unit.name] = self._gathered.get(unit.name, 0) + size
            self._ledger.add(GATHERED, size)
            copied = compute_backend_copy(self._job, size)
            self._ledger.add(SCRATCH, copied)
            self._running.append((unit.name, copied))
            while len(self._running) > MAX_CONCURRENT_GATHERS:
                self._wait_oldest()

    def release(self, unit: ModelUnit) -> None:
        """Free a gathered unit."""
        self.wait(unit)
        self._ledger.add(GATHERED, -self._gathered.pop(unit.name, 0))

    def wait(self, unit: ModelUnit) -> None:
        """Wait for a unit's gather, and for those launched before it: collectives run in launch order."""
        while any(name == unit.name for name, _ in self._running):
            self._wait_oldest()

    def _wait_oldest(self) -> None:
        _, copied = self._running.popleft()
        self._ledger.add(SCRATCH, -copied)


class Gradients:
    """Gradients of a step, and the memory that their reductions share."""

    def __init__(self, job: Job, stage: int, ledger: LiveBytes) -> None:
        self._job = job
        self._ledger = ledger
        self._stage = stage
        self._flat = stage < 2
        # The elements of a constant-size buffer, rounded down to an aligned shard for every rank.
        requested, block = job.residual.constant_buffer_elements, storage_block_elements(job)
        self._constant = None if requested is None else max(requested // block, 1) * block
        self._copies: int = 0
        residual, sizes = job.residual, job.element_bytes
        self._only_fresh = self._flat or residual.defragment
        same_type = sizes.reduced == sizes.gradient
        self._in_place = self._flat and same_type and (stage == 0 or self._constant is None)
        limit = job.overlap.reductions_in_flight
        kept = self._constant is not None or residual.defragment
        self._pool: Pool = PersistentPool(ledger, limit) if kept else TransientPool(ledger, limit)
        self._has_shards = False
        ledger.add(KEPT_BUFFERS, self._kept_bytes())
        if self._flat:
            ledger.add(GRADIENTS, sizes.gradient * sum_padded_trained_elements(job))
        elif residual.defragment:
            ledger.add(GRADIENTS, sizes.reduced * (sum_padded_trained_elements(job) // job.degrees.dp))

    def unreduced_bytes(self, moment: UnitMoment) -> int:
        """Return the bytes of a unit's unsharded gradients, except persistent ones."""
        elements = moment.fresh_elements if self._only_fresh else moment.gradient_elements
        return elements * self._job.element_bytes.parameter

    def reduce(self, unit: ModelUnit, unreduced_bytes: int) -> None:
        """Launch the reduction of a unit whose gradients are complete.

        ``unreduced_bytes``: the unit's unsharded gradients if they are not persistent.
        """
        if self._in_place:
            self._add_copies(self._copy_of_flat(unit))
        elif self._constant is not None or self._flat:
            self._reduce_pieces(unit, unreduced_bytes)
        else:
            self._reduce_bucket(unit, unreduced_bytes)

    def skip(self, unit: ModelUnit, count: int) -> None:
        """Account for ``count`` further units equal to ``unit``, which the walk skips."""
        if self._flat and self._in_place:
            self._add_copies(self._copy_of_flat(unit) * count)
        elif not self._flat:
            self._add_shard(unit, count)

    def end_backward(self) -> None:
        """Complete all reductions."""
        self._pool.drain()
        self._add_copies(-self._copies)
        self._has_shards = True

    def _copy_of_flat(self, unit: ModelUnit) -> int:
        """Return the backend's copy: gloo copies a reduce-scatter's input; all-reduce is in place."""
        size = padded_trained_elements(unit, self._job) * self._job.element_bytes.reduced
        return compute_backend_copy(self._job, size) if self._stage else 0

    def _add_copies(self, size_bytes: int) -> None:
        self._copies += size_bytes
        self._ledger.add(SCRATCH, size_bytes)

    def _reduce_bucket(self, unit: ModelUnit, unreduced_bytes: int) -> None:
        size = padded_trained_elements(unit, self._job) * self._job.element_bytes.reduced
        self._pool.take(size)
        self._ledger.add(UNREDUCED, -unreduced_bytes)
        self._add_shard(unit)
        self._pool.lend(size, compute_backend_copy(self._job, size))

    def _reduce_pieces(self, unit: ModelUnit, unreduced_bytes: int) -> None:
        for elements in self._pieces(unit):
            size = elements * self._job.element_bytes.reduced
            self._pool.take(size)
            self._pool.lend(size, compute_backend_copy(self._job, size) if self._stage else 0)
        if not self._flat:
            self._add_shard(unit)
            self._ledger.add(UNREDUCED, -unreduced_bytes)

    def _pieces(self, unit: ModelUnit) -> tuple[int, ...]:
        """Return the elements of a unit's pieces; full ones beyond the number in flight + 1 are omitted."""
        elements = padded_trained_elements(unit, self._job)
        if self._constant is None or elements <= self._constant:
            return (elements,)
        full, rest = divmod(elements, self._constant)
        fill = [self._constant] * min(full, self._job.overlap.reductions_in_flight + 1)
        return (*fill, rest) if rest else tuple(fill)

    def _add_shard(self, unit: ModelUnit, count: int = 1) -> None:
        if not self._has_shards and not self._job.residual.defragment:
            self._ledger.add(
                GRADIENTS, count * shard_elements(unit, self._job) * self._job.element_bytes.reduced
            )

    def _kept_bytes(self) -> int:
        """Return the bytes of buffers allocated once: constant-size (CB) and of unit size (MD)."""
        sizes, job = self._job.element_bytes, self._job
        limit, kept = job.overlap.reductions_in_flight, 0
        if self._constant is not None and not self._in_place:
            kept += limit * self._constant * sizes.reduced
        if not job.residual.defragment or self._in_place:
            return kept
        if self._flat:
            largest = max(padded_trained_elements(unit, job) for unit in job.units)
            return kept or limit * largest * sizes.reduced
        roots = [padded_trained_elements(unit, job) for unit in job.units if unit.encloses]
        inner = [padded_trained_elements(unit, job) for unit in job.units if not unit.encloses]
        elements = sum(roots) + limit * max(inner, default=0)
        return kept + elements * (sizes.reduced if self._constant is None else sizes.parameter)


class TransientPool:
    """Buffers that live for one backward pass."""

    def __init__(self, ledger: LiveBytes, limit: int) -> None:
        self._ledger = ledger
        self._limit = limit
        self._in_flight: deque[tuple[int, int]] = deque()
        self._spare: list[int] = []

    def take(self, size_bytes: int) -> None:
        """Take a buffer of that size."""
        while len(self._in_flight) >= self._limit:
            self._wait_oldest()
        if size_bytes in self._spare:
            self._spare.remove(size_bytes)
            return
        self._ledger.add(REDUCED, -sum(self._spare))
        self._spare.clear()
        self._ledger.add(REDUCED, size_bytes)

    def lend(self, size_bytes: int, copy_bytes: int) -> None:
        """Start the reduction of a buffer; the backend's copy lives as long as it runs."""
        self._ledger.add(SCRATCH, copy_bytes)
        self._in_flight.append((size_bytes, copy_bytes))

    def drain(self) -> None:
        """Complete all reductions and free the buffers."""
        while self._in_flight:
            self._wait_oldest()
        self._ledger.add(REDUCED, -sum(self._spare))
        self._spare.clear()

    def _wait_oldest(self) -> None:
        size_bytes, copy_bytes = self._in_flight.popleft()
        self._ledger.add(SCRATCH, -copy_bytes)
        self._spare.append(size_bytes)


class PersistentPool:
    """Buffers allocated once, as many as may be in flight."""

    def __init__(self, ledger: LiveBytes, limit: int) -> None:
        self._ledger = ledger
        self._limit = limit
        self._in_flight: deque[int] = deque()

    def take(self, size_bytes: int) -> None:
        """Take one of the buffers."""
        while len(self._in_flight) >= self._limit:
            self._ledger.add(SCRATCH, -self._in_flight.popleft())

    def lend(self, size_bytes: int, copy_bytes: int) -> None:
        """Start the reduction of a buffer; the backend's copy lives as long as it runs."""
        self._ledger.add(SCRATCH, copy_bytes)
        self._in_flight.append(copy_bytes)

    def drain(self) -> None:
        """Complete all reductions."""
        while self._in_flight:
            self._ledger.add(SCRATCH, -self._in_flight.popleft())


Pool = TransientPool | PersistentPool


def compute_backend_copy(job: Job, size_bytes: int) -> int:
    """Return the bytes of the backend's copy of a full tensor: gloo makes one, NCCL none."""
    return size_bytes if job.backend is Backend.GLOO else 0
