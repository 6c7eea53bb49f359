"""Callbacks around a block's forward and backward that change no number."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Visit = Callable[[torch.Tensor], None]


def visit(
    block: nn.Module,
    *,
    before_forward: Visit | None = None,
    after_forward: Visit | None = None,
    before_backward: Visit | None = None,
) -> None:
    """Call back with the block's input, its output, and the gradient of its output.

    Call it before the engine hooks the block: then the block's parameters are there in all of them.
    """

    def enter(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if before_forward is not None:
            before_forward(arguments[0])

    def leave(module: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> Any:
        if after_forward is not None:
            after_forward(output)
        if before_backward is None:
            return output
        return _Identity.apply(output, before_backward)  # type: ignore[no-untyped-call]

    block.register_forward_pre_hook(enter)
    block.register_forward_hook(leave)


class _Identity(torch.autograd.Function):
    """The identity; its backward calls back first."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, before_backward: Visit) -> torch.Tensor:
        ctx.before_backward = before_backward
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.before_backward(gradients[0])
        return gradients[0], None
