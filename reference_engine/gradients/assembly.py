"""Which parts each unit's gradients are made of: the one place that looks at the config.

    stage   whole gradients until the reduction                reduction
    0       flat, stays                                        all-reduce in place
    1       flat, stays                                        reduce-scatter in place
    2, 3    as autograd made them, then into a bucket          reduce-scatter of the bucket
    CB      the same; stages 2 and 3: as autograd made them    piece by piece through buffers
    MD      the same; stages 2 and 3: into a bucket at once;   the same
            buckets, buffers and shards are kept memory
    MD and no_sync, stages 2 and 3: flat, stays                reduce-scatter in place

Another ``reduce_dtype`` goes through buffers where the whole gradients stay; a bucket has that type at once.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch

from zprof.reference_engine.comm import Comm
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.gradients.all_reduce import AllReduceInPlace, AllReduceThroughBuffers
from zprof.reference_engine.gradients.buckets import BucketPool, FreshMemory, KeptMemory, Memory
from zprof.reference_engine.gradients.owned import FreshOwned, KeptOwned, kept_shard
from zprof.reference_engine.gradients.pieces import Cut, buffer_elements, cuts
from zprof.reference_engine.gradients.presence import Presence, keeps_sign_of_zero
from zprof.reference_engine.gradients.protocol import Bucketed, Owned, Readable, Reduction, Whole
from zprof.reference_engine.gradients.reduce_scatter import (
    ReduceScatterBucket,
    ReduceScatterInPlace,
    ReduceScatterThroughBuffers,
    SumOfTurns,
)
from zprof.reference_engine.gradients.unit_gradients import UnitGradients
from zprof.reference_engine.gradients.whole import BucketWhole, FlatWhole, LateBucketWhole, LooseWhole
from zprof.reference_engine.units.flat_unit import FlatUnit
from zprof.reference_engine.units.module_unit import ModuleUnit


class Gradients:
    """The gradients of all trainable units, and the memory that they share."""

    def __init__(self, module_units: Sequence[ModuleUnit], config: ZeroConfig, comm: Comm) -> None:
        """``module_units`` stand in forward order; no gradient was made yet.

        Raises:
            ValueError: constant buffers are smaller than one aligned part for every rank.
        """
        self._module_units = module_units
        self._config = config
        self._comm = comm
        self._constant = constant_elements(config, comm.world_size)
        self._divisor = comm.world_size * config.micro_batches
        self._pools: list[BucketPool] = []
        flat = [unit for module_unit in module_units for unit in module_unit.flat if unit.trainable]
        self._trainable = flat
        # gloo is known to add by IEEE rules (a test holds it to that).
        on_gpus = flat[0].full.device.type == "cuda" and comm.world_size > 1
        self._sign_kept = not on_gpus or keeps_sign_of_zero(flat, config.wire_dtype, comm)
        self.by_unit = {unit: self._make(unit) for unit in flat}

    def settle(self) -> None:
        """Wait for reductions in flight; shared memory that is not kept is freed."""
        for pool in self._pools:
            pool.drain()

    @property
    def _reduces_each(self) -> bool:
        return self._config.micro_batches > 1 and self._config.reduces_each_micro_batch

    @property
    def _keeps_whole(self) -> bool:
        """Stages 2 and 3: whole gradients wait for the last micro-batch."""
        return self._config.micro_batches > 1 and not self._config.reduces_each_micro_batch

    def _make(self, unit: FlatUnit) -> UnitGradients:
        if not unit.policy.shard_optimizer:
            return self._replicated(unit)
        if not unit.policy.shard_gradients:
            return self._partly_reduced(unit)
        return self._sharded(unit)

    def _replicated(self, unit: FlatUnit) -> UnitGradients:
        whole, presence = FlatWhole(unit), self._presence(unit)
        padded, count = unit.layout.padded, self._config.micro_batches
        reduction: Reduction
        if self._same_dtype(unit):
            pieces = cuts(padded, self._constant or max(padded, 1))
            reduction = AllReduceInPlace(
                whole, presence, self._comm, unit.name, micro_batches=count, pieces=pieces
            )
        else:
            pieces, pool = self._pieces(unit), self._buffers
            reduction = AllReduceThroughBuffers(
                whole, presence, self._comm, unit.name, micro_batches=count, pieces=pieces, pool=pool
            )
        return UnitGradients(whole, reduction, KeptOwned(whole.flat), presence)

    def _partly_reduced(self, unit: FlatUnit) -> UnitGradients:
        whole, presence = FlatWhole(unit), self._presence(unit)
        owned = KeptOwned(whole.flat[unit.owned_range])
        reduction = self._scatter_flat(unit, whole, owned, presence)
        if self._reduces_each:
            reduction = SumOfTurns(reduction, whole, owned)
        return UnitGradients(whole, reduction, owned, presence)

    def _sharded(self, unit: FlatUnit) -> UnitGradients:
        owned, presence = self._owned(unit), self._presence(unit)
        whole: Whole
        reduction: Reduction
        if self._keeps_whole and self._config.defragment:
            whole = flat = FlatWhole(unit)
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

    def _owned(self, unit: FlatUnit) -> Owned:
        make = kept_shard if self._config.defragment else FreshOwned
        return make(unit, self._config.wire_dtype)

    def _bucketed(self, unit: FlatUnit) -> Bucketed:
        make = BucketWhole if self._config.defragment else LateBucketWhole
        return make(unit, self._buckets)

    def _waiting(self, unit: FlatUnit) -> Readable:
        if self._config.defragment:
            return BucketWhole(unit, self._buckets)
        return LooseWhole(unit, self._pieces(unit))

    def _scatter_flat(self, unit: FlatUnit, whole: FlatWhole, owned: Owned, presence: Presence) -> Reduction:
        if self._constant is None and self._same_dtype(unit):
            return ReduceScatterInPlace(whole, presence, owned, self._comm, unit.name, divisor=self._divisor)
        return self._scatter_pieces(unit, whole, owned, presence)

    def _scatter_pieces(self, unit: FlatUnit, whole: Readable, owned: Owned, presence: Presence) -> Reduction:
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
        return cuts(shard, most)

    @cached_property
    def _buffers(self) -> BucketPool:
        """What pieces go through: of constant size, or of the size of a unit."""
        count, dtype = self._config.reduce_buckets, self._config.wire_dtype
        if self._constant is not None:
            return self._pool(KeptMemory([self._constant] * count, dtype, self._device))
        if self._config.defragment:
            return self._pool(KeptMemory([_largest(self._trainable)] * count, dtype, self._device))
        return self._pool(FreshMemory(dtype, self._device))

    @cached_property
    def _buckets(self) -> BucketPool:
        """What collects a unit's gradients as they are produced."""
        config = self._config
        dtype = config.wire_dtype if self._constant is None else config.dtype
        if not config.defragment:
            return self._pool(FreshMemory(dtype, self._device))
        sizes = chunk_elements(self._module_units, config.reduce_buckets)
        return self._pool(KeptMemory(sizes, dtype, self._device))

    def _pool(self, memory: Memory) -> BucketPool:
        pool = BucketPool(memory, self._config.reduce_buckets)
        self._pools.append(pool)
        return pool

    @property
    def _device(self) -> torch.device:
        return self._trainable[0].full.device


def constant_elements(config: ZeroConfig, ranks: int) -> int | None:
    """Elements of the buffers that ``constant_buffers`` asks for; None: it does not.

    Raises:
        ValueError: it is smaller than one aligned part for every rank.
    """
    if config.constant_buffers is None:
        return None
    return buffer_elements(config.constant_buffers, ranks=ranks, alignment=config.alignment)


def chunk_elements(module_units: Sequence[ModuleUnit], in_flight: int) -> list[int]:
    """Sizes of the chunks that hold all whole gradients that are there at once.

    ``in_flight`` of the largest unit (one more for each further flat unit of the same module), and one for
    each unit around others: its gradients come before and after theirs.
    """
    around = [unit for unit in module_units if _is_around(unit, module_units)]
    inner = [_trainable(unit) for unit in module_units if unit not in around]
    sizes = [unit.layout.padded for outer in around for unit in _trainable(outer)]
    if any(inner):
        at_once = in_flight + max(map(len, inner)) - 1
        sizes += [_largest(unit for units in inner for unit in units)] * at_once
    return sizes


def _is_around(unit: ModuleUnit, module_units: Iterable[ModuleUnit]) -> bool:
    inside = set(unit.module.modules()) - {unit.module}
    return any(other.module in inside for other in module_units)


def _trainable(unit: ModuleUnit) -> list[FlatUnit]:
    return [flat for flat in unit.flat if flat.trainable]


def _largest(units: Iterable[FlatUnit]) -> int:
    return max(unit.layout.padded for unit in units)
