"""Track a device's live bytes by slot and at their peak: gathered units, gradients, reduction buffers.

The schedule decides when units are gathered, released and reduced (:mod:`zprof.step.schedule`). The paper
counts only the states (arXiv 1910.02054, section 7.2.2); gathered units come on top, as the working set.

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
from collections.abc import Mapping

from msgspec import Struct

from zprof.model.job import Backend, Job, ModelUnit
from zprof.model.plan import Assumption, Term
from zprof.model.tenants import BACKEND_SCRATCH, DISPLAY_ORDER, Tenant
from zprof.planner.memory.walk.layout import (
    list_flat_tensors,
    padded_trained_elements,
    shard_elements,
    storage_block_elements,
    sum_padded_trained_elements,
)
from zprof.planner.unit_times import UnitMoment

_ENGINE = "reference engine"
_PAPER = "arXiv 1910.02054"
ASSUMPTIONS: Mapping[str, Assumption] = {
    "walk.parameters": Assumption(
        formula="p x padded; stage 3: p x padded / N; padded: a unit's elements, rounded up to N x alignment",
        source=f"{_PAPER}, section 5 and figure 1",
        deviation="the paper does not pad shards to equal size",
    ),
    "walk.optimizer_state": Assumption(
        formula="K x padded trainable elements (/ N from stage 1), plus 4 bytes per unit (step counter)",
        source=f"{_PAPER}, section 5 and figure 1",
        deviation="plus padding and step counters; if units do not list their frozen parameters, each gets a "
        "proportional share",
    ),
    "walk.gradients": Assumption(
        formula="trainable parameters: g x padded throughout (stages 0, 1); r x padded / N of the units "
        "reduced so far (2, 3)",
        source=f"{_PAPER}, sections 5.1 and 5.2; {_ENGINE}",
        deviation="stages 2 and 3: allocated during the backward, freed before the next step",
    ),
    "walk.unreduced": Assumption(
        formula="p x elements with a gradient that has not been reduced yet: those of one operator (stages "
        "0, 1); those of the unit in its backward, and of the root (2, 3)",
        source=f"{_ENGINE}; autograd",
        deviation="the paper counts reduced gradients only",
    ),
    "walk.saved": Assumption(
        formula="units that have finished their forward: T e (4 h + 12 h/M + 4) + 4 T a/M; Llama blocks: "
        "T e (4 h + (2 q + 2 k + 4 m)/M) + 8 T + 4 T a/M with q, k, m wide queries, keys and MLP, and for "
        "experts A m, 2 A T h e, 4 T E and 12 A T; the root: inputs of its norm and head, log-softmax 4 T V",
        source="autograd; FlashAttention, arXiv 2205.14135; Megatron-LM, arXiv 1909.08053, section 3",
        deviation=f"{_PAPER}, section 3.2, counts 12 T h per block, without norms and residual inputs",
    ),
    "walk.recomputed": Assumption(
        formula="activations one unit saves for its backward, excluding its input",
        source=f"{_PAPER}, section 3.2; {_ENGINE}",
        deviation="the paper counts checkpoints only; here one unit at a time is fully recomputed",
    ),
    "walk.checkpoints": Assumption(
        formula="units x T h e in one chunk, aligned to 256 bytes (MD); with Pa, sharded over the ranks",
        source=f"{_PAPER}, sections 6.1 and 6.3",
        deviation="with Pa the chunk is an all-gather input, so it counts as a communication buffer",
    ),
    "walk.work": Assumption(
        formula="temporary operator outputs: activation gradients, residual sums, fp32 logits",
        source="autograd: the inputs and outputs of each operator",
        deviation="not in the paper; kernel workspaces are not counted",
    ),
    "walk.tied_head": Assumption(
        formula="V h e/M: the gradient of the head, live from its backward until that of the tied embedding",
        source="autograd",
        deviation="not in the paper",
    ),
    "walk.gathered_checkpoint": Assumption(
        formula="Pa: T h e of the unit being recomputed, plus T h e/M of all-gather input (with Pa+cpu only "
        "while the gather runs)",
        source=f"{_PAPER}, section 6.1; {_ENGINE}",
        deviation="",
    ),
    "walk.gradient_copy": Assumption(
        formula="4 bytes x this rank's shard of a unit (with CB, of a buffer)",
        source=f"{_ENGINE}: torch's fused AdamW requires gradients in the dtype of the weights",
        deviation="not included in the paper's 16 bytes per parameter",
    ),
    "walk.gathered_units": Assumption(
        formula="gathered x padded of the root, the current unit and the prefetched ones",
        source=f"{_PAPER}, section 7.2.2; {_ENGINE}",
        deviation="the paper's figure 1 excludes the working set",
    ),
    "walk.reductions": Assumption(
        formula="r x padded for each reduction in flight, up to the engine's limit",
        source=f"{_ENGINE}: a unit's gradients are flattened into one buffer for the reduction",
        deviation="the paper's formulas exclude buffers (section 6.2 describes them)",
    ),
    "walk.kept_buffers": Assumption(
        formula="CB: reductions in flight x buffer; MD: reductions in flight x largest unit, and the root",
        source=f"{_PAPER}, sections 6.2 and 6.3; {_ENGINE}",
        deviation="no size in the paper",
    ),
    "walk.backend_copies": Assumption(
        formula="gloo copies the full tensor: a reduce-scatter copy lives until the wait, an all-gather copy "
        "while the gather runs, two at a time; NCCL makes no copy",
        source="torch ProcessGroupGloo",
        deviation="not in the paper",
    ),
}
#: Collectives that gloo runs concurrently: the threads of a process group.
MAX_CONCURRENT = 2
#: Gathers that run concurrently within a pass: the reductions of the backward pass take the other thread.
MAX_CONCURRENT_GATHERS = 1


class Slot(Struct, frozen=True, kw_only=True):
    """A category of memory: tenant, sub-category, and the key of its assumption."""

    tenant: Tenant
    sub: str
    assumption: str


class LiveBytes:
    """Live bytes by slot, with the breakdown and the location of the peak."""

    def __init__(self) -> None:
        self._bytes: dict[Slot, int] = {}
        self._total = 0
        self._peak: Mapping[Slot, int] = {}
        self._peak_total = -1
        self._peak_location = ""
        self.current_location = ""

    @property
    def peak_location(self) -> str:
        """Location of the peak within the step."""
        return self._peak_location

    @property
    def peak_bytes(self) -> int:
        """Live bytes at the peak."""
        return max(self._peak_total, 0)

    def add(self, slot: Slot, size_bytes: int) -> None:
        """Add bytes to a slot, or remove them, and update the peak."""
        self.set_bytes({slot: self._bytes.get(slot, 0) + size_bytes})

    def set_bytes(self, sizes: Mapping[Slot, int]) -> None:
        """Set the bytes of several slots at once and update the peak."""
        for slot, size in sizes.items():
            self._total += size - self._bytes.get(slot, 0)
            self._bytes[slot] = size
        if self._total > self._peak_total:
            self._peak, self._peak_total = dict(self._bytes), self._total
            self._peak_location = self.current_location

    def terms(self) -> tuple[Term, ...]:
        """Return the live bytes at the peak as terms, in display order of tenants."""
        return tuple(
            Term(tenant=slot.tenant, sub=slot.sub, bytes=size, assumption=slot.assumption)
            for slot, size in sorted(self._peak.items(), key=lambda item: DISPLAY_ORDER.index(item[0].tenant))
            if size
        )


PARAMETERS = Slot(tenant=Tenant.PARAMETERS, sub="weight", assumption="walk.parameters")
OPTIMIZER_STATE = Slot(tenant=Tenant.OPTIMIZER_STATE, sub="state", assumption="walk.optimizer_state")
GRADIENTS = Slot(tenant=Tenant.GRADIENTS, sub="grad", assumption="walk.gradients")
UNREDUCED = Slot(tenant=Tenant.GRADIENTS, sub="unreduced", assumption="walk.unreduced")
SAVED = Slot(tenant=Tenant.ACTIVATIONS, sub="saved", assumption="walk.saved")
RECOMPUTED = Slot(tenant=Tenant.ACTIVATIONS, sub="recomputed", assumption="walk.recomputed")
CHECKPOINTS = Slot(tenant=Tenant.ACTIVATIONS, sub="checkpoint", assumption="walk.checkpoints")
OPERATOR_OUTPUTS = Slot(tenant=Tenant.TEMPORARY_BUFFERS, sub="op_output", assumption="walk.work")
TIED_HEAD_GRADIENT = Slot(tenant=Tenant.TEMPORARY_BUFFERS, sub="act_grad", assumption="walk.tied_head")
GRADIENT_COPY = Slot(tenant=Tenant.TEMPORARY_BUFFERS, sub="optimizer", assumption="walk.gradient_copy")
GATHERED = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub="gathered_param", assumption="walk.gathered_units")
GATHERED_CHECKPOINT = Slot(
    tenant=Tenant.COMMUNICATION_BUFFERS, sub="allgather_base", assumption="walk.gathered_checkpoint"
)
GATHERED_CHUNK = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub="checkpoint", assumption="walk.checkpoints")
REDUCED = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub="reduce_scatter_base", assumption="walk.reductions")
KEPT_BUFFERS = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub="kept_buffers", assumption="walk.kept_buffers")
SCRATCH = Slot(tenant=Tenant.COMMUNICATION_BUFFERS, sub=BACKEND_SCRATCH, assumption="walk.backend_copies")


class GatheredUnits:
    """Gathered units of a walk; below stage 3 all parameters are resident and no unit is gathered."""

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
        """Wait for a unit's gather and all earlier ones: collectives run in launch order."""
        while any(name == unit.name for name, _ in self._running):
            self._wait_oldest()

    def _wait_oldest(self) -> None:
        _, copied = self._running.popleft()
        self._ledger.add(SCRATCH, -copied)


class Gradients:
    """Gradients of a step and the memory shared by their reductions."""

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
        """Return the bytes of a unit's unsharded gradients, without persistent gradients."""
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
            size = padded_trained_elements(unit, self._job) * self._job.element_bytes.reduced
            self._pool.take(size)
            self._ledger.add(UNREDUCED, -unreduced_bytes)
            self._add_shard(unit)
            self._pool.lend(size, compute_backend_copy(self._job, size))

    def skip(self, unit: ModelUnit, count: int) -> None:
        """Account for ``count`` skipped units equal to ``unit``."""
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

    def _reduce_pieces(self, unit: ModelUnit, unreduced_bytes: int) -> None:
        # Omit full pieces after the number in flight + 1.
        total = padded_trained_elements(unit, self._job)
        pieces = [total]
        if self._constant is not None and total > self._constant:
            full, rest = divmod(total, self._constant)
            pieces = [self._constant] * min(full, self._job.overlap.reductions_in_flight + 1)
            pieces += [rest] if rest else []
        for elements in pieces:
            size = elements * self._job.element_bytes.reduced
            self._pool.take(size)
            self._pool.lend(size, compute_backend_copy(self._job, size) if self._stage else 0)
        if not self._flat:
            self._add_shard(unit)
            self._ledger.add(UNREDUCED, -unreduced_bytes)

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
