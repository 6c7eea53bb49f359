"""A model with parameter groups and parameters that steps leave out, and its training by torch alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

WIDTH, LAYERS, SLICES = 5, 3, 4
#: The layer whose scale is left out, by step and slice of the batch; ``LAYERS`` leaves out none.  By all
#: slices in steps 1 and 4, by one rank of two (and by two or three of four) in steps 2 and 3.
LEFT_OUT = ((0, 1, 2, 3), (1, 1, 1, 1), (2, 2, 3, 3), (0, 0, 0, 1), (0, 0, 0, 0), (3, 3, 1, 2))
STEPS = len(LEFT_OUT)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scaled: bool) -> torch.Tensor:
        return x + torch.tanh(self.linear(x * self.scale if scaled else x))


class Grouped(nn.Module):
    """Its ``never`` has no gradient at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.never = nn.Parameter(torch.rand(7))

    def forward(self, x: torch.Tensor, left_out: int) -> torch.Tensor:
        x = self.first(x)
        for index, layer in enumerate(self.layers):
            x = layer(x, index != left_out)
        return x.square().mean()


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Decayed weights, biases, and scales with numbers of their own; a layer has parameters of all three."""
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if name.endswith("weight") or name == "never"]},
        {"params": [p for name, p in named if name.endswith("bias")], "weight_decay": 0.0, "eps": 1e-6},
        {"params": [p for name, p in named if name.endswith("scale")], "lr": 3e-2, "betas": (0.8, 0.95)},
    ]


def schedules() -> list[Callable[[int], float]]:
    return [lambda step: 1.0 / (1 + step), lambda step: 1.0, lambda step: 0.9**step]


def loss_of_slice(
    model: nn.Module, step: int, index: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(10 * step + index))
    loss: torch.Tensor = model(x.to(dtype), LEFT_OUT[step][index])
    return loss


def trained_by_torch(steps: int) -> tuple[Grouped, torch.optim.Optimizer]:
    """On the whole batch: the mean over all slices."""
    model = Grouped()
    optimizer = torch.optim.AdamW(groups_of(model), lr=1e-2, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedules())
    for step in range(steps):
        optimizer.zero_grad()
        torch.stack([loss_of_slice(model, step, index) for index in range(SLICES)]).mean().backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer
