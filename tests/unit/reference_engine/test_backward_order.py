"""When a unit's backward is over: not too early where leaves are handed on, not late where graphs are kept."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_comm import FakeComm
from thread_comm import Launched, ThreadComm, on_ranks
from torch import nn

from zprof.reference_engine import ZeroConfig, ZeroModel, zero

WIDTH = 16


class Biased(nn.Module):
    """Adds a bias that belongs to somebody else, in the middle of its work."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return x + self.out(torch.tanh(self.into(x) + bias))


class HandsOn(nn.Module):
    """Hands a parameter of its own to every block."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.blocks = nn.ModuleList(Biased() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x, self.bias)
        return x.square().mean()


class Detached(nn.Module):
    """Its backward needs its weight after the weight's own gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight.detach()) @ self.weight


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Detached() for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(WIDTH, WIDTH)
        self.sometimes = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, use: bool) -> torch.Tensor:
        return self.always(x) + self.sometimes(x) if use else self.always(x)


class Towers(nn.Module):
    """Units whose inputs are data: nothing says when their backward is over."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.towers = nn.ModuleList(Tower() for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor, use: bool) -> torch.Tensor:
        x = self.towers[0](x, True) * self.towers[1](x, use)
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


def data() -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))


def retained(model: nn.Module) -> None:
    loss = model(data())
    loss.backward(retain_graph=True)
    loss.backward()


def forwards_first(model: nn.Module) -> None:
    for loss in [model(data()), model(data())]:
        loss.backward()


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("make", [HandsOn, Chain])
@pytest.mark.parametrize("twice", [retained, forwards_first])
def test_two_backwards_of_two_graphs_or_one(
    stage: int, make: Any, twice: Callable[[nn.Module], None]
) -> None:
    # With beta1 = 0 the first moment is the gradient.
    config = ZeroConfig(stage=stage, micro_batches=2, betas=(0.0, 0.9), learning_rate=0.0, weight_decay=0.0)
    model, optimizer = zero(make(), config, FakeComm(1))
    plain = make()
    plain(data()).backward()
    for _ in range(2):
        optimizer.zero_grad()
        twice(model)
        optimizer.step()
        for unit in model.units:
            moments = unit.views(optimizer.state[unit.weights]["exp_avg"])
            for slot, found in zip(unit.layout.slots, moments, strict=True):
                torch.testing.assert_close(found, plain.get_parameter(slot.name).grad)


def most_units_in_a_backward(model: ZeroModel, loss: torch.Tensor) -> int:
    counts: list[int] = []

    def count(_: Any) -> None:
        counts.append(sum(unit.full.untyped_storage().nbytes() > 0 for unit in model.units))

    hooks = [p.register_post_accumulate_grad_hook(count) for p in model.module.layers.parameters()]
    loss.backward()
    for hook in hooks:
        hook.remove()
    return max(counts)


def test_a_graph_that_somebody_keeps_holds_no_units() -> None:
    model, optimizer = zero(Chain(), ZeroConfig(stage=3), FakeComm(4))
    for _ in range(2):  # the first pass learns the order
        optimizer.zero_grad()
        alone = most_units_in_a_backward(model, model(data()))
    optimizer.zero_grad()
    kept = model(data())
    assert most_units_in_a_backward(model, model(data())) == alone < len(model.units) - 2
    assert kept.grad_fn is not None


def launches(comm: ThreadComm, *, uses: bool, keeps: bool) -> list[Launched]:
    model, optimizer = zero(Towers(), ZeroConfig(stage=3), comm)
    kept = []
    for _ in range(3):
        optimizer.zero_grad()
        model(data(), uses).backward()
        optimizer.step()
        validation = model(data(), True)
        kept += [validation] if keeps else []
    return list(comm.launched)


@pytest.mark.parametrize("differs", ["uses", "keeps"])
def test_ranks_launch_in_one_order_whatever_they_use_or_keep(differs: str) -> None:
    choices = {"uses": True, "keeps": False}
    first, second = on_ranks(2, lambda comm: launches(comm, **choices | {differs: comm.rank == 0}))
    assert first == second
