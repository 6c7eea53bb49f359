"""How a unit may be called and what it may return: views, containers, recursion, recomputation."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
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
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

UNITS = ["root", "layers.0", "layers.1", "layers.2"]


class Twice(Layers):
    """Every layer is called twice, and both calls have a gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x) + layer(2 * x)
        return self.first(x).square().sum()


class Recursive(Layer):
    """Calls itself, in the middle of its own forward."""

    def forward(self, x: torch.Tensor, depth: int = 0) -> torch.Tensor:
        x = x * self.scale
        if depth < 2:
            x = self(x, depth + 1)
        return x + torch.tanh(self.linear(x))


class View(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(self.linear(x)) * self.scale).view(-1, x.shape[-1])[:]


class ChangedInPlace(Layers):
    """What a layer gives back is a view, and is changed in place by the one who gets it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
            x.mul_(2)
            x[0].add_(1)
        return x.square().sum()


class InPlaceOnInput(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(torch.tanh(self.linear(x.clone() * self.scale)))


class AlsoInput(Layer):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), x


class TwoOutputs(Layer):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), x * self.scale


class TakesFirst(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x, before = layer(x)
            x = x + before
        return x.square().sum()


@dataclass(slots=True)
class Output:
    hidden: torch.Tensor
    extra: Any = None


class Plain:
    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden


WRAPPED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dict": (lambda x: {"hidden": x, "none": None}, lambda out: out["hidden"]),
    "nested": (lambda x: [("text", None), {"deep": (x, 3)}], lambda out: out[1]["deep"][0]),
    "dataclass": (lambda x: Output(hidden=x), lambda out: out.hidden),
    "dataclass in a list": (lambda x: [Output(hidden=x[:0], extra={"x": x})], lambda out: out[0].extra["x"]),
    "object": (Plain, lambda out: out.hidden),
    "namespace": (lambda x: SimpleNamespace(hidden=x), lambda out: out.hidden),
    "object that hides it": (lambda x: Plain(Plain(x)), lambda out: out.hidden.hidden),
    "function": (lambda x: lambda: x, lambda out: out()),
}


class Wrapping(Layer):
    def __init__(self, wrap: Callable[[Any], Any]) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(super().forward(x))


class Unwrapping(Layers):
    def __init__(self, wrap: Callable[[Any], Any], unwrap: Callable[[Any], Any]) -> None:
        super().__init__(lambda _: Wrapping(wrap))
        self.unwrap = unwrap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = self.unwrap(layer(x))
        return x.square().sum()


class Stores(Layer):
    """Gives nothing back; who wants the result finds it in an attribute."""

    result: torch.Tensor

    def forward(self, x: torch.Tensor) -> None:
        self.result = super().forward(x)


class ReadsStored(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            assert layer(x) is None
            x = layer.result
        return x.square().sum()


class NamedInputs(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x=x)
        return x.square().sum()


class Recomputed(Layers):
    """``pieces`` of layers are checkpointed together."""

    reentrant = False
    pieces: tuple[tuple[int, ...], ...] = ((0, 1), (2,))

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

    def __init__(self, make: Callable[[int], nn.Module]) -> None:
        super().__init__(make, count=0)
        self.head = nn.Parameter(torch.randn(WIDTH, WIDTH))

    reentrant = True
    pieces = ((0,),)

    def run(self, x: torch.Tensor, piece: tuple[int, ...]) -> torch.Tensor:
        return torch.tanh(x @ self.head)


class SameTwice(WithoutModules):
    reentrant = False
    pieces = ((0,), (0,))


def recomputed(reentrant: bool, *pieces: tuple[int, ...]) -> Layers:
    model = Recomputed(Layer)
    model.reentrant, model.pieces = reentrant, pieces
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "called twice": lambda: Twice(Layer),
    "calls itself": lambda: Layers(Recursive),
    "output changed in place": lambda: ChangedInPlace(Layer),
    "view changed in place": lambda: ChangedInPlace(View),
    "changes its input": lambda: Layers(InPlaceOnInput),
    "also returns its input": lambda: TakesFirst(AlsoInput),
    "two outputs": lambda: TakesFirst(TwoOutputs),
    "returns nothing": lambda: ReadsStored(Stores),
    "inputs by name": lambda: NamedInputs(Layer),
    "recomputed in pieces": lambda: recomputed(False, (0, 1), (2,)),
    "recomputed one by one": lambda: recomputed(False, (0,), (1,), (2,)),
    "recomputed as a whole": lambda: recomputed(False, (0, 1, 2)),
    "reentrant in pieces": lambda: recomputed(True, (0, 1), (2,)),
    "reentrant one by one": lambda: recomputed(True, (0,), (1,), (2,)),
    "reentrant without modules": lambda: WithoutModules(Layer),
    "shares a recomputed parameter": lambda: SameTwice(Layer),
}
MODELS |= {f"returns {kind}": lambda k=kind: Unwrapping(*WRAPPED[k]) for kind in WRAPPED}


@pytest.mark.parametrize(("name", "stage"), on_stages(MODELS))
def test_odd_units_train_as_they_do_without_the_engine(name, stage):
    check_training(MODELS[name], stage)


@pytest.mark.parametrize("keep", ["last", "all"])
@pytest.mark.parametrize("name", [name for name in MODELS if "recomputed" in name or "called" in name])
def test_odd_units_train_when_their_parameters_are_kept(name, keep):
    check_training(MODELS[name], 3, keep_after_forward=keep)


def test_a_recomputation_need_not_stop_early():
    with set_checkpoint_early_stop(False):
        check_training(MODELS["recomputed in pieces"], 3)


@pytest.mark.parametrize(
    ("model", "gathers"),
    [
        (lambda: TakesFirst(AlsoInput), 8),
        *((lambda k=kind: Unwrapping(*WRAPPED[k]), 8) for kind in WRAPPED),
    ],
    ids=["also returns its input", *WRAPPED],
)
def test_units_are_gathered_once_a_pass_unless_their_outputs_cannot_be_found(request, model, gathers):
    kept = "hides" in request.node.name or "function]" in request.node.name
    model, optimizer, comm = in_engine(model(), 3, 2)
    for _ in range(2):
        comm.take_events()
        train(model, optimizer)
        assert len(comm.launches("all_gather")) == (5 if kept else gathers)


def test_a_unit_with_two_outputs_is_needed_once_and_the_next_is_fetched_ahead():
    model, optimizer, comm = in_engine(TakesFirst(TwoOutputs), 3, 2)
    for _ in range(3):
        comm.take_events()
        train(model, optimizer)
    gathers = [event for event in comm.events if "all_gather" in event]
    for unit, following in (("layers.2", "layers.1"), ("layers.1", "layers.0")):
        waited = len(gathers) - gathers[::-1].index(f"wait all_gather {unit}")
        assert f"launch all_gather {following}" in gathers[8:waited]


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
    assert comm.launches("reduce_scatter" if stage else "all_reduce") == [*reversed(UNITS[1:]), "root"]
    comm.take_events()
    optimizer.zero_grad()
    x = inputs(0).requires_grad_(True)
    for layer in model.module.layers:  # called without the model
        x = checkpoint(layer, x, use_reentrant=True)
    x.sum().backward()
    assert comm.launches("reduce_scatter" if stage else "all_reduce") == [*reversed(UNITS[1:]), "root"]


@pytest.mark.parametrize("stage", [0, 3])
def test_reentrant_checkpoints_that_share_a_parameter_are_refused(stage):
    module = SameTwice(Layer)
    module.reentrant = True
    model, optimizer, _ = in_engine(module, stage)
    with pytest.raises(RuntimeError, match="head"):
        train(model, optimizer)
