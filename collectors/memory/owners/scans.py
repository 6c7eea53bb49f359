"""What the hooks of a window ask for at their points of a step: a full look, or a light one."""

import weakref
from typing import Protocol

import torch
from torch import nn


class Scans(Protocol):
    """What the hooks ask for at their points of the step."""

    absent: list[weakref.ref[nn.Parameter]]

    def begin_forward(self) -> None:
        """The model is called."""

    def gathered(self, module: nn.Module) -> None:
        """A module is called: its parameters are there."""

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients are complete."""

    def states(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped."""
