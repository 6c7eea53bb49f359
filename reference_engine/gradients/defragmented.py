"""Copy gradients into preallocated memory as they are produced (MD, arXiv 1910.02054, section 6.3)."""

from collections.abc import Iterable, Sequence

import torch

from zprof.reference_engine.flat_layout import ElementRange
from zprof.reference_engine.flat_unit import FlatUnit, ModuleUnit
from zprof.reference_engine.gradients.unit_gradients import BucketPool, FullGrads


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
