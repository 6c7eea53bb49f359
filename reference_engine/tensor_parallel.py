"""Split a model's linear layers, embedding and loss over a tensor-parallel group, as in Megatron-LM.

arXiv 1909.08053, section 3.

              forward       backward
    copy      identity      all_reduce       f, before a layer that is split by columns
    reduce    all_reduce    identity         g, after a layer that is split by rows
    gather    all_gather    own slice        restores all columns

After a reduce or a gather all ranks compute the same values, so that the gradients there are bitwise equal.

    columns   Y_r = X A_r           A = [A_1 .. A_N] by output features
    rows      Y = sum_r X_r B_r     B by input features; X_r is the rank's output of the column-split layer

A layer split by columns, followed by one split by rows, needs one all_reduce in the forward and one in the
backward, and no communication between the two layers (figure 3).  The layers are created from an unsplit
layer, so that the weights do not depend on the number of ranks.

    loss = mean over tokens of (lse - logit[target]),   lse = log sum_v exp(logit[v])

Each rank computes the log-sum-exp of its own logits; the log-sum-exp over the ranks is the result.  This
takes one all_gather of two float32 per token (Megatron-LM: three all_reduces of one), and logits stay split.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from zprof.reference_engine.comm.collective import Comm

SPLIT_MARK = "tensor_parallel_split"
"""Attribute of parameters that are split over the ranks; others are replicated."""


class ColumnParallelLinear(nn.Module):
    """A linear layer whose output features are split over the ranks."""

    def __init__(self, whole: nn.Linear, mp: Comm, unit: str, *, parts: int = 1) -> None:
        """Keep this rank's slice of ``whole``.

        ``parts`` is the number of matrices in ``whole`` (3 for query, key, value); each is split separately.

        Raises:
            ValueError: the output features of a matrix are not divisible by the number of ranks.
        """
        super().__init__()
        divide_among_ranks(whole.out_features // parts, mp, f"output features of {unit}")
        self.weight = slice_for_rank(whole.weight, mp, dim=0, parts=parts)
        self.bias = None if whole.bias is None else slice_for_rank(whole.bias, mp, dim=0, parts=parts)
        self._mp, self._unit = mp, unit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [..., input features], equal on all ranks, to [..., own output features]."""
        return F.linear(copy_to_ranks(x, self._mp, self._unit), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A linear layer whose input features are split over the ranks."""

    def __init__(self, whole: nn.Linear, mp: Comm, unit: str) -> None:
        """Keep this rank's slice of the weights of ``whole``, and the full bias.

        Raises:
            ValueError: the input features are not divisible by the number of ranks.
        """
        super().__init__()
        divide_among_ranks(whole.in_features, mp, f"input features of {unit}")
        self.weight = slice_for_rank(whole.weight, mp, dim=1)
        self.bias = whole.bias
        self._mp, self._unit = mp, unit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [..., own input features] to [..., output features], equal on all ranks."""
        summed = reduce_over_ranks(F.linear(x, self.weight), self._mp, self._unit)
        return summed if self.bias is None else summed + self.bias  # once, not once per rank


class GatheredColumns(nn.Module):
    """Gather the output of a column-split layer on every rank."""

    def __init__(self, mp: Comm, unit: str) -> None:
        super().__init__()
        self._mp, self._unit = mp, unit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [..., own columns] to [..., all columns]."""
        return gather_columns(x, self._mp, self._unit)


class VocabParallelEmbedding(nn.Module):
    """An embedding whose rows are split over the ranks."""

    def __init__(self, whole: nn.Embedding, mp: Comm, unit: str) -> None:
        """Keep this rank's rows of ``whole``.

        Raises:
            ValueError: the rows are not divisible by the number of ranks.
        """
        super().__init__()
        self._first = mp.rank * divide_among_ranks(whole.num_embeddings, mp, f"rows of {unit}")
        self.weight = slice_for_rank(whole.weight, mp, dim=0)
        self._mp, self._unit = mp, unit

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens (global row numbers) to [..., hidden], equal on all ranks."""
        row, not_own = _locate_own_rows(tokens, self._first, self.weight.shape[0])
        # Only one rank has a nonzero row, so the sum is exact.
        rows = F.embedding(row, self.weight).masked_fill(not_own.unsqueeze(-1), 0.0)
        return reduce_over_ranks(rows, self._mp, self._unit)


class VocabParallelLoss(nn.Module):
    """Mean cross entropy of logits that are split over the vocabulary."""

    def __init__(self, mp: Comm, unit: str) -> None:
        super().__init__()
        self._mp, self._unit = mp, unit

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Map [tokens, own vocabulary] logits and [tokens] targets to a float32 loss, equal on all ranks."""
        return _CrossEntropy.apply(  # type: ignore[no-untyped-call]
            logits, targets, self._mp, self._unit
        )


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, mp: Comm, unit: str) -> torch.Tensor:
        column, not_own = _locate_own_rows(targets, mp.rank * logits.shape[1], logits.shape[1])
        target_logit = logits.gather(1, column.unsqueeze(1)).squeeze(1).float().masked_fill(not_own, 0.0)
        own = torch.stack([logits.float().logsumexp(1), target_logit])
        ranks = own.new_empty(mp.world_size, *own.shape)
        mp.all_gather(ranks.view(-1), own.view(-1), unit).wait()
        lse = ranks[:, 0].logsumexp(0)
        ctx.save_for_backward(logits, lse, column, not_own)
        return (lse - ranks[:, 1].sum(0)).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return (softmax - one-hot target) / tokens, multiplied by the incoming gradient."""
        logits, lse, column, not_own = ctx.saved_tensors
        gradient = (logits.float() - lse.unsqueeze(1)).exp_()
        gradient.scatter_add_(1, column.unsqueeze(1), not_own.float().sub_(1.0).unsqueeze(1))
        gradient.mul_(gradients[0] / logits.shape[0])
        return gradient.to(logits.dtype), None, None, None


def _locate_own_rows(index: torch.Tensor, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices in this rank's range, 0 for other ranks' rows, and the mask of other ranks' rows."""
    local = index - first
    not_own = (local < 0) | (local >= count)
    return local.masked_fill(not_own, 0), not_own


def copy_to_ranks(x: torch.Tensor, mp: Comm, unit: str) -> torch.Tensor:
    """Return ``x``, which is equal on all ranks, and sum its gradient over the ranks (f)."""
    copied: torch.Tensor = _Copy.apply(x, mp, unit)  # type: ignore[no-untyped-call]
    return copied


def reduce_over_ranks(x: torch.Tensor, mp: Comm, unit: str) -> torch.Tensor:
    """Sum ``x`` over the ranks in place and return it; no other code may use its memory (g)."""
    summed: torch.Tensor = _Reduce.apply(x, mp, unit)  # type: ignore[no-untyped-call]
    return summed


def gather_columns(x: torch.Tensor, mp: Comm, unit: str) -> torch.Tensor:
    """Concatenate the last dimension of all ranks, in rank order."""
    gathered: torch.Tensor = _Gather.apply(x, mp, unit)  # type: ignore[no-untyped-call]
    return gathered


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mp: Comm, unit: str) -> torch.Tensor:
        ctx.mp, ctx.unit = mp, unit
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        # A copy, because autograd may use the same tensor elsewhere.
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


def divide_among_ranks(size: int, mp: Comm, what: str) -> int:
    """Return ``size`` divided by the number of ranks.

    Raises:
        ValueError: ``size`` is not divisible; the one-line message starts with ``what``.
    """
    if size % mp.world_size:
        raise ValueError(
            f"{what} is {size}; it must be a multiple of the {mp.world_size} model-parallel ranks"
        )
    return size // mp.world_size


def slice_for_rank(whole: torch.Tensor, mp: Comm, *, dim: int, parts: int = 1) -> nn.Parameter:
    """Return a copy of this rank's slice of a parameter along ``dim``, marked as split.

    ``parts`` is the number of matrices stacked along ``dim``; each is split separately.
    """
    slice_size = whole.shape[dim] // parts // mp.world_size
    matrices = torch.unflatten(whole.detach(), dim, (parts, mp.world_size, slice_size))
    own = matrices.select(dim + 1, mp.rank).flatten(dim, dim + 1)
    parameter = nn.Parameter(own.clone(memory_format=torch.contiguous_format), whole.requires_grad)
    setattr(parameter, SPLIT_MARK, True)
    return parameter
