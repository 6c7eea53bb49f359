"""Linear layers whose matrix is split over the ranks.

    columns   Y_r = X A_r           A = [A_1 .. A_N] by output features
    rows      Y = sum_r X_r B_r     B by input features, where X_r is what the columns before left on the rank

Two matrices in a row, the first by columns and the second by rows, need one all_reduce in the forward and
one in the backward: nothing is exchanged between them (arXiv 1909.08053, section 3, figure 3).  The layers
are made of a whole one, so that the weights do not depend on the number of ranks.
"""

import torch
import torch.nn.functional as F
from torch import nn

from zprof.reference_engine.comm import Comm
from zprof.reference_engine.tensor_parallel.functions import copy, gather, reduce
from zprof.reference_engine.tensor_parallel.split import own_part, share_of


class ColumnParallelLinear(nn.Module):
    """A linear layer of which each rank computes a part of the output features."""

    def __init__(self, whole: nn.Linear, mp: Comm, unit: str, *, parts: int = 1) -> None:
        """Keep this rank's part.  ``parts`` matrices (query, key, value) in ``whole`` are split one by one.

        Raises:
            ValueError: the output features of a part cannot be divided among the ranks.
        """
        super().__init__()
        share_of(whole.out_features // parts, mp, f"output features of {unit}")
        self.weight = own_part(whole.weight, mp, dim=0, parts=parts)
        self.bias = None if whole.bias is None else own_part(whole.bias, mp, dim=0, parts=parts)
        self._mp, self._unit = mp, unit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` is [..., input features], equal on all ranks; the result is [..., own output features]."""
        return F.linear(copy(x, self._mp, self._unit), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A linear layer to which each rank brings a part of the input features."""

    def __init__(self, whole: nn.Linear, mp: Comm, unit: str) -> None:
        """Keep this rank's part; the bias stays whole on every rank.

        Raises:
            ValueError: the input features cannot be divided among the ranks.
        """
        super().__init__()
        share_of(whole.in_features, mp, f"input features of {unit}")
        self.weight = own_part(whole.weight, mp, dim=1)
        self.bias = whole.bias
        self._mp, self._unit = mp, unit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` is [..., own input features]; the result is [..., output features], equal on all ranks."""
        summed = reduce(F.linear(x, self.weight), self._mp, self._unit)
        return summed if self.bias is None else summed + self.bias  # once, not once per rank


class GatheredColumns(nn.Module):
    """Makes the output of a layer that is split by columns whole on every rank."""

    def __init__(self, mp: Comm, unit: str) -> None:
        super().__init__()
        self._mp, self._unit = mp, unit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` is [..., own columns]; the result is [..., all columns]."""
        return gather(x, self._mp, self._unit)
