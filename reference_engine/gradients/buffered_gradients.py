"""Reduce a unit's gradients piece by piece, through buffers of another dtype or of constant size (CB)."""

from collections.abc import Sequence
from functools import partial

import torch

from zprof.reference_engine.comm.collective import Handle
from zprof.reference_engine.flat_layout import ElementRange, find_runs
from zprof.reference_engine.flat_unit import FlatUnit
from zprof.reference_engine.gradients.defragmented import BucketDuringBackward
from zprof.reference_engine.gradients.flat_gradients import FlatGrads, HandleGroup
from zprof.reference_engine.gradients.unit_gradients import (
    BucketPool,
    ChainedHandle,
    FullGrads,
    ReductionContext,
    ReductionPass,
    UnitGradients,
)


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
