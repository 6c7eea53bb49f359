"""Launch each unit's reduction as soon as its last gradient is ready, in the same order on all ranks.

Units are reduced in reverse forward order.  A unit with unused parameters is reduced when its backward ends,
with zeros for those parameters.  The config determines how full gradients are stored and reduced:

    stage               storage until the reduction                   reduction
    0                   persistent flat tensor                        all-reduce in place
    1                   persistent flat tensor                        reduce-scatter in place
    2, 3                one .grad per parameter, then a bucket        reduce-scatter of the bucket
    with CB             the same, but no bucket in stages 2 and 3     piece by piece through buffers
    with MD             a bucket from the start in stages 2 and 3;    the same
                        buckets, buffers and shards are persistent
    2, 3: MD, no_sync   persistent flat tensor                        reduce-scatter in place

If ``reduce_dtype`` differs from ``dtype``, persistent flat gradients go through buffers of that dtype; a
bucket has it from the start.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import torch
from torch import nn

from zprof.reference_engine.comm.collective import Comm, Handle
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.flat_unit import FlatUnit, ModuleUnit
from zprof.reference_engine.gradients.presence import Presence, probe_sign_of_zero
from zprof.reference_engine.gradients.reductions import (
    AccumulatedReduction,
    AllReduceInPlace,
    AllReduceThroughBuffers,
    BucketedGrads,
    GradShard,
    PersistentGradShard,
    ReadableGrads,
    ReduceScatterBucket,
    ReduceScatterInPlace,
    ReduceScatterThroughBuffers,
    Reduction,
    ReductionPass,
    TransientGradShard,
    UnreducedGrads,
    make_persistent_shard,
)
from zprof.reference_engine.gradients.storage import (
    BucketAfterBackward,
    BucketDuringBackward,
    BucketMemory,
    BucketPool,
    ElementRange,
    FlatGrads,
    PerParamGrads,
    PersistentBucketMemory,
    TransientBucketMemory,
    round_buffer_elements,
    split_into_ranges,
)
from zprof.reference_engine.hooks import BackwardPass, EngineHook, will_have_gradient


class UnitGradients:
    """The gradients of one unit.  The optimizer reads ``mean_shard`` after a step's last reduction."""

    def __init__(
        self, full_grads: UnreducedGrads, reduction: Reduction, grad_shard: GradShard, presence: Presence
    ) -> None:
        self.presence = presence
        self._full_grads = full_grads
        self._reduction = reduction
        self._grad_shard = grad_shard

    @property
    def mean_shard(self) -> torch.Tensor:
        """This rank's shard of the mean gradient."""
        return self._grad_shard.tensor

    def collect(self, index: int) -> None:
        """Store the gradient of parameter ``index``."""
        self._full_grads.collect(index)

    def reduce(self, missing: Iterable[int], reduction_pass: ReductionPass) -> Handle:
        """Launch the reduction; parameters in ``missing`` got no gradient in this backward."""
        self._full_grads.complete(missing)
        return self._reduction.start(reduction_pass)

    def zero(self) -> None:
        """Zero all gradients and start a new step."""
        self._full_grads.zero()
        self._grad_shard.zero()
        self.presence.clear()


class GradientReducer:
    """Tracks which gradients are ready, and launches reductions during the backward."""

    def __init__(
        self,
        gradients: Mapping[FlatUnit, UnitGradients],
        *,
        micro_batches: int,
        reduce_each: bool,
        overlap: bool,
        backward: BackwardPass,
        wait_pending: Callable[[], None],
    ) -> None:
        """Register hooks on the parameters.

        ``gradients`` is in forward order.  ``wait_pending`` waits for reductions that use shared buffers.
        """
        self._gradients = gradients
        self._order: Sequence[FlatUnit] = tuple(reversed(list(gradients)))
        self._micro_batches = micro_batches
        self._reduce_each = reduce_each
        self._overlap = overlap
        self._backward = backward
        self._wait_pending = wait_pending
        self._backwards_done = 0
        self._in_flight = False
        self._pass: ReductionPass | None = None
        self._without_gradient: dict[FlatUnit, set[int]] = {}
        self._complete_units: set[FlatUnit] = set()
        self._launched_count = 0
        self._handles: list[Handle] = []
        backward.on_start.append(EngineHook(self._start_pass))
        backward.on_end.append(EngineHook(self._end_pass))
        for number, unit in enumerate(self._order):
            for index, parameter in enumerate(unit.parameters):
                hook = EngineHook(self._gradient_ready, number, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    @property
    def reduced(self) -> bool:
        """True after all backward passes of the step, when ``mean_shard`` holds the mean."""
        return self._backwards_done == self._micro_batches and not self._in_flight

    @property
    def missing_backwards(self) -> int:
        """Number of backward passes that the step still needs."""
        return self._micro_batches - self._backwards_done

    def zero(self) -> None:
        """Zero all gradients and reset the step, also after one that failed midway."""
        self._wait_handles()
        for gradients in self._gradients.values():
            gradients.zero()
        self._backwards_done = 0
        self._in_flight = False

    def _gradient_ready(self, number: int, index: int, parameter: nn.Parameter) -> None:
        self._backward.enter()
        unit = self._order[number]
        if unit in self._complete_units or index not in self._without_gradient[unit]:
            raise RuntimeError(
                f"parameter {unit.layout.slots[index].name} received a second gradient in one backward(), as "
                "with reentrant checkpointing of several functions that use it; pass use_reentrant=False"
            )
        self._gradients[unit].presence.add(index)
        if self._pass is not None:
            self._gradients[unit].collect(index)
        self._without_gradient[unit].discard(index)
        if not self._without_gradient[unit] and not self._must_wait(unit):
            self._complete_unit(unit)

    def end_unit_backward(self, module_unit: ModuleUnit) -> None:
        """Release and reduce a unit at the end of its backward: parameters without a gradient are unused."""
        module_unit.release()
        if not self._backward.accumulates:
            return
        for unit in module_unit.flat:
            if unit.trainable and unit not in self._complete_units and not self._expects_gradient(unit):
                self._complete_unit(unit)

    def _complete_unit(self, unit: FlatUnit) -> None:
        self._complete_units.add(unit)
        unit.release()  # free the parameters before allocating a bucket
        if self._pass is not None:
            self._launch_complete(self._pass)

    def _must_wait(self, unit: FlatUnit) -> bool:
        """Return True if a unit with all gradients must wait for the end of its backward or of the pass.

        Its backward may still need the values of parameters whose gradients are ready.  And if gathers are
        interleaved with reductions, their order must not depend on which parameters this rank used.
        """
        return unit.watched or unit.policy.shard_parameters

    def _expects_gradient(self, unit: FlatUnit) -> bool:
        return any(will_have_gradient(unit.parameters[index]) for index in self._without_gradient[unit])

    def _start_pass(self) -> None:
        if not self._backward.accumulates:
            return
        self._check_can_start()
        self._in_flight = True
        last = self._backwards_done + 1 == self._micro_batches
        if self._reduce_each:
            self._pass = ReductionPass(first=self._backwards_done == 0, last=last)
        else:
            self._pass = ReductionPass() if last else None
        self._without_gradient = {unit: set(range(len(unit.parameters))) for unit in self._order}
        self._complete_units = set()
        self._launched_count = 0

    def _check_can_start(self) -> None:
        if self._in_flight:
            raise RuntimeError("the last backward() did not finish: call zero_grad() and repeat the step")
        if self._backwards_done == self._micro_batches:
            self._in_flight = True  # this backward may already have changed the gradients
            raise RuntimeError(
                f"gradients are already reduced: micro_batches is {self._micro_batches}, and all backward() "
                "calls are done; call step(), then zero_grad() before the next backward()"
            )

    def _launch_complete(self, reduction_pass: ReductionPass) -> None:
        while (
            self._launched_count < len(self._order)
            and self._order[self._launched_count] in self._complete_units
        ):
            self._launch_next(reduction_pass)

    def _launch_next(self, reduction_pass: ReductionPass) -> None:
        unit = self._order[self._launched_count]
        self._launched_count += 1
        handle = self._gradients[unit].reduce(self._without_gradient[unit], reduction_pass)
        if self._overlap:
            self._handles.append(handle)
        else:
            handle.wait()

    def _end_pass(self) -> None:
        if not self._backward.accumulates:
            return
        while self._pass is not None and self._launched_count < len(self._order):
            self._launch_next(self._pass)
        self._wait_handles()
        self._backwards_done += 1
        self._in_flight = False

    def _wait_handles(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.wait()
        self._wait_pending()


class Gradients:
    """The gradients of all trainable units, and their shared buffers."""

    def __init__(self, module_units: Sequence[ModuleUnit], config: ZeroConfig, comm: Comm) -> None:
        """Build the gradient storage and reduction of each unit.

        ``module_units`` are in forward order; no backward may have run yet.

        Raises:
            ValueError: ``constant_buffers`` is smaller than ranks x alignment.
        """
        self._module_units = module_units
        self._config = config
        self._comm = comm
        self._constant_elements = get_constant_elements(config, comm.world_size)
        self._divisor = comm.world_size * config.micro_batches
        self._pools: list[BucketPool] = []
        flat = [unit for module_unit in module_units for unit in module_unit.flat if unit.trainable]
        self._trainable = flat
        # gloo follows IEEE 754 (a test checks it).
        on_gpus = flat[0].full.device.type == "cuda" and comm.world_size > 1
        self._keeps_sign = not on_gpus or probe_sign_of_zero(flat, config.wire_dtype, comm)
        self.by_unit = {unit: self._build_unit(unit) for unit in flat}

    def wait_pending(self) -> None:
        """Wait for reductions in flight, and free shared buffers that are not persistent."""
        for pool in self._pools:
            pool.drain()

    @property
    def _reduces_each(self) -> bool:
        return self._config.micro_batches > 1 and self._config.reduces_each_micro_batch

    @property
    def _keeps_full_grads(self) -> bool:
        """In stages 2 and 3, keep full gradients until the last micro-batch (no_sync)."""
        return self._config.micro_batches > 1 and not self._config.reduces_each_micro_batch

    def _build_unit(self, unit: FlatUnit) -> UnitGradients:
        if not unit.policy.shard_optimizer:
            return self._build_stage_0(unit)
        if not unit.policy.shard_gradients:
            return self._build_stage_1(unit)
        return self._build_stages_2_and_3(unit)

    def _build_stage_0(self, unit: FlatUnit) -> UnitGradients:
        full_grads, presence = FlatGrads(unit), self._make_presence(unit)
        padded, count = unit.layout.padded, self._config.micro_batches
        reduction: Reduction
        if self._has_wire_dtype(unit):
            pieces = split_into_ranges(padded, self._constant_elements or max(padded, 1))
            reduction = AllReduceInPlace(
                full_grads, presence, self._comm, unit.name, micro_batches=count, pieces=pieces
            )
        else:
            pieces, pool = self._split_shard(unit), self._piece_pool
            reduction = AllReduceThroughBuffers(
                full_grads, presence, self._comm, unit.name, micro_batches=count, pieces=pieces, pool=pool
            )
        return UnitGradients(full_grads, reduction, PersistentGradShard(full_grads.flat), presence)

    def _build_stage_1(self, unit: FlatUnit) -> UnitGradients:
        full_grads, presence = FlatGrads(unit), self._make_presence(unit)
        grad_shard = PersistentGradShard(full_grads.flat[unit.owned_range])
        reduction = self._make_flat_reduction(unit, full_grads, grad_shard, presence)
        if self._reduces_each:
            reduction = AccumulatedReduction(reduction, full_grads, grad_shard)
        return UnitGradients(full_grads, reduction, grad_shard, presence)

    def _build_stages_2_and_3(self, unit: FlatUnit) -> UnitGradients:
        grad_shard, presence = self._make_grad_shard(unit), self._make_presence(unit)
        full_grads: UnreducedGrads
        reduction: Reduction
        if self._keeps_full_grads and self._config.defragment:
            full_grads = flat = FlatGrads(unit)
            reduction = self._make_flat_reduction(unit, flat, grad_shard, presence)
        elif self._constant_elements is not None:
            full_grads = readable = self._make_readable_grads(unit)
            reduction = self._make_buffered_reduction(unit, readable, grad_shard, presence)
        else:
            full_grads = bucketed = self._make_bucketed_grads(unit)
            reduction = ReduceScatterBucket(
                bucketed,
                presence,
                grad_shard,
                self._comm,
                unit,
                divisor=self._divisor,
                pool=self._bucket_pool,
            )
        return UnitGradients(full_grads, reduction, grad_shard, presence)

    def _make_presence(self, unit: FlatUnit) -> Presence:
        return Presence(unit, keeps_sign=self._keeps_sign)

    def _make_grad_shard(self, unit: FlatUnit) -> GradShard:
        factory = make_persistent_shard if self._config.defragment else TransientGradShard
        return factory(unit, self._config.wire_dtype)

    def _make_bucketed_grads(self, unit: FlatUnit) -> BucketedGrads:
        factory = BucketDuringBackward if self._config.defragment else BucketAfterBackward
        return factory(unit, self._bucket_pool)

    def _make_readable_grads(self, unit: FlatUnit) -> ReadableGrads:
        if self._config.defragment:
            return BucketDuringBackward(unit, self._bucket_pool)
        return PerParamGrads(unit, self._split_shard(unit))

    def _make_flat_reduction(
        self, unit: FlatUnit, full_grads: FlatGrads, grad_shard: GradShard, presence: Presence
    ) -> Reduction:
        if self._constant_elements is None and self._has_wire_dtype(unit):
            return ReduceScatterInPlace(
                full_grads, presence, grad_shard, self._comm, unit.name, divisor=self._divisor
            )
        return self._make_buffered_reduction(unit, full_grads, grad_shard, presence)

    def _make_buffered_reduction(
        self, unit: FlatUnit, full_grads: ReadableGrads, grad_shard: GradShard, presence: Presence
    ) -> Reduction:
        return ReduceScatterThroughBuffers(
            full_grads,
            presence,
            grad_shard,
            self._comm,
            unit.name,
            divisor=self._divisor,
            pieces=self._split_shard(unit),
            pool=self._piece_pool,
        )

    def _has_wire_dtype(self, unit: FlatUnit) -> bool:
        return unit.full.dtype == self._config.wire_dtype

    def _split_shard(self, unit: FlatUnit) -> tuple[ElementRange, ...]:
        shard = unit.layout.shard_numel
        max_elements = (
            max(shard, 1)
            if self._constant_elements is None
            else self._constant_elements // self._comm.world_size
        )
        return split_into_ranges(shard, max_elements)

    @cached_property
    def _piece_pool(self) -> BucketPool:
        """Pool of buffers for single pieces, of constant size or of the size of a unit."""
        count, dtype = self._config.reduce_buckets, self._config.wire_dtype
        if self._constant_elements is not None:
            return self._add_pool(
                PersistentBucketMemory([self._constant_elements] * count, dtype, self._device)
            )
        if self._config.defragment:
            return self._add_pool(
                PersistentBucketMemory([_max_padded(self._trainable)] * count, dtype, self._device)
            )
        return self._add_pool(TransientBucketMemory(dtype, self._device))

    @cached_property
    def _bucket_pool(self) -> BucketPool:
        """Pool of buckets that hold all gradients of a unit."""
        config = self._config
        dtype = config.wire_dtype if self._constant_elements is None else config.dtype
        if not config.defragment:
            return self._add_pool(TransientBucketMemory(dtype, self._device))
        sizes = compute_chunk_sizes(self._module_units, config.reduce_buckets)
        return self._add_pool(PersistentBucketMemory(sizes, dtype, self._device))

    def _add_pool(self, memory: BucketMemory) -> BucketPool:
        pool = BucketPool(memory, self._config.reduce_buckets)
        self._pools.append(pool)
        return pool

    @property
    def _device(self) -> torch.device:
        return self._trainable[0].full.device


def get_constant_elements(config: ZeroConfig, ranks: int) -> int | None:
    """Return the number of elements per constant-size buffer, or None if ``constant_buffers`` is not set.

    Raises:
        ValueError: ``constant_buffers`` is smaller than ranks x alignment.
    """
    if config.constant_buffers is None:
        return None
    return round_buffer_elements(config.constant_buffers, ranks=ranks, alignment=config.alignment)


def compute_chunk_sizes(module_units: Sequence[ModuleUnit], in_flight: int) -> list[int]:
    """Compute the chunk sizes, in elements, that fit all full gradients that are live at the same time.

    These are ``in_flight`` chunks of the size of the largest inner unit, one more for each further flat unit
    of the same module, and one chunk for each unit that encloses others, whose gradients are live throughout.
    """
    enclosing = [unit for unit in module_units if _encloses_units(unit, module_units)]
    inner = [_list_trainable(unit) for unit in module_units if unit not in enclosing]
    sizes = [unit.layout.padded for outer in enclosing for unit in _list_trainable(outer)]
    if any(inner):
        live_units = in_flight + max(map(len, inner)) - 1
        sizes += [_max_padded(unit for units in inner for unit in units)] * live_units
    return sizes


def _encloses_units(unit: ModuleUnit, module_units: Iterable[ModuleUnit]) -> bool:
    inside = set(unit.module.modules()) - {unit.module}
    return any(other.module in inside for other in module_units)


def _list_trainable(unit: ModuleUnit) -> list[FlatUnit]:
    return [flat for flat in unit.flat if flat.trainable]


def _max_padded(units: Iterable[FlatUnit]) -> int:
    return max(unit.layout.padded for unit in units)
