"""One rank of the pitfalls in which ranks must agree, and their training in one process."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from zprof.reference_engine import ZeroConfig, zero

WIDTH = 4
STEPS = 4


class Model(nn.Module):
    """Three layers and a scale of one element: every rank but the first owns padding alone of it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.kind = kind
        self.fails = False
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("turned", torch.randn(3, 2).t())
        if kind == "tied":
            self.layers[2][0].weight = self.layers[0][0].weight
        if kind == "frozen":
            self.layers[1].requires_grad_(False)

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            if self.kind == "skips" and index == rank:
                continue
            if self.kind == "reentrant":
                x = x + checkpoint(layer, x.requires_grad_(True) if x.is_leaf else x, use_reentrant=True)
            else:
                x = x + layer(x)
            if self.fails and index == 1 and self.kind == "fails in backward":
                x.register_hook(self.fail)
        if self.fails and self.kind == "fails in forward":
            self.fail()
        return (x * self.scale).square().mean()

    def fail(self, *_: torch.Tensor) -> None:
        raise KeyError("planted")


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(100 * rank + step))


def run(case: dict[str, Any]) -> dict[str, Any]:
    """All ranks fail in the second step if told to, then repeat it."""
    rank = dist.get_rank()
    module = Model(case["kind"])
    if rank > 0:
        for value in [*module.parameters(), *module.buffers()]:
            value.data.zero_()
    model, optimizer = zero(module, ZeroConfig(learning_rate=1e-2, weight_decay=0.0, **case["zero"]))
    for step in (0, 1, *range(1, STEPS)):
        optimizer.zero_grad()
        module.fails = step == 1 and not module.fails
        try:
            model(inputs(rank, step), rank).backward()
        except KeyError:
            continue
        if not module.fails:
            optimizer.step()
    return {"weights": {name: value.tolist() for name, value in model.state_dict().items()}}


def reference(kind: str, ranks: int) -> dict[str, Any]:
    """The same in one process, on the mean of all ranks' losses."""
    model = Model(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.stack([model(inputs(rank, step), rank) for rank in range(ranks)]).mean().backward()
        optimizer.step()
    return {name: value.tolist() for name, value in model.state_dict().items()}
