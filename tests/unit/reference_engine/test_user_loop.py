"""What a user's loop may do: fail and go on, evaluate, edit gradients, go back twice; and what is refused."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pitfall_models import (
    STAGES,
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

from zprof.reference_engine import ZeroModel

Optimizer = torch.optim.Optimizer


class Failing(Layers):
    """Fails when told to: in the forward after its layers, or in the backward of one."""

    fail = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate((self.first, *self.layers)):
            x = layer(x)
            if self.fail == "backward" and index == 2:
                x.register_hook(self.planted)
        if self.fail == "forward":
            self.planted()
        return x.square().sum()

    def planted(self, *_: torch.Tensor) -> None:
        raise KeyError("planted")


def failing_in(where: str) -> Callable[..., float]:
    def step(model: nn.Module, optimizer: Optimizer, number: int) -> float:
        module = model.module if isinstance(model, ZeroModel) else model
        if number == 1:
            module.fail = where
            with pytest.raises(KeyError, match="planted"):
                train(model, optimizer, number)
            module.fail = ""
        return train(model, optimizer, number)

    return step


def go_back(make_loss: Callable[[nn.Module, int], torch.Tensor]) -> Callable[..., float]:
    def step(model: nn.Module, optimizer: Optimizer, number: int) -> float:
        optimizer.zero_grad()
        loss = make_loss(model, number)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def evaluate_between(model: nn.Module, number: int) -> torch.Tensor:
    loss = model(inputs(number))
    with torch.no_grad():
        model(inputs(number + 100))
    return loss


def evaluate_around(model: nn.Module, optimizer: Optimizer, number: int) -> float:
    with torch.inference_mode():
        before = model(inputs(number))
        assert not before.requires_grad
    assert train(model, optimizer, number) == pytest.approx(float(before))
    with torch.no_grad():
        loss = float(model(inputs(number)))
    assert not isinstance(model, ZeroModel) or model.facts.stage < 3 or gathered_bytes(model) == 0
    return loss


def keep_the_graph(model: nn.Module, optimizer: Optimizer, number: int) -> float:
    optimizer.zero_grad()
    loss = model(inputs(number))
    loss.backward(retain_graph=True)
    if isinstance(model, ZeroModel):
        loss.backward()  # the mean of two equal micro-batches is one of them
    optimizer.step()
    return float(loss.detach())


def edit_gradients(model: nn.Module, optimizer: Optimizer, number: int) -> float:
    optimizer.zero_grad()
    loss = model(inputs(number))
    loss.backward()
    sharded = isinstance(model, ZeroModel) and model.facts.stage >= 2
    for holder in model.shards if sharded else model.parameters():
        if holder.grad is not None:
            holder.grad.clamp_(-0.1, 0.1)
    optimizer.step()
    return float(loss.detach())


def drop_gradients(model: nn.Module, optimizer: Optimizer, number: int) -> float:
    loss = train(model, optimizer, number)
    (model.module if isinstance(model, ZeroModel) else model).zero_grad(set_to_none=True)
    return loss


STEPS: dict[str, tuple[Callable[..., float], dict[str, Any]]] = {
    "fails in forward": (failing_in("forward"), {}),
    "fails in backward": (failing_in("backward"), {}),
    "two forwards": (go_back(lambda model, n: model(inputs(n)) + model(inputs(n + 100))), {}),
    "evaluates between": (go_back(evaluate_between), {"keep_after_forward": "all"}),
    "evaluates around": (evaluate_around, {}),
    "keeps the graph": (keep_the_graph, {"micro_batches": 2}),
    "edits gradients": (edit_gradients, {}),
    "drops gradients": (drop_gradients, {}),
    "recomputes the model": (go_back(lambda model, n: checkpoint(model, inputs(n), use_reentrant=False)), {}),
    "recomputes it reentrantly": (
        go_back(lambda model, n: checkpoint(model, inputs(n).requires_grad_(), use_reentrant=True)),
        {},
    ),
}


@pytest.mark.parametrize(("name", "stage"), on_stages(STEPS))
def test_odd_steps_train_as_they_do_without_the_engine(name, stage):
    step, settings = STEPS[name]
    check_training(Failing, stage, step=step, **settings)


@pytest.mark.parametrize("stage", STAGES)
def test_after_an_exception_every_launch_is_still_waited_for(stage):
    module = Failing()
    model, optimizer, comm = in_engine(module, stage, 2)
    module.fail = "backward"
    with pytest.raises(KeyError, match="planted"):
        train(model, optimizer)
    module.fail = ""
    train(model, optimizer)
    model.synchronize()
    launched = sorted(event.removeprefix("launch ") for event in comm.events if event.startswith("launch"))
    waited = sorted(event.removeprefix("wait ") for event in comm.events if event.startswith("wait"))
    assert launched == waited


@pytest.mark.parametrize("stage", STAGES)
def test_a_forward_that_failed_does_not_delay_the_next_backward(stage):
    module = Failing()
    module.layers[2].requires_grad_(False)
    model, optimizer, _ = in_engine(module, stage, 2)
    module.fail = "forward"
    with pytest.raises(KeyError, match="planted"):
        model(inputs(0))
    module.fail = ""
    there: list[bool] = []
    frozen = module.layers[2].scale
    hook = lambda _: there.append(frozen.untyped_storage().nbytes() > 0)  # noqa: E731
    module.layers[0].scale.register_hook(hook)
    train(model, optimizer)
    assert there == [stage < 3]


def gradient_of_input(loss: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, x, retain_graph=True)[0]


def backward_to_input(loss: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    loss.backward(inputs=[x], retain_graph=True)
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize(
    ("stage", "take"), [(0, backward_to_input), (2, gradient_of_input), (3, backward_to_input)]
)
def test_the_gradient_of_an_input_is_no_backward_of_the_step(stage, take):
    taken: list[torch.Tensor] = []

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
        optimizer.zero_grad()
        taken.append(take(model(x := inputs(number + 7).requires_grad_()), x))  # of a graph of its own
        loss = model(x := inputs(number).requires_grad_())
        taken.append(take(loss, x))  # of the same graph
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    check_training(Layers, stage, step=step)
    half = len(taken) // 2
    theirs, mine = taken[0::4] + taken[1::4], taken[2::4] + taken[3::4]
    assert len(mine) == half
    for got, want in zip(mine, theirs, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("stage", STAGES)
def test_the_gradient_of_an_input_reduces_nothing_and_gives_memory_back(stage):
    model, optimizer, comm = in_engine(Layers(), stage, 2)
    train(model, optimizer)
    optimizer.zero_grad()
    comm.take_events()
    gradient_of_input(model(x := inputs(1).requires_grad_()), x)
    assert comm.launches("reduce_scatter") == comm.launches("all_reduce") == []
    assert stage < 3 or gathered_bytes(model) == 0
    with pytest.raises(RuntimeError, match="backward"):
        optimizer.step()


def step_twice(model: ZeroModel, optimizer: Optimizer) -> None:
    train(model, optimizer)
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()


def go_back_twice(model: ZeroModel, optimizer: Optimizer) -> None:
    model(inputs(0)).backward()
    model(inputs(1)).backward()


def use_an_old_graph(model: ZeroModel, optimizer: Optimizer) -> None:
    loss = model(inputs(0))
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()


def take_second_derivatives(model: ZeroModel, optimizer: Optimizer) -> None:
    model(inputs(0)).backward(create_graph=True)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("work", "word"),
    [
        (step_twice, "backward"),
        (go_back_twice, "micro_batches is 1"),
        (use_an_old_graph, "inplace"),
        (take_second_derivatives, "create_graph"),
    ],
)
def test_what_would_be_wrong_is_refused_and_training_goes_on(stage, work, word):
    model, optimizer, _ = in_engine(Layers(), stage)
    with pytest.raises(RuntimeError, match=word):
        work(model, optimizer)
    assert train(model, optimizer) > 0


@pytest.mark.parametrize(("stage", "value"), [(0, math.inf), (1, math.nan), (2, math.inf), (3, math.nan)])
def test_without_clipping_inf_and_nan_pass_to_the_weights_that_they_belong_to(stage, value):
    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        gradient[0, 1] = value
        return gradient

    def make() -> nn.Module:
        module = Layers()
        module.layers[1].linear.weight.register_hook(spoil)
        return module

    reference, module = make(), make()
    model, optimizer, _ = in_engine(module, stage)
    train(model, optimizer)
    train(reference, torch.optim.AdamW(reference.parameters(), lr=1e-2, weight_decay=0.01))
    weights = model.state_dict()
    for name, expected in reference.state_dict().items():
        torch.testing.assert_close(weights[name], expected, equal_nan=True)
    bad = {name: int((~torch.isfinite(weight)).sum()) for name, weight in weights.items()}
    assert {name: count for name, count in bad.items() if count} == {"layers.1.linear.weight": 1}
