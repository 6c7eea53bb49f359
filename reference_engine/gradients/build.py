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

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial

import torch

from zprof.reference_engine.comm.collective import Comm, Handle
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.flat_layout import ElementRange, find_runs, split_into_ranges
from zprof.reference_engine.flat_unit import FlatUnit, ModuleUnit
from zprof.reference_engine.gradients.flat_gradients import (
    FlatGrads,
    HandleGroup,
    InPlaceGradients,
    SummedGradients,
)
from zprof.reference_engine.gradients.unit_gradients import (
    BucketAfterBackward,
    BucketedGradients,
    BucketPool,
    ChainedHandle,
    FullGrads,
    ReductionContext,
    ReductionPass,
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
        full_grads: "FlatGrads | BucketDuringBackward | PerParamGrads",
        shard: torch.Tensor | None,
    ) -> "BufferedGradients":
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


class BufferedGradients(UnitGradients):
    """Reduces copies of pieces: reduce-scatter into the shard, or in stage 0 all-reduce and copy back."""

    def __init__(
        self,
        unit: FlatUnit,
        full_grads: "FlatGrads | BucketDuringBackward | PerParamGrads",
        context: ReductionContext,
        shard: torch.Tensor | None,
        *,
        pieces: Sequence[ElementRange],
        pool: BucketPool,
    ) -> None:
        """Reduce ``pieces``, each a range within every shard."""
        super().__init__(unit, full_grads, context, shard, pieces)
        self._readable_grads = full_grads
        self._pieces = pieces
        self._pool = pool

    def launch(self, reduction_pass: ReductionPass) -> Handle:
        """Launch one collective per piece."""
        handles = [self._reduce_piece(piece, reduction_pass) for piece in self._pieces]
        self._readable_grads.close()
        return HandleGroup(handles)

    def _reduce_piece(self, piece: ElementRange, reduction_pass: ReductionPass) -> Handle:
        buffer = self._pool.acquire(piece.elements * self._comm.world_size)
        self._readable_grads.read(piece, buffer)
        self.average(buffer, reduction_pass, piece)
        if isinstance(self._readable_grads, FlatGrads) and not self.unit.policy.shard_optimizer:
            collective = self._comm.all_reduce(buffer, self.unit.name)
            finish = partial(self._write_back, self._readable_grads, piece, buffer)
        else:
            mean = buffer[self._comm.rank * piece.elements : (self._comm.rank + 1) * piece.elements]
            collective = self._comm.reduce_scatter(mean, buffer, self.unit.name)
            finish = partial(self._accumulate, mean, self.mean_shard, piece, reduction_pass)
        handle = ChainedHandle(collective, finish)
        self._pool.lend(buffer, handle)
        return handle

    def _accumulate(
        self, mean: torch.Tensor, grad_shard: torch.Tensor, piece: ElementRange, reduction_pass: ReductionPass
    ) -> None:
        if reduction_pass.first:
            grad_shard[piece.slice].copy_(mean)
            self._restore_signs(grad_shard, mean, piece, shard=self._comm.rank)
        else:
            grad_shard[piece.slice].add_(mean)

    def _write_back(self, full_grads: FlatGrads, piece: ElementRange, buffer: torch.Tensor) -> None:
        part = full_grads.part(piece)
        part.copy_(buffer.view(part.shape))
        self._restore_signs(full_grads.flat, buffer, piece, shard=None)

    def _restore_signs(
        self, rounded: torch.Tensor, exact: torch.Tensor, piece: ElementRange, *, shard: int | None
    ) -> None:
        """Restore signs of zero after rounding to a smaller dtype, which may turn a small number into -0.0.

        ``exact`` holds elements ``piece`` of one shard, or of every shard if ``shard`` is None; ``rounded``
        is the gradient of that shard, or of the entire unit.  Overwrites ``exact``.
        """
        if rounded.dtype == exact.dtype:
            return
        start, base = (
            (0, 0) if shard is None else (shard * piece.elements, shard * self.unit.layout.shard_numel)
        )
        for elements in self._first_elements[piece]:
            for position, flat in [] if elements.parameter in self._with_gradient else elements.pairs():
                if 0 <= position - start < exact.numel():
                    # in place: exact is not read again, and nothing is allocated
                    zero = exact[position - start].eq_(0.0)
                    zero.neg_().add_(0.5).mul_(0.0)  # -0.0 if it was zero, else 0.0
                    rounded[flat - base].add_(zero)


class PerParamGrads(FullGrads):
    """Keeps the ``.grad`` that autograd allocated for each parameter, and reads pieces across them."""

    def __init__(self, unit: FlatUnit, pieces: Sequence[ElementRange]) -> None:
        """Precompute the runs of ``pieces``, the only ranges that will be read."""
        super().__init__(unit)
        self._runs = {piece: find_runs(unit.layout, piece) for piece in pieces}

    def read(self, piece: ElementRange, buffer: torch.Tensor) -> None:
        """Copy elements ``piece`` of every shard into ``buffer``, one shard after the other."""
        for run in self._runs[piece]:
            target = buffer[run.buffer.slice]
            gradient = None if run.parameter is None else self._unit.parameters[run.parameter].grad
            if gradient is None:
                target.zero_()
            else:
                target.copy_(gradient.reshape(-1)[run.elements.slice])

    def close(self) -> None:
        """Drop the gradients after the last read."""
        self.zero()


class BucketDuringBackward(FullGrads):
    """Copies each gradient into a bucket as soon as it is ready, and frees it."""

    def __init__(self, unit: FlatUnit, pool: BucketPool) -> None:
        super().__init__(unit)
        self._pool = pool
        self._bucket: torch.Tensor | None = None

    def collect(self, index: int) -> None:
        """Move the gradient of parameter ``index`` to the bucket."""
        parameter = self._unit.parameters[index]
        assert parameter.grad is not None
        self._view_slot(index).copy_(parameter.grad)
        parameter.grad = None

    def complete(self, missing: Iterable[int]) -> None:
        """Fill the bucket where no gradient was collected in this pass."""
        for index in missing:
            if self._unit.parameters[index].grad is None:
                self._view_slot(index).zero_()
            else:
                self.collect(index)  # left by an earlier micro-batch

    def take_bucket(self) -> torch.Tensor:
        """Return the bucket; the caller returns it to the pool."""
        bucket, self._bucket = self._get_bucket(), None
        return bucket

    def read(self, piece: ElementRange, buffer: torch.Tensor) -> None:
        """Copy elements ``piece`` of every shard into ``buffer``, one shard after the other."""
        part = self._get_bucket().view(self._unit.layout.ranks, -1)[:, piece.slice]
        buffer.view(part.shape).copy_(part)

    def close(self) -> None:
        """Return the bucket to the pool after the last read."""
        self._pool.give_back(self.take_bucket())

    def zero(self) -> None:
        """Drop the bucket, whose memory is freed when the pool is drained, and all gradients."""
        self._bucket = None
        super().zero()

    def _view_slot(self, index: int) -> torch.Tensor:
        slot = self._unit.layout.slots[index]
        return self._get_bucket()[slot.offset : slot.offset + slot.numel].view(slot.shape)

    def _get_bucket(self) -> torch.Tensor:
        if self._bucket is None:
            self._bucket = self._pool.acquire(self._unit.layout.padded)
            self._bucket[self._unit.layout.numel :].zero_()
        return self._bucket


def compute_chunk_sizes(module_units: Sequence[ModuleUnit], in_flight: int) -> list[int]:
    """Compute the chunk sizes, in elements, that fit all full gradients that are live at the same time.

    These are ``in_flight`` chunks of the size of the largest inner unit, one more for each further flat unit
    of the same module, and one chunk for each unit that encloses others, whose gradients are live throughout.
    """
    enclosing = [unit for unit in module_units if _encloses_units(unit, module_units)]
    inner = [_list_padded(unit) for unit in module_units if unit not in enclosing]
    sizes = [padded for outer in enclosing for padded in _list_padded(outer)]
    if any(inner):
        live_units = in_flight + max(map(len, inner)) - 1
        sizes += [max(padded for unit in inner for padded in unit)] * live_units
    return sizes


def _encloses_units(unit: ModuleUnit, module_units: Iterable[ModuleUnit]) -> bool:
    inside = set(unit.module.modules()) - {unit.module}
    return any(other.module in inside for other in module_units)


def _list_padded(unit: ModuleUnit) -> list[int]:
    return [flat.layout.padded for flat in unit.flat if flat.trainable]
