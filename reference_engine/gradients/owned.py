"""Where this rank's part of the mean gradient lies: in memory that stays, or that comes with the backward."""

import torch
from torch import nn

from zprof.reference_engine.units.flat_unit import FlatUnit


class KeptOwned:
    """Memory that stays; zeros from the end of a step on."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def zero(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Owned`."""
        self.tensor.zero_()


class FreshOwned:
    """Memory from the first reduction of a step until its gradients are zeroed, as torch's own optimizers do.

    A step's peak is often where its backward begins: there are no gradients yet.
    """

    def __init__(self, unit: FlatUnit, dtype: torch.dtype) -> None:
        self._holder = holder_of(unit, dtype)
        self._dtype = dtype
        self._tensor: torch.Tensor | None = None

    @property
    def tensor(self) -> torch.Tensor:
        """See :class:`~zprof.reference_engine.gradients.protocol.Owned`."""
        if self._tensor is None:
            self._tensor = torch.empty_like(self._holder.detach(), dtype=self._dtype)
            self._holder.grad = self._tensor
        return self._tensor

    def zero(self) -> None:
        """See :class:`~zprof.reference_engine.gradients.protocol.Owned`."""
        self._tensor = self._holder.grad = None


def kept_shard(unit: FlatUnit, dtype: torch.dtype) -> KeptOwned:
    """A gradient shard whose memory stays."""
    holder = holder_of(unit, dtype)
    holder.grad = torch.zeros_like(holder.detach(), dtype=dtype)
    return KeptOwned(holder.grad)


def holder_of(unit: FlatUnit, dtype: torch.dtype) -> nn.Parameter:
    """Whose ``.grad`` a gradient shard is: of the shard, or of the fp32 master weights, as its type is."""
    if dtype == unit.shard.dtype:
        return unit.shard
    assert unit.weights is not None  # only trainable units have gradients
    return unit.weights
