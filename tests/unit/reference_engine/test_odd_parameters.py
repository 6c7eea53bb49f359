"""Parameters that are shared, left out, frozen, empty, oddly laid out, of another type, or used elsewhere."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from pitfall_models import (
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


class Tied(Layers):
    """The first and the last layer share a weight, and the root uses it too."""

    def __init__(self) -> None:
        super().__init__(Layer)
        self.layers[2].linear.weight = self.layers[0].linear.weight
        self.first.weight = self.layers[0].linear.weight


class Same(Layers):
    """One module in several places."""

    def __init__(self) -> None:
        super().__init__(Layer, count=1)
        self.layers = nn.ModuleList([self.layers[0]] * 3)


class Choosing(Layers):
    """Every step calls other layers."""

    def __init__(self) -> None:
        super().__init__(Layer)
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


class OwnTypes(Layers):
    """A norm in float64 among float32 layers: its user converts on the way in and out."""

    def __init__(self) -> None:
        super().__init__(Layer)
        self.norm = nn.LayerNorm(WIDTH).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x).to(self.norm.weight.dtype)).float()
        for layer in self.layers:
            x = layer(x)
        return x.square().sum()


class UsedElsewhere(Layers):
    """The model itself uses a parameter of a layer, before or after the layer's own forward."""

    when = "after"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.when == "before":
            x = F.linear(x, self.layers[0].linear.weight)
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        if self.when == "after":
            x = x * self.layers[0].scale + F.linear(x, self.layers[2].linear.weight)
        return x.square().sum()


def used(when: str) -> Layers:
    model = UsedElsewhere(Layer)
    model.when = when
    return model


def detached(use: str) -> type[nn.Module]:
    class Detached(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = F.linear(x, self.linear.weight.detach()) * self.scale.detach()
            return (
                kept * self.scale + self.linear(x) if use == "first" else self.linear(x) + kept * self.scale
            )

    return Detached


def frozen_in_the_middle() -> nn.Module:
    module = Layers(Layer)
    module.layers[1].requires_grad_(False)
    module.layers[2].scale.requires_grad_(False)
    return module


def with_a_hook() -> nn.Module:
    module = Layers(Layer)
    module.layers[1].scale.register_hook(lambda gradient: 3 * gradient)
    return module


def with_old_gradients() -> nn.Module:
    module = Layers(Layer)
    module(inputs(9)).backward()
    return module


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "one module in several places": Same,
    "frozen in the middle": frozen_in_the_middle,
    "without elements": lambda: Layers(Empty),
    "not contiguous": lambda: Layers(Convolution),
    "detached first": lambda: Layers(lambda _: detached("first")()),
    "detached last": lambda: Layers(lambda _: detached("last")()),
    "with a hook": with_a_hook,
    "with gradients from before": with_old_gradients,
}


@pytest.mark.parametrize(("name", "stage"), on_stages(MODELS))
def test_odd_parameters_train_as_they_do_without_the_engine(name, stage):
    model = check_training(MODELS[name], stage)
    plain = MODELS[name]()
    assert model.facts.parameters == sum(parameter.numel() for parameter in plain.parameters())
    with model.gathered() as module:
        assert all(parameter.is_contiguous() for parameter in module.parameters())
        assert len(list(module.parameters())) == len(list(plain.parameters()))


@pytest.mark.parametrize("stage", STAGES)
def test_units_that_are_not_called_in_every_step(stage):
    model, optimizer, comm = in_engine(Choosing(), stage, 2)
    for step in range(4):
        comm.take_events()
        train(model, optimizer, step)
        kind = "reduce_scatter" if stage else "all_reduce"
        assert comm.launches(kind) == ["layers.2", "layers.1", "layers.0", "root"]
    assert stage < 3 or gathered_bytes(model) == 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_unit_that_is_frozen_moves_no_gradient(stage):
    module = Layers(Layer)
    module.layers[1].requires_grad_(False)
    model, optimizer, comm = in_engine(module, stage, 2)
    train(model, optimizer)
    assert comm.launches("reduce_scatter" if stage else "all_reduce") == ["layers.2", "layers.0", "root"]
    assert all(parameter.grad is None for parameter in module.layers[1].parameters())


@pytest.mark.parametrize("ranks", [3, 64])
def test_more_ranks_than_elements_leave_the_last_shards_empty(ranks):
    model, optimizer, _ = in_engine(Layers(lambda _: nn.Linear(WIDTH, WIDTH)), 3, ranks, alignment=1)
    train(model, optimizer)
    for unit in model.units:
        pieces = [sum(piece.numel for piece in unit.layout.pieces(rank)) for rank in range(ranks)]
        assert sum(pieces) == unit.layout.numel == 20
        assert (pieces[-1] == 0) == (ranks == 64)


@pytest.mark.parametrize("stage", [1, 3])
def test_all_parameters_take_the_type_of_the_config(stage):
    model, optimizer, _ = in_engine(OwnTypes(), stage)
    assert {parameter.dtype for parameter in model.module.parameters()} == {torch.float32}
    assert train(model, optimizer, 0) > 0
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_parameter_that_is_used_outside_its_unit_is_refused_in_stage_3_alone(when):
    check_training(lambda: used(when), 0)
    check_training(lambda: used(when), 2)
    check_training(lambda: used(when), 3, units=[])
    model, _, _ = in_engine(used(when), 3)
    name = {"before": "layers.0.linear.weight", "after": "layers.0.scale"}[when]
    with pytest.raises(RuntimeError, match=f"^[^\n]*{name}[^\n]*$"):
        model(inputs(0))


def penalty(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    optimizer.zero_grad()
    inner = model.module if isinstance(model, ZeroModel) else model
    square = sum(parameter.square().sum() for parameter in inner.parameters())
    loss = model(inputs(step)) + 0.1 * square
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def test_a_penalty_on_the_weights_is_refused_in_stage_3_alone():
    for stage in (0, 1, 2):
        check_training(lambda: Layers(Layer), stage, step=penalty)
    model, optimizer, _ = in_engine(Layers(Layer), 3)
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
