"""Choose how each unit's gradients are stored and reduced.

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

Stage 0 all-reduces (2 psi per pass).  Stages 1 to 3 reduce-scatter into this rank's shard (psi per pass).
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch

from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.flat_layout import ElementRange, split_into_ranges
from zprof.reference_engine.flat_unit import FlatUnit, ModuleUnit
from zprof.reference_engine.gradients.buffered_gradients import BufferedGradients, PerParamGrads
from zprof.reference_engine.gradients.defragmented import BucketDuringBackward, compute_chunk_sizes
from zprof.reference_engine.gradients.flat_gradients import FlatGrads, InPlaceGradients, SummedGradients
from zprof.reference_engine.gradients.unit_gradients import (
    BucketAfterBackward,
    BucketedGradients,
    BucketPool,
    ReductionContext,
    UnitGradients,
)

PROBE_UNIT = "sign_of_zero"


def build_gradients(
    module_units: Sequence[ModuleUnit], config: ZeroConfig, comm: Comm
) -> tuple[Mapping[FlatUnit, UnitGradients], Sequence[BucketPool]]:
    """Build the gradients of all trainable units, in forward order, and the pools that they share.

    ``module_units`` are in forward order; no backward may have run yet.

    Raises:
        ValueError: ``constant_buffers`` is smaller than ranks x alignment.
    """
    builder = _Builder(module_units, config, comm)
    gradients = {unit: builder.build(unit) for unit in builder.units}
    return gradients, builder.pools


def get_constant_elements(config: ZeroConfig, ranks: int) -> int | None:
    """Return the number of elements per constant-size buffer, or None if ``constant_buffers`` is not set.

    Raises:
        ValueError: ``constant_buffers`` is smaller than ranks x alignment.
    """
    limit, block = config.constant_buffers, ranks * config.alignment
    if limit is None:
        return None
    if limit < block:
        raise ValueError(f"constant_buffers is {limit} elements; make it {block} (ranks x alignment) or more")
    return limit // block * block


class _Builder:
    def __init__(self, module_units: Sequence[ModuleUnit], config: ZeroConfig, comm: Comm) -> None:
        self.units = [unit for module_unit in module_units for unit in module_unit.flat if unit.trainable]
        self.pools: list[BucketPool] = []
        self._module_units = module_units
        self._config = config
        self._ranks = comm.world_size
        self._device = self.units[0].full.device
        self._constant_elements = get_constant_elements(config, comm.world_size)
        # gloo follows IEEE 754 (a test checks it).
        on_gpus = self._device.type == "cuda" and comm.world_size > 1
        keeps_sign = not on_gpus or probe_sign_of_zero(self.units, config.wire_dtype, comm)
        self._context = ReductionContext(config=config, comm=comm, keeps_sign=keeps_sign)
        several = config.micro_batches > 1
        self._sums_shards = several and config.reduces_each_micro_batch
        #: In stages 2 and 3, keep full gradients until the last micro-batch (no_sync).
        self._keeps_full_grads = several and not config.reduces_each_micro_batch

    def build(self, unit: FlatUnit) -> UnitGradients:
        if not unit.policy.shard_gradients:
            full_grads = FlatGrads(unit)
            shard = full_grads.flat[unit.owned_range]
            gradients = self._build_flat(unit, full_grads, shard)
            if unit.policy.shard_optimizer and self._sums_shards:
                return SummedGradients(gradients, full_grads, self._context, shard)
            return gradients
        if self._keeps_full_grads and self._config.defragment:
            return self._build_flat(unit, FlatGrads(unit), None)
        bucket = BucketDuringBackward if self._config.defragment else BucketAfterBackward
        if self._constant_elements is not None:
            readable_grads = (
                BucketDuringBackward(unit, self._bucket_pool)
                if self._config.defragment
                else PerParamGrads(unit, self._split_shard(unit))
            )
            return self._build_buffered(unit, readable_grads, None)
        bucketed = bucket(unit, self._bucket_pool)
        return BucketedGradients(
            unit, bucketed, self._context, take_bucket=bucketed.take_bucket, pool=self._bucket_pool
        )

    def _build_flat(self, unit: FlatUnit, full_grads: FlatGrads, shard: torch.Tensor | None) -> UnitGradients:
        constant, has_wire_dtype = self._constant_elements, unit.full.dtype == self._config.wire_dtype
        if not has_wire_dtype or (constant is not None and unit.policy.shard_optimizer):
            return self._build_buffered(unit, full_grads, shard)
        pieces = split_into_ranges(unit.layout.padded, constant or max(unit.layout.padded, 1))
        return InPlaceGradients(unit, full_grads, self._context, shard, pieces=pieces)

    def _build_buffered(
        self,
        unit: FlatUnit,
        full_grads: FlatGrads | BucketDuringBackward | PerParamGrads,
        shard: torch.Tensor | None,
    ) -> BufferedGradients:
        pieces, pool = self._split_shard(unit), self._piece_pool
        return BufferedGradients(unit, full_grads, self._context, shard, pieces=pieces, pool=pool)

    def _split_shard(self, unit: FlatUnit) -> tuple[ElementRange, ...]:
        shard, constant = unit.layout.shard_numel, self._constant_elements
        return split_into_ranges(shard, max(shard, 1) if constant is None else constant // self._ranks)

    @cached_property
    def _piece_pool(self) -> BucketPool:
        """Pool of buffers for single pieces, of constant size or of the size of a unit."""
        count, chunk_elements = self._config.reduce_buckets, self._constant_elements
        if chunk_elements is None and self._config.defragment:
            chunk_elements = max(unit.layout.padded for unit in self.units)
        chunk_sizes = [] if chunk_elements is None else [chunk_elements] * count
        return self._add_pool(self._config.wire_dtype, chunk_sizes)

    @cached_property
    def _bucket_pool(self) -> BucketPool:
        """Pool of buckets that hold all gradients of a unit."""
        config = self._config
        dtype = config.wire_dtype if self._constant_elements is None else config.dtype
        chunk_sizes = (
            compute_chunk_sizes(self._module_units, config.reduce_buckets) if config.defragment else []
        )
        return self._add_pool(dtype, chunk_sizes)

    def _add_pool(self, dtype: torch.dtype, chunk_sizes: Sequence[int]) -> BucketPool:
        self.pools.append(BucketPool(self._config.reduce_buckets, dtype, self._device, chunk_sizes))
        return self.pools[-1]


def probe_sign_of_zero(units: Sequence[FlatUnit], dtype: torch.dtype, comm: Comm) -> bool:
    """Return True if sums over the ranks keep the sign of zero (collective; waits for the device).

    Runs the same kinds of collectives as a step, with the same sizes, because libraries choose their
    algorithm by kind and size.
    """
    keeps_sign = True
    device = units[0].full.device
    for elements in sorted({unit.layout.padded for unit in units}):
        zeros = torch.full((elements,), -0.0, dtype=dtype, device=device)
        if units[0].policy.shard_optimizer:
            total = torch.empty(elements // comm.world_size, dtype=dtype, device=device)
            comm.reduce_scatter(total, zeros, PROBE_UNIT).wait()
        else:
            total = zeros
            comm.all_reduce(total, PROBE_UNIT).wait()
        keeps_sign = bool((torch.signbit(total) & (total == 0)).all()) and keeps_sign
    return keeps_sign
