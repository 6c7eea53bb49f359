"""Small models, and their training with and without the engine."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from engine_helpers import storage_bytes
from fake_comm import FakeComm
from torch import nn

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero

STAGES = range(4)
WIDTH = 4
UNITS = ["root", "layers.0", "layers.1", "layers.2"]
#: The order of reductions: that of the backward.
REDUCED = ["layers.2", "layers.1", "layers.0", "root"]


class Layer(nn.Module):
    """A residual layer with parameters that lie behind each other in its backward."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x * self.scale))


def call_once(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x)


class Layers(nn.Module):
    """Layers in a row: ``make`` builds one, ``call`` calls it, ``forward`` adds up the last one's result."""

    def __init__(
        self,
        make: Callable[[int], nn.Module] = Layer,
        count: int = 3,
        call: Callable[[Any, torch.Tensor], torch.Tensor] = call_once,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(make(index) for index in range(count))
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = self.call(layer, x)
        return x.square().sum()


def on_stages(names: Iterable[str]) -> list[Any]:
    """Every name with every stage; stage 3 and one other are fast."""
    return [
        pytest.param(name, stage, marks=() if stage in (3, number % 3) else pytest.mark.slow)
        for number, name in enumerate(names)
        for stage in STAGES
    ]


def inputs(step: int) -> torch.Tensor:
    return torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(step))


def in_engine(
    module: nn.Module, stage: int, ranks: int = 1, *, units: Any = None, **settings: Any
) -> tuple[ZeroModel, ZeroOptimizer, FakeComm]:
    comm = FakeComm(ranks)
    config = ZeroConfig(stage=stage, learning_rate=1e-2, **settings)
    model, optimizer = zero(module, config, comm, units=units)
    comm.take_events()
    return model, optimizer, comm


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int = 0) -> float:
    optimizer.zero_grad()
    loss = model(inputs(step))
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def check_training(
    make: Callable[[], nn.Module], stage: int, *, steps: int = 3, step: Any = train, **options: Any
) -> ZeroModel:
    """Train two models, one of them in the engine: losses and weights are equal, and memory is given back."""
    reference = make()
    expected = torch.optim.AdamW(reference.parameters(), lr=1e-2, weight_decay=0.01)
    model, optimizer, _ = in_engine(make(), stage, **options)
    for number in range(steps):
        loss = step(reference, expected, number)
        assert step(model, optimizer, number) == pytest.approx(loss, rel=1e-5)
        assert stage < 3 or gathered_bytes(model) == 0
    weights = model.state_dict()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(weights[name], value)
    return model


def gathered_bytes(model: ZeroModel) -> int:
    return storage_bytes(unit.full for unit in model.units)
