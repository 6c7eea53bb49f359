"""A model in which every rank leaves another parameter out, and its training in one process."""

import torch
from torch import nn

LAYERS = 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.linear = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor, use_scale: bool) -> torch.Tensor:
        return x + torch.tanh(self.linear(x * self.scale if use_scale else x))


class Optional(nn.Module):
    """Rank r leaves out the scale of layer r."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x, index != rank)
        return x.square().mean()


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(2, 5, generator=torch.Generator().manual_seed(100 * rank + step))


def trained_reference(ranks: int, steps: int) -> Optional:
    """Trained on the mean of all ranks' losses; the last gradients are still there."""
    model = Optional()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        losses = [model(inputs(rank, step), rank) for rank in range(ranks)]
        torch.stack(losses).mean().backward()
        optimizer.step()
    return model
