"""How activations pass between what is split over the ranks and what every rank has whole.

Megatron-LM, arXiv 1909.08053, section 3: f and g are conjugate.

              forward       backward
    copy      identity      all_reduce       f, before a layer that is split by columns
    reduce    all_reduce    identity         g, after a layer that is split by rows
    gather    all_gather    own part         where split columns are wanted whole

Behind a reduce or a gather all ranks compute the same, so that the gradients there are equal bit by bit.
"""

from typing import Any

import torch

from zprof.reference_engine.comm import Comm


def copy(x: torch.Tensor, mp: Comm, unit: str) -> torch.Tensor:
    """f: ``x``, which is the same on all ranks; its gradient is the sum over the ranks."""
    copied: torch.Tensor = _Copy.apply(x, mp, unit)  # type: ignore[no-untyped-call]
    return copied


def reduce(x: torch.Tensor, mp: Comm, unit: str) -> torch.Tensor:
    """g: the sum over the ranks, in the memory of ``x``, which must be the caller's own."""
    summed: torch.Tensor = _Reduce.apply(x, mp, unit)  # type: ignore[no-untyped-call]
    return summed


def gather(x: torch.Tensor, mp: Comm, unit: str) -> torch.Tensor:
    """The last dimensions of all ranks side by side, in rank order."""
    whole: torch.Tensor = _Gather.apply(x, mp, unit)  # type: ignore[no-untyped-call]
    return whole


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mp: Comm, unit: str) -> torch.Tensor:
        ctx.mp, ctx.unit = mp, unit
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        # A copy: autograd may have given the same tensor to others.
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        ctx.mp.all_reduce(total, ctx.unit).wait()
        return total, None, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mp: Comm, unit: str) -> torch.Tensor:
        ctx.mark_dirty(x)
        mp.all_reduce(x, unit).wait()
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mp: Comm, unit: str) -> torch.Tensor:
        ctx.mp, ctx.width = mp, x.shape[-1]
        parts = x.new_empty(mp.world_size, *x.shape)
        mp.all_gather(parts.view(-1), x.contiguous().view(-1), unit).wait()
        return parts.movedim(0, -2).flatten(-2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0].narrow(-1, ctx.mp.rank * ctx.width, ctx.width), None, None
