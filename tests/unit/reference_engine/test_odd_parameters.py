"""Parameters that are shared, left out, frozen, empty, oddly laid out, of another type, or used elsewhere."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from pitfall_models import (
    REDUCED,
    STAGES,
    WIDTH,
    Layer,
    Layers,
    check_training,
    gathered_bytes,
    in_engine,
    inputs,
    on_stages,
    train,
)
from torch import nn

from zprof.reference_engine import ZeroModel


def tied() -> nn.Module:
    module = Layers()
    module.first.weight = module.layers[2].linear.weight = module.layers[0].linear.weight
    return module


def in_several_places() -> nn.Module:
    module = Layers(count=1)
    module.layers = nn.ModuleList([module.layers[0]] * 3)
    return module


def frozen_in_the_middle() -> nn.Module:
    module = Layers()
    module.layers[1].requires_grad_(False)
    module.layers[2].scale.requires_grad_(False)
    return module


def with_a_hook_and_old_gradients() -> nn.Module:
    module = Layers()
    module(inputs(9)).backward()
    module.layers[1].scale.register_hook(lambda gradient: 3 * gradient)
    return module


class Choosing(Layers):
    """Every step calls other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for index, layer in enumerate(self.layers):
            if index != self.step % 3:
                x = layer(x)
        self.step += 1
        return x.square().sum()


class Empty(nn.Module):
    """Parameters without elements, alone in a unit or beside others."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0, WIDTH))
        if index == 1:
            self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([x, self.nothing])
        return x * self.scale if hasattr(self, "scale") else x


class Convolution(nn.Module):
    """channels_last and transposed parameters."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3, padding=1).to(memory_format=torch.channels_last)
        self.turned = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH).t())
        self.every_second = nn.Parameter(torch.randn(2 * WIDTH)[::2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.convolution(x[None, None]).mean((0, 1))
        return torch.tanh(seen @ self.turned.t() @ self.turned * self.every_second)


class HandsOn(Layers):
    """Hands a parameter of its own to every layer."""

    def __init__(self) -> None:
        super().__init__(call=lambda layer, x: layer(x + self.bias))
        self.bias = nn.Parameter(torch.randn(WIDTH))


class Detached(Layer):
    """Needs values after the last gradient of its unit."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.linear.weight.detach()) * self.scale.detach() * self.scale + self.linear(x)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tied": tied,
    "in several places": in_several_places,
    "frozen in the middle": frozen_in_the_middle,
    "without elements": lambda: Layers(Empty),
    "not contiguous": lambda: Layers(Convolution),
    "handed on": HandsOn,
    "detached": lambda: Layers(Detached),
    "with a hook and old gradients": with_a_hook_and_old_gradients,
}


@pytest.mark.parametrize(("name", "stage"), on_stages(MODELS))
def test_odd_parameters_train_as_they_do_without_the_engine(name, stage):
    model = check_training(MODELS[name], stage)
    plain = list(MODELS[name]().parameters())
    assert model.facts.parameters == sum(parameter.numel() for parameter in plain)
    with model.gathered() as module:
        assert all(parameter.is_contiguous() for parameter in module.parameters())
        assert len(list(module.parameters())) == len(plain)


@pytest.mark.parametrize("stage", STAGES)
def test_units_that_are_skipped_or_frozen_move_what_their_stage_says(stage):
    kind = "reduce_scatter" if stage else "all_reduce"
    model, optimizer, comm = in_engine(Choosing(), stage, 2)
    for step in range(4):
        comm.take_events()
        train(model, optimizer, step)
        assert comm.launches(kind) == REDUCED
    assert stage < 3 or gathered_bytes(model) == 0
    model, optimizer, comm = in_engine(frozen_in_the_middle(), stage, 2)
    train(model, optimizer)
    assert comm.launches(kind) == ["layers.2", "layers.0", "root"]
    assert all(parameter.grad is None for parameter in model.module.layers[1].parameters())


class UsedElsewhere(Layers):
    """The model itself uses a parameter of a layer, before or after the layer's own forward."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.when == "before":
            x = F.linear(x, self.layers[0].linear.weight)
        x = self.layers[1](self.layers[0](self.first(x)))
        return (x * self.layers[0].scale if self.when == "after" else x).square().sum()


def penalty(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    optimizer.zero_grad()
    inner = model.module if isinstance(model, ZeroModel) else model
    square = sum(parameter.square().sum() for parameter in inner.parameters())
    loss = model(inputs(step)) + 0.1 * square
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def test_a_parameter_that_is_used_outside_its_unit_is_refused_in_stage_3_alone():
    for stage in (0, 1, 2):
        check_training(Layers, stage, step=penalty)
    for when, name in (("before", "layers.0.linear.weight"), ("after", "layers.0.scale")):
        check_training(lambda when=when: UsedElsewhere(when), 2)
        check_training(lambda when=when: UsedElsewhere(when), 3, units=[])
        with pytest.raises(RuntimeError, match=f"^[^\n]*{name}[^\n]*$"):
            in_engine(UsedElsewhere(when), 3)[0](inputs(0))
    model, optimizer, _ = in_engine(Layers(), 3)
    with pytest.raises(RuntimeError, match=r"first\.weight"):
        penalty(model, optimizer, 0)
    assert "not gathered" in repr(model.module.first.weight)


@pytest.mark.parametrize("stage", [1, 2])
def test_a_parameter_whose_gather_is_under_way_is_waited_for(stage):
    model, optimizer, comm = in_engine(Layers(Layer), stage, 1)
    train(model, optimizer)
    comm.take_events()
    weight = model.module.layers[1].linear.weight
    assert (weight.shape, comm.events) == ((WIDTH, WIDTH), [])
    assert not torch.isnan(weight.sum())
    assert comm.take_events() == ["wait all_gather layers.1"]
