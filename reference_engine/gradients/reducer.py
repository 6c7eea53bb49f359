"""Launch each unit's gradient reduction as soon as its last gradient is ready, in one order on all ranks.

The order is the reverse of the forward.  A unit with unused parameters is reduced when its backward is over,
with zeros for them.  The config decides how a unit stores its gradients and reduces them:

    stage   full gradients until the reduction                 reduction
    0       flat, kept                                         all-reduce in place
    1       flat, kept                                         reduce-scatter in place
    2, 3    as autograd made them, then into a bucket          reduce-scatter of the bucket
    CB      the same; stages 2 and 3: as autograd made them    piece by piece through buffers
    MD      the same; stages 2 and 3: into a bucket at once;   the same
            buckets, buffers and shards keep their memory
    MD and no_sync, stages 2 and 3: flat, kept                 reduce-scatter in place

If ``reduce_dtype`` differs, full gradients that are kept go through buffers; a bucket has that type from the
start.
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
    Cut,
    FlatGrads,
    PerParamGrads,
    PersistentBucketMemory,
    TransientBucketMemory,
    round_buffer_elements,
    split_into_cuts,
)
from zprof.reference_engine.hooks import BackwardPass, EngineHook, will_have_gradient


class UnitGradients:
    """The gradients of one unit.  The optimizer reads ``owned`` after a step's last reduction."""

    def __init__(
        self, whole: UnreducedGrads, reduction: Reduction, owned: GradShard, presence: Presence
    ) -> None:
        self.presence = presence
        self._whole = whole
        self._reduction = reduction
        self._owned = owned

    @property
    def owned(self) -> torch.Tensor:
        """This rank's part of the mean."""
        return self._owned.tensor

    def take(self, index: int) -> None:
        """Take the gradient of the parameter with this index."""
        self._whole.take(index)

    def reduce(self, missing: Iterable[int], this_pass: ReductionPass) -> Handle:
        """Start to average over the ranks; this backward made no gradient for the parameters in
        ``missing``.
        """
        self._whole.complete(missing)
        return self._reduction.start(this_pass)

    def zero(self) -> None:
        """Zero all gradients and start a new step."""
        self._whole.zero()
        self._owned.zero()
        self.presence.clear()


class GradientReducer:
    """Count backward passes and gradients, and launch reductions during the backward."""

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

        ``gradients`` is in forward order. ``wait_pending`` waits until no reduction uses a shared buffer.
        """
        self._gradients = gradients
        self._order: Sequence[FlatUnit] = tuple(reversed(list(gradients)))
        self._micro_batches = micro_batches
        self._reduce_each = reduce_each
        self._overlap = overlap
        self._backward = backward
        self._wait_pending = wait_pending
        self._done = 0
        self._in_flight = False
        self._pass: ReductionPass | None = None
        self._missing: dict[FlatUnit, set[int]] = {}
        self._complete: set[FlatUnit] = set()
        self._launched = 0
        self._handles: list[Handle] = []
        backward.on_begin.append(self._begin)
        backward.on_end.append(self._end)
        for number, unit in enumerate(self._order):
            for index, parameter in enumerate(unit.parameters):
                hook = EngineHook(self._gradient_ready, number, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    @property
    def reduced(self) -> bool:
        """True if all backward passes of the step are over, so that ``owned`` is the mean."""
        return self._done == self._micro_batches and not self._in_flight

    @property
    def missing_backwards(self) -> int:
        """Number of backward passes that the step still needs."""
        return self._micro_batches - self._done

    def zero(self) -> None:
        """Zero all gradients in place and start the step over, also after one that failed midway."""
        self._wait()
        for gradients in self._gradients.values():
            gradients.zero()
        self._done = 0
        self._in_flight = False

    def _gradient_ready(self, number: int, index: int, parameter: nn.Parameter) -> None:
        self._backward.enter()
        unit = self._order[number]
        if unit in self._complete or index not in self._missing[unit]:
            raise RuntimeError(
                f"parameter {unit.layout.slots[index].name} has a second gradient in one backward(), as by "
                "reentrant checkpointing of several functions that use it; pass use_reentrant=False there"
            )
        self._gradients[unit].presence.add(index)
        if self._pass is not None:
            self._gradients[unit].take(index)
        self._missing[unit].discard(index)
        if not self._missing[unit] and not self._waits(unit):
            self._complete_unit(unit)

    def unit_ended(self, module_unit: ModuleUnit) -> None:
        """Handle the end of a unit's backward: parameters without a gradient were not used in it."""
        module_unit.release()
        if not self._backward.accumulates:
            return
        for unit in module_unit.flat:
            if unit.trainable and unit not in self._complete and not self._comes_later(unit):
                self._complete_unit(unit)

    def _complete_unit(self, unit: FlatUnit) -> None:
        self._complete.add(unit)
        unit.release()  # free its parameters before a bucket is allocated
        if self._pass is not None:
            self._launch_complete(self._pass)

    def _waits(self, unit: FlatUnit) -> bool:
        """Return whether a unit with all its gradients must wait for the end of its backward, or of the pass.

        Its backward may still need values of parameters whose gradients are done.  And if gathers run between
        reductions, the order of both must not depend on which parameters this rank used.
        """
        return unit.watched or unit.policy.shard_parameters

    def _comes_later(self, unit: FlatUnit) -> bool:
        return any(will_have_gradient(unit.parameters[index]) for index in self._missing[unit])

    def _begin(self) -> None:
        if not self._backward.accumulates:
            return
        self._check_begin()
        self._in_flight = True
        last = self._done + 1 == self._micro_batches
        if self._reduce_each:
            self._pass = ReductionPass(first=self._done == 0, last=last)
        else:
            self._pass = ReductionPass() if last else None
        self._missing = {unit: set(range(len(unit.parameters))) for unit in self._order}
        self._complete = set()
        self._launched = 0

    def _check_begin(self) -> None:
        if self._in_flight:
            raise RuntimeError("the last backward() did not end: call zero_grad() and start the step again")
        if self._done == self._micro_batches:
            self._in_flight = True  # this backward may have added to the gradients: they are no longer a mean
            raise RuntimeError(
                f"gradients are already reduced: micro_batches is {self._micro_batches}, and all backward() "
                "calls came; call step(), and call zero_grad() before the next backward()"
            )

    def _launch_complete(self, this_pass: ReductionPass) -> None:
        while self._launched < len(self._order) and self._order[self._launched] in self._complete:
            self._launch_next(this_pass)

    def _launch_next(self, this_pass: ReductionPass) -> None:
        unit = self._order[self._launched]
        self._launched += 1
        handle = self._gradients[unit].reduce(self._missing[unit], this_pass)
        if self._overlap:
            self._handles.append(handle)
        else:
            handle.wait()

    def _end(self) -> None:
        if not self._backward.accumulates:
            return
        while self._pass is not None and self._launched < len(self._order):
            self._launch_next(self._pass)
        self._wait()
        self._done += 1
        self._in_flight = False

    def _wait(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.wait()
        self._wait_pending()


class Gradients:
    """The gradients of all trainable units, and the memory that they share."""

    def __init__(self, module_units: Sequence[ModuleUnit], config: ZeroConfig, comm: Comm) -> None:
        """Build the storage and reduction of each unit.

        ``module_units`` are in forward order; no backward may have run yet.

        Raises:
            ValueError: constant buffers are smaller than one aligned part for every rank.
        """
        self._module_units = module_units
        self._config = config
        self._comm = comm
        self._constant = get_constant_elements(config, comm.world_size)
        self._divisor = comm.world_size * config.micro_batches
        self._pools: list[BucketPool] = []
        flat = [unit for module_unit in module_units for unit in module_unit.flat if unit.trainable]
        self._trainable = flat
        # gloo adds by IEEE rules (a test checks it).
        on_gpus = flat[0].full.device.type == "cuda" and comm.world_size > 1
        self._sign_kept = not on_gpus or probe_sign_of_zero(flat, config.wire_dtype, comm)
        self.by_unit = {unit: self._make(unit) for unit in flat}

    def wait_pending(self) -> None:
        """Wait for reductions in flight, and free shared memory that is not persistent."""
        for pool in self._pools:
            pool.drain()

    @property
    def _reduces_each(self) -> bool:
        return self._config.micro_batches > 1 and self._config.reduces_each_micro_batch

    @property
    def _keeps_whole(self) -> bool:
        """Stages 2 and 3: full gradients are kept until the last micro-batch."""
        return self._config.micro_batches > 1 and not self._config.reduces_each_micro_batch

    def _make(self, unit: FlatUnit) -> UnitGradients:
        if not unit.policy.shard_optimizer:
            return self._replicated(unit)
        if not unit.policy.shard_gradients:
            return self._partly_reduced(unit)
        return self._sharded(unit)

    def _replicated(self, unit: FlatUnit) -> UnitGradients:
        whole, presence = FlatGrads(unit), self._presence(unit)
        padded, count = unit.layout.padded, self._config.micro_batches
        reduction: Reduction
        if self._same_dtype(unit):
            pieces = split_into_cuts(padded, self._constant or max(padded, 1))
            reduction = AllReduceInPlace(
                whole, presence, self._comm, unit.name, micro_batches=count, pieces=pieces
            )
        else:
            pieces, pool = self._pieces(unit), self._buffers
            reduction = AllReduceThroughBuffers(
                whole, presence, self._comm, unit.name, micro_batches=count, pieces=pieces, pool=pool
            )
        return UnitGradients(whole, reduction, PersistentGradShard(whole.flat), presence)

    def _partly_reduced(self, unit: FlatUnit) -> UnitGradients:
        whole, presence = FlatGrads(unit), self._presence(unit)
        owned = PersistentGradShard(whole.flat[unit.owned_range])
        reduction = self._scatter_flat(unit, whole, owned, presence)
        if self._reduces_each:
            reduction = AccumulatedReduction(reduction, whole, owned)
        return UnitGradients(whole, reduction, owned, presence)

    def _sharded(self, unit: FlatUnit) -> UnitGradients:
        owned, presence = self._owned(unit), self._presence(unit)
        whole: UnreducedGrads
        reduction: Reduction
        if self._keeps_whole and self._config.defragment:
            whole = flat = FlatGrads(unit)
            reduction = self._scatter_flat(unit, flat, owned, presence)
        elif self._constant is not None:
            whole = waiting = self._waiting(unit)
            reduction = self._scatter_pieces(unit, waiting, owned, presence)
        else:
            whole = bucketed = self._bucketed(unit)
            reduction = ReduceScatterBucket(
                bucketed, presence, owned, self._comm, unit, divisor=self._divisor, pool=self._buckets
            )
        return UnitGradients(whole, reduction, owned, presence)

    def _presence(self, unit: FlatUnit) -> Presence:
        return Presence(unit, sign_kept=self._sign_kept)

    def _owned(self, unit: FlatUnit) -> GradShard:
        make = make_persistent_shard if self._config.defragment else TransientGradShard
        return make(unit, self._config.wire_dtype)

    def _bucketed(self, unit: FlatUnit) -> BucketedGrads:
        make = BucketDuringBackward if self._config.defragment else BucketAfterBackward
        return make(unit, self._buckets)

    def _waiting(self, unit: FlatUnit) -> ReadableGrads:
        if self._config.defragment:
            return BucketDuringBackward(unit, self._buckets)
        return PerParamGrads(unit, self._pieces(unit))

    def _scatter_flat(
        self, unit: FlatUnit, whole: FlatGrads, owned: GradShard, presence: Presence
    ) -> Reduction:
        if self._constant is None and self._same_dtype(unit):
            return ReduceScatterInPlace(whole, presence, owned, self._comm, unit.name, divisor=self._divisor)
        return self._scatter_pieces(unit, whole, owned, presence)

    def _scatter_pieces(
        self, unit: FlatUnit, whole: ReadableGrads, owned: GradShard, presence: Presence
    ) -> Reduction:
        return ReduceScatterThroughBuffers(
            whole,
            presence,
            owned,
            self._comm,
            unit.name,
            divisor=self._divisor,
            pieces=self._pieces(unit),
            pool=self._buffers,
        )

    def _same_dtype(self, unit: FlatUnit) -> bool:
        return unit.full.dtype == self._config.wire_dtype

    def _pieces(self, unit: FlatUnit) -> tuple[Cut, ...]:
        shard = unit.layout.shard_numel
        most = max(shard, 1) if self._constant is None else self._constant // self._comm.world_size
        return split_into_cuts(shard, most)

    @cached_property
    def _buffers(self) -> BucketPool:
        """Buffers that pieces go through: of constant size, or of the size of a unit."""
        count, dtype = self._config.reduce_buckets, self._config.wire_dtype
        if self._constant is not None:
            return self._pool(PersistentBucketMemory([self._constant] * count, dtype, self._device))
        if self._config.defragment:
            return self._pool(
                PersistentBucketMemory([_max_padded(self._trainable)] * count, dtype, self._device)
            )
        return self._pool(TransientBucketMemory(dtype, self._device))

    @cached_property
    def _buckets(self) -> BucketPool:
        """Buckets that collect a unit's gradients as they are produced."""
        config = self._config
        dtype = config.wire_dtype if self._constant is None else config.dtype
        if not config.defragment:
            return self._pool(TransientBucketMemory(dtype, self._device))
        sizes = compute_chunk_sizes(self._module_units, config.reduce_buckets)
        return self._pool(PersistentBucketMemory(sizes, dtype, self._device))

    def _pool(self, memory: BucketMemory) -> BucketPool:
        pool = BucketPool(memory, self._config.reduce_buckets)
        self._pools.append(pool)
        return pool

    @property
    def _device(self) -> torch.device:
        return self._trainable[0].full.device


def get_constant_elements(config: ZeroConfig, ranks: int) -> int | None:
    """Return the elements per buffer that ``constant_buffers`` asks for, or None if it is not set.

    Raises:
        ValueError: it is smaller than one aligned part for every rank.
    """
    if config.constant_buffers is None:
        return None
    return round_buffer_elements(config.constant_buffers, ranks=ranks, alignment=config.alignment)


def compute_chunk_sizes(module_units: Sequence[ModuleUnit], in_flight: int) -> list[int]:
    """Return the chunk sizes, in elements, that hold all full gradients alive at the same time.

    These are ``in_flight`` chunks of the largest inner unit, plus one for each further flat unit of the same
    module, and one chunk for each unit that encloses others: its gradients come before and after theirs.
    """
    around = [unit for unit in module_units if _encloses_units(unit, module_units)]
    inner = [_list_trainable(unit) for unit in module_units if unit not in around]
    sizes = [unit.layout.padded for outer in around for unit in _list_trainable(outer)]
    if any(inner):
        at_once = in_flight + max(map(len, inner)) - 1
        sizes += [_max_padded(unit for units in inner for unit in units)] * at_once
    return sizes


def _encloses_units(unit: ModuleUnit, module_units: Iterable[ModuleUnit]) -> bool:
    inside = set(unit.module.modules()) - {unit.module}
    return any(other.module in inside for other in module_units)


def _list_trainable(unit: ModuleUnit) -> list[FlatUnit]:
    return [flat for flat in unit.flat if flat.trainable]


def _max_padded(units: Iterable[FlatUnit]) -> int:
    return max(unit.layout.padded for unit in units)
