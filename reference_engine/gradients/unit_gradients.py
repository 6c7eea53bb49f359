"""The gradients of one unit: whole ones as autograd makes them, and this rank's part of their mean.

The mean over ranks and micro-batches is taken before the sum (g / divisor, then sum), so that low precision
does not overflow.
"""

from collections.abc import Iterable, Sequence

import torch

from zprof.reference_engine.comm import Handle
from zprof.reference_engine.gradients.protocol import Reduction, Turn, Whole


class UnitGradients:
    """``owned`` is what this rank's optimizer reads, after the last reduction of a step."""

    def __init__(
        self, whole: Whole, reduction: Reduction, owned: torch.Tensor, *, outside: Sequence[torch.Tensor] = ()
    ) -> None:
        """``outside`` are gradients that lie outside of ``whole``."""
        self.owned = owned
        self._whole = whole
        self._reduction = reduction
        self._outside = tuple(outside)

    def take(self, index: int) -> None:
        """The parameter of this index has its gradient."""
        self._whole.take(index)

    def reduce(self, missing: Iterable[int], turn: Turn) -> Handle:
        """Start to average over the ranks; of parameters in ``missing`` this backward made no gradient."""
        self._whole.complete(missing)
        return self._reduction.start(turn)

    def zero(self) -> None:
        """Set all gradients to zero, in place."""
        self._whole.zero()
        for gradient in self._outside:
            gradient.zero_()
