"""The gradients of one unit: whole ones as autograd makes them, and this rank's part of their mean.

The mean over ranks and micro-batches is taken before the sum (g / divisor, then sum), so that low precision
does not overflow.
"""

from collections.abc import Iterable

import torch

from zprof.reference_engine.comm import Handle
from zprof.reference_engine.gradients.presence import Presence
from zprof.reference_engine.gradients.protocol import Owned, Reduction, Turn, Whole


class UnitGradients:
    """``owned`` is what this rank's optimizer reads, after the last reduction of a step."""

    def __init__(self, whole: Whole, reduction: Reduction, owned: Owned, presence: Presence) -> None:
        self.presence = presence
        self._whole = whole
        self._reduction = reduction
        self._owned = owned

    @property
    def owned(self) -> torch.Tensor:
        """This rank's part of the mean."""
        return self._owned.tensor

    def take(self, index: int) -> None:
        """The parameter of this index has its gradient."""
        self._whole.take(index)

    def reduce(self, missing: Iterable[int], turn: Turn) -> Handle:
        """Start to average over the ranks; of parameters in ``missing`` this backward made no gradient."""
        self._whole.complete(missing)
        return self._reduction.start(turn)

    def zero(self) -> None:
        """All gradients count as zero."""
        self._whole.zero()
        self._owned.zero()
        self.presence.clear()
