"""The two parts that a unit's gradients are made of, and the turns of a step in which they are reduced."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from zprof.reference_engine.comm import Handle
from zprof.reference_engine.gradients.pieces import Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One of a step's reductions: the only one (first and last), or one of each micro-batch."""

    first: bool = True
    last: bool = True


class Whole(Protocol):
    """Where a unit's whole gradients lie from autograd until their reduction."""

    def take(self, index: int) -> None:
        """The parameter of this index has its gradient, in ``.grad``."""

    def complete(self, missing: Iterable[int]) -> None:
        """No more will come; a parameter in ``missing`` that has no gradient at all counts as zero."""

    def zero(self) -> None:
        """Start over."""


class Readable(Whole, Protocol):
    """Whole gradients that are read piece by piece."""

    def read(self, cut: Cut, buffer: torch.Tensor) -> None:
        """Copy elements ``cut`` of every shard into ``buffer``, one shard after the other."""

    def close(self) -> None:
        """All was read."""


class Bucketed(Whole, Protocol):
    """Whole gradients that end up in a bucket, side by side as in the unit."""

    def hand_over(self) -> torch.Tensor:
        """The bucket, to whoever reduces it and gives it back to the pool."""


class Owned(Protocol):
    """This rank's part of the mean: what its optimizer reads."""

    @property
    def tensor(self) -> torch.Tensor:
        """The memory of it; content that no reduction wrote is arbitrary."""

    def zero(self) -> None:
        """The step is over: the gradients count as zero."""


class Reduction(Protocol):
    """How a unit's whole gradients become the mean that this rank keeps."""

    def start(self, turn: Turn) -> Handle:
        """Start to average what is there over the ranks; the mean is there when the handle was waited for."""
