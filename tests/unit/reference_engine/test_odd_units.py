"""How a unit may be called and what it may return: views, containers, recursion, recomputation."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
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
from torch.utils.checkpoint import checkpoint


class Recursive(Layer):
    """Calls itself, in the middle of its own forward."""

    def forward(self, x: torch.Tensor, depth: int = 0) -> torch.Tensor:
        x = x * self.scale
        if depth < 2:
            x = self(x, depth + 1)
        return x + torch.tanh(self.linear(x))


class InPlaceOnInput(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(torch.tanh(self.linear(x.clone() * self.scale)))


class Returns(Layer):
    """Returns its input and its result in another form."""

    def __init__(self, form: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor) -> Any:
        return self.form(x, super().forward(x))


def change_in_place(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = layer(x).mul_(2)
    x[0].add_(1)
    return x


def store(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    assert layer(x) is None
    return layer.result


@dataclass(slots=True)
class Output:
    hidden: torch.Tensor
    extra: Any = None


class Plain:
    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden


class Stores(Layer):
    def forward(self, x: torch.Tensor) -> None:
        self.result = super().forward(x)


class Recomputed(Layers):
    """``pieces`` of layers are checkpointed together."""

    def __init__(self, reentrant: bool, *pieces: tuple[int, ...]) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.pieces = pieces

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for piece in self.pieces:
            x = checkpoint(self.run, x, piece, use_reentrant=self.reentrant)
        return x.square().sum()

    def run(self, x: torch.Tensor, piece: tuple[int, ...]) -> torch.Tensor:
        for index in piece:
            x = self.layers[index](x)
        return x


class WithoutModules(Recomputed):
    """The checkpointed function uses a parameter of the model, and calls no module."""

    def __init__(self, reentrant: bool, *pieces: tuple[int, ...]) -> None:
        super().__init__(reentrant, *pieces)
        self.layers = nn.ModuleList()
        self.head = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def run(self, x: torch.Tensor, piece: tuple[int, ...]) -> torch.Tensor:
        return torch.tanh(x @ self.head)


#: What a unit returns for its input x and result y, and how its caller finds y.
FORMS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "also its input": (lambda x, y: (y, x), sum),
    "dict": (lambda x, y: {"hidden": y, "none": None}, lambda out: out["hidden"]),
    "nested": (lambda x, y: [("text", None), {"deep": (y, 3)}], lambda out: out[1]["deep"][0]),
    "dataclass": (lambda x, y: [Output(hidden=y[:0], extra={"y": y})], lambda out: out[0].extra["y"]),
    "object": (lambda x, y: Plain(y), lambda out: out.hidden),
    "namespace": (lambda x, y: SimpleNamespace(hidden=y), lambda out: out.hidden),
    "object that hides it": (lambda x, y: Plain(Plain(y)), lambda out: out.hidden.hidden),
    "function that hides it": (lambda x, y: lambda: y, lambda out: out()),
}


def returning(form: str) -> Layers:
    make, find = FORMS[form]
    return Layers(lambda _: Returns(make), call=lambda layer, x: find(layer(x)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "called twice": lambda: Layers(call=lambda layer, x: layer(x) + layer(2 * x)),
    "calls itself": lambda: Layers(Recursive),
    "output changed in place": lambda: Layers(call=change_in_place),
    "view changed in place": lambda: Layers(
        lambda _: Returns(lambda x, y: y.view(-1, WIDTH)[:]), call=change_in_place
    ),
    "changes its input": lambda: Layers(InPlaceOnInput),
    "returns nothing": lambda: Layers(Stores, call=store),
    "inputs by name": lambda: Layers(call=lambda layer, x: layer(x=x)),
    "recomputed in pieces": lambda: Recomputed(False, (0, 1), (2,)),
    "recomputed one by one": lambda: Recomputed(False, (0,), (1,), (2,)),
    "reentrant in pieces": lambda: Recomputed(True, (0, 1), (2,)),
    "reentrant one by one": lambda: Recomputed(True, (0,), (1,), (2,)),
    "reentrant without modules": lambda: WithoutModules(True, (0,)),
    "shares a recomputed parameter": lambda: WithoutModules(False, (0,), (0,)),
    **{f"returns {form}": lambda form=form: returning(form) for form in FORMS},
}


@pytest.mark.parametrize(("name", "stage"), on_stages(MODELS))
def test_odd_units_train_as_they_do_without_the_engine(name, stage):
    check_training(MODELS[name], stage)


@pytest.mark.parametrize("keep", ["last", "all"])
@pytest.mark.parametrize("name", ["called twice", "recomputed in pieces", "reentrant in pieces"])
def test_odd_units_train_when_their_parameters_are_kept(name, keep):
    check_training(MODELS[name], 3, keep_after_forward=keep)


@pytest.mark.parametrize("form", FORMS)
def test_units_are_gathered_once_a_pass_unless_their_outputs_cannot_be_found(form):
    model, optimizer, comm = in_engine(returning(form), 3, 2)
    for _ in range(2):
        comm.take_events()
        train(model, optimizer)
        assert len(comm.launches("all_gather")) == (5 if "hides" in form else 8)


def test_units_whose_outputs_have_no_gradient_are_given_back_if_none_can_come():
    module = Layers(Layer).requires_grad_(False)
    module.layers[2].requires_grad_(True)
    model, _, _ = in_engine(module, 3)
    loss = model(inputs(0))
    assert gathered_bytes(model) == 0
    loss.backward()


@pytest.mark.parametrize("stage", STAGES)
def test_a_backward_inside_the_backward_reduces_each_unit_once(stage):
    model, optimizer, comm = in_engine(MODELS["reentrant one by one"](), stage, 2, reduce_buckets=9)
    train(model, optimizer)
    kind = "reduce_scatter" if stage else "all_reduce"
    assert comm.launches(kind) == REDUCED
    comm.take_events()
    optimizer.zero_grad()
    x = inputs(0).requires_grad_(True)
    for layer in model.module.layers:  # called without the model
        x = checkpoint(layer, x, use_reentrant=True)
    x.sum().backward()
    assert comm.launches(kind) == REDUCED


@pytest.mark.parametrize("stage", [0, 3])
def test_reentrant_checkpoints_that_share_a_parameter_are_refused(stage):
    model, optimizer, _ = in_engine(WithoutModules(True, (0,), (0,)), stage)
    with pytest.raises(RuntimeError, match="head"):
        train(model, optimizer)
