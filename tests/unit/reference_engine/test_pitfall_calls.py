"""How a unit may be called and what it may give back: views, containers, recursion, recomputation."""

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
    train,
)
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

STAGES_AND_KEEP = [(0, "none"), (1, "none"), (2, "none"), (3, "none"), (3, "last"), (3, "all")]


class Twice(Layers):
    """Every layer is called twice, and both calls have a gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x) + layer(2 * x)
        return self.first(x).square().sum()


@pytest.mark.parametrize(("stage", "keep"), STAGES_AND_KEEP)
def test_a_unit_that_is_called_twice(stage, keep):
    check_training(lambda: Twice(Layer), stage, keep_after_forward=keep)


class Recursive(Layer):
    """Calls itself, in the middle of its own forward."""

    def forward(self, x: torch.Tensor, depth: int = 0) -> torch.Tensor:
        x = x * self.scale
        if depth < 2:
            x = self(x, depth + 1)
        return x + torch.tanh(self.linear(x))


@pytest.mark.parametrize("stage", STAGES)
def test_a_unit_that_calls_itself(stage):
    check_training(lambda: Layers(Recursive), stage)


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


@pytest.mark.parametrize("make", [Layer, View])
@pytest.mark.parametrize("stage", STAGES)
def test_an_output_that_is_changed_in_place(stage, make):
    check_training(lambda: ChangedInPlace(make), stage)


class InPlaceOnInput(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(torch.tanh(self.linear(x.clone() * self.scale)))


@pytest.mark.parametrize("stage", STAGES)
def test_a_unit_that_changes_its_input_and_gives_it_back(stage):
    check_training(lambda: Layers(InPlaceOnInput), stage)


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


def test_an_input_that_is_given_back_does_not_fetch_the_unit_again():
    check_training(lambda: TakesFirst(AlsoInput), 3)
    model, optimizer, comm = in_engine(TakesFirst(AlsoInput), 3, 2)
    for _ in range(2):
        comm.take_events()
        train(model, optimizer)
        assert len(comm.launches("all_gather")) == 8


def test_a_unit_with_two_outputs_is_needed_once_and_the_next_is_fetched_ahead():
    model, optimizer, comm = in_engine(TakesFirst(TwoOutputs), 3, 2)
    for _ in range(3):
        comm.take_events()
        train(model, optimizer)
    gathers = [event for event in comm.events if "all_gather" in event]
    for unit, following in (("layers.2", "layers.1"), ("layers.1", "layers.0")):
        waited = len(gathers) - gathers[::-1].index(f"wait all_gather {unit}")
        assert f"launch all_gather {following}" in gathers[8:waited]


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


@pytest.mark.parametrize("kind", WRAPPED)
@pytest.mark.parametrize("stage", STAGES)
def test_what_a_unit_gives_back_need_not_be_a_tensor(stage, kind):
    check_training(lambda: Unwrapping(*WRAPPED[kind]), stage)


@pytest.mark.parametrize("kind", WRAPPED)
def test_units_whose_outputs_cannot_be_found_are_kept_and_no_others(kind):
    model, optimizer, comm = in_engine(Unwrapping(*WRAPPED[kind]), 3, 2)
    train(model, optimizer)
    hidden = kind in ("object that hides it", "function")
    assert len(comm.launches("all_gather")) == (5 if hidden else 8)


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


@pytest.mark.parametrize("stage", STAGES)
def test_a_unit_that_gives_nothing_back(stage):
    check_training(lambda: ReadsStored(Stores), stage)


def test_units_whose_outputs_have_no_gradient_are_given_back_if_none_can_come():
    module = Layers(Layer).requires_grad_(False)
    module.layers[2].requires_grad_(True)
    model, _, _ = in_engine(module, 3)
    loss = model(inputs(0))
    assert gathered_bytes(model) == 0
    loss.backward()


class NamedInputs(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x=x)
        return x.square().sum()


@pytest.mark.parametrize("stage", STAGES)
def test_inputs_by_name(stage):
    check_training(lambda: NamedInputs(Layer), stage)


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


class RecomputedOnce(Recomputed):
    pieces = ((0,), (1,), (2,))


class RecomputedWhole(Recomputed):
    pieces = ((0, 1, 2),)


class Reentrant(Recomputed):
    reentrant = True


class ReentrantOnce(RecomputedOnce):
    reentrant = True


class WithoutModules(Recomputed):
    """The checkpointed function uses a parameter of the model, and calls no module."""

    def __init__(self, make: Callable[[int], nn.Module]) -> None:
        super().__init__(make, count=0)
        self.head = nn.Parameter(torch.randn(WIDTH, WIDTH))

    reentrant = True
    pieces = ((0,),)

    def run(self, x: torch.Tensor, piece: tuple[int, ...]) -> torch.Tensor:
        return torch.tanh(x @ self.head)


@pytest.mark.parametrize(
    "make", [Recomputed, RecomputedOnce, RecomputedWhole, Reentrant, ReentrantOnce, WithoutModules]
)
@pytest.mark.parametrize(("stage", "keep"), STAGES_AND_KEEP)
def test_activation_checkpointing(stage, keep, make):
    check_training(lambda: make(Layer), stage, keep_after_forward=keep)


@pytest.mark.parametrize("stage", STAGES)
def test_activation_checkpointing_that_does_not_stop_early(stage):
    with set_checkpoint_early_stop(False):
        check_training(lambda: Recomputed(Layer), stage)


@pytest.mark.parametrize("stage", STAGES)
def test_reentrant_checkpoints_of_units_that_are_called_without_the_model(stage):
    model, optimizer, comm = in_engine(Layers(Layer), stage, 2)
    x = inputs(0).requires_grad_(True)
    for layer in model.module.layers:
        x = checkpoint(layer, x, use_reentrant=True)
    x.sum().backward()
    optimizer.step()
    kind = "reduce_scatter" if stage else "all_reduce"
    assert comm.launches(kind) == ["layers.2", "layers.1", "layers.0", "root"]


class SameTwice(WithoutModules):
    pieces = ((0,), (0,))


@pytest.mark.parametrize("stage", STAGES)
def test_reentrant_checkpoints_that_share_a_parameter_are_refused(stage):
    model, optimizer, _ = in_engine(SameTwice(Layer), stage)
    with pytest.raises(
        RuntimeError, match=r"head has a second gradient in one backward\(\), as by reentrant"
    ):
        train(model, optimizer)


@pytest.mark.parametrize("stage", STAGES)
def test_checkpoints_that_share_a_parameter_work_without_reentrance(stage):
    class NotReentrant(SameTwice):
        reentrant = False

    check_training(lambda: NotReentrant(Layer), stage)


@pytest.mark.parametrize("stage", STAGES)
def test_the_end_of_a_backward_inside_the_backward_is_not_the_end(stage):
    model, optimizer, comm = in_engine(ReentrantOnce(Layer), stage, 2, reduce_buckets=9)
    ended = 0

    def count() -> None:
        nonlocal ended
        ended += 1

    model._reducer._backward.on_end.append(count)
    train(model, optimizer)
    assert ended == 1
    assert comm.launches("reduce_scatter" if stage else "all_reduce") == [
        "layers.2",
        "layers.1",
        "layers.0",
        "root",
    ]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_the_whole_model_in_a_checkpoint_or_several(stage, reentrant):
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
        optimizer.zero_grad()
        x = inputs(number).requires_grad_(True)
        loss = checkpoint(model, x, use_reentrant=reentrant)
        if not reentrant:
            loss = loss + checkpoint(model, 2 * x, use_reentrant=reentrant)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    check_training(lambda: Layers(Layer), stage, step=step)


@pytest.mark.parametrize("stage", STAGES)
def test_two_forwards_before_one_backward(stage):
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
        optimizer.zero_grad()
        loss = model(inputs(number)) + model(inputs(number + 100))
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    check_training(lambda: Layers(Layer), stage, step=step)
