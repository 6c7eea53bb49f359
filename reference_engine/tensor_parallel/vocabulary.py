"""The two ends of a language model, split by the words of the vocabulary.

    loss = mean over tokens of (lse - logit[target]),   lse = log sum_v exp(logit[v])

Each rank takes the log-sum-exp of its own logits; that of all is the log-sum-exp of the ranks'.  So one
all_gather of two float32 a token is exchanged (Megatron-LM: three all_reduces of one), and logits stay split.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from zprof.reference_engine.comm import Comm
from zprof.reference_engine.tensor_parallel.functions import reduce
from zprof.reference_engine.tensor_parallel.split import own_part, share_of


class VocabParallelEmbedding(nn.Module):
    """An embedding of which each rank has a range of rows."""

    def __init__(self, whole: nn.Embedding, mp: Comm, unit: str) -> None:
        """Keep this rank's rows.

        Raises:
            ValueError: the rows cannot be divided among the ranks.
        """
        super().__init__()
        self._first = mp.rank * share_of(whole.num_embeddings, mp, f"rows of {unit}")
        self.weight = own_part(whole.weight, mp, dim=0)
        self._mp, self._unit = mp, unit

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """``tokens`` are below the whole number of rows; the result is [..., hidden], equal on all ranks."""
        row, absent = _own_rows(tokens, self._first, self.weight.shape[0])
        # All ranks but one add zeros, so that the sum is exact.
        rows = F.embedding(row, self.weight).masked_fill(absent.unsqueeze(-1), 0.0)
        return reduce(rows, self._mp, self._unit)


class VocabParallelLoss(nn.Module):
    """Mean cross entropy of logits that are split by the vocabulary."""

    def __init__(self, mp: Comm, unit: str) -> None:
        super().__init__()
        self._mp, self._unit = mp, unit

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """``logits`` are [tokens, own words], ``targets`` [tokens]; the loss is float32, the same on all."""
        loss: torch.Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
            logits, targets, self._mp, self._unit
        )
        return loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, mp: Comm, unit: str) -> torch.Tensor:
        column, absent = _own_rows(targets, mp.rank * logits.shape[1], logits.shape[1])
        chosen = logits.gather(1, column.unsqueeze(1)).squeeze(1).float().masked_fill(absent, 0.0)
        own = torch.stack([logits.float().logsumexp(1), chosen])
        ranks = own.new_empty(mp.world_size, *own.shape)
        mp.all_gather(ranks.view(-1), own.view(-1), unit).wait()
        lse = ranks[:, 0].logsumexp(0)
        ctx.save_for_backward(logits, lse, column, absent)
        return (lse - ranks[:, 1].sum(0)).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """softmax - 1 at the target, over the number of tokens."""
        logits, lse, column, absent = ctx.saved_tensors
        gradient = (logits.float() - lse.unsqueeze(1)).exp_()
        gradient.scatter_add_(1, column.unsqueeze(1), absent.float().sub_(1.0).unsqueeze(1))
        gradient.mul_(gradients[0] / logits.shape[0])
        return gradient.to(logits.dtype), None, None, None


def _own_rows(index: torch.Tensor, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions in this rank's range, 0 where it is another rank's, and where that is so."""
    local = index - first
    absent = (local < 0) | (local >= count)
    return local.masked_fill(absent, 0), absent
