"""One rank of the pitfalls in which ranks must agree, and their training in one process."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from zprof.reference_engine import ZeroConfig, zero

WIDTH = 4
STEPS = 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0))
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class Model(nn.Module):
    """Three layers and a scale of one element: every rank but the first owns padding alone of it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.kind = kind
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("turned", torch.randn(3, 2).t())
        if kind == "tied":
            self.layers[2].linear.weight = self.layers[0].linear.weight
        if kind == "frozen":
            self.layers[1].requires_grad_(False)

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            if self.kind == "skips" and index == rank:
                continue
            if self.kind == "checkpointed":
                x = checkpoint(layer, x, use_reentrant=False)
            elif self.kind == "reentrant":
                x = checkpoint(layer, x.requires_grad_(True) if x.is_leaf else x, use_reentrant=True)
            elif self.kind == "twice":
                x = layer(x) + layer(-x)
            else:
                x = layer(x)
        return (x * self.scale).square().mean()


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(100 * rank + step))


def run(case: dict[str, Any]) -> dict[str, Any]:
    kind, rank = case["kind"], dist.get_rank()
    module = Model(kind)
    if rank > 0:
        for value in [*module.parameters(), *module.buffers()]:
            value.data.zero_()
    model, optimizer = zero(module, ZeroConfig(learning_rate=1e-2, weight_decay=0.0, **case["zero"]))
    fail_once(module, kind)
    for step in range(STEPS):
        try:
            one_step(model, optimizer, rank, step)
        except KeyError:
            one_step(model, optimizer, rank, step)
    return {"weights": {name: value.tolist() for name, value in model.state_dict().items()}}


def fail_once(module: Model, kind: str) -> None:
    """All ranks fail in the second step's forward or backward, then repeat it."""
    calls = 0

    def fail(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyError("planted")

    if kind == "fails in forward":
        module.layers[2].register_forward_pre_hook(fail)
    if kind == "fails in backward":
        module.layers[1].linear.bias.register_hook(fail)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    optimizer.zero_grad()
    model(inputs(rank, step), rank).backward()
    optimizer.step()


def reference(kind: str, ranks: int) -> dict[str, Any]:
    """The same in one process, on the mean of all ranks' losses."""
    model = Model(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.stack([model(inputs(rank, step), rank) for rank in range(ranks)]).mean().backward()
        optimizer.step()
    return {name: value.tolist() for name, value in model.state_dict().items()}
