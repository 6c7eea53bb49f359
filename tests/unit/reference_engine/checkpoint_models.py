"""A small model with everything that a checkpoint must not trip over, and a training step of it."""

import torch
from fake_comm import FakeComm
from torch import nn

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(torch.tanh(self.norm(self.convolution(x))))


class Odd(nn.Module):
    """Buffers, dropout, tied, frozen, empty and zero-dimensional parameters, weights of four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.register_buffer("table", torch.arange(12.0).view(3, 4).t())
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(self.frozen(x)).square().mean() * self.scale + self.nothing.sum()


def odd_engine(seed: int = 0, **settings: object) -> tuple[ZeroModel, ZeroOptimizer]:
    torch.manual_seed(seed)
    units = settings.pop("units", None)
    model = Odd().to(settings.get("dtype", torch.float32))  # the buffers too: batch_norm wants one dtype
    chosen = [getattr(model, name) for name in units] if isinstance(units, list) else None
    return zero(model, ZeroConfig(**settings), FakeComm(1), units=chosen)  # type: ignore[arg-type]


def odd_losses(model: ZeroModel, optimizer: ZeroOptimizer, steps: range) -> list[float]:
    dtype = model.units[0].full.dtype
    losses = []
    for step in steps:
        optimizer.zero_grad()
        x = torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(step)).to(dtype)
        loss = model(x)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def everything(model: ZeroModel, optimizer: ZeroOptimizer) -> dict[str, torch.Tensor]:
    """Copies of all that a checkpoint is to restore."""
    found = model.state_dict()
    for unit in model.units:
        if unit.weights is not None:
            found[f"{unit.name} weights"] = unit.weights.detach().clone()
            for key, value in optimizer.state[unit.weights].items():
                found[f"{unit.name} {key}"] = value.clone()
    return found


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[key], right[key]) and left[key].dtype == right[key].dtype for key in left
    )
