"""What a user's loop may do: fail and go on, evaluate, edit gradients, go back twice; and what is refused."""

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


def module_of(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, ZeroModel) else model


def failing_in(where: str) -> Callable[..., float]:
    def step(model: nn.Module, optimizer: Optimizer, number: int) -> float:
        if number == 1:
            module_of(model).fail = where
            with pytest.raises(KeyError, match="planted"):
                train(model, optimizer, number)
            module_of(model).fail = ""
        return train(model, optimizer, number)

    return step


def step_with(
    make_loss: Callable[[nn.Module, int], torch.Tensor] = lambda model, number: model(inputs(number)),
    go_back: Callable[[nn.Module, torch.Tensor], object] = lambda model, loss: loss.backward(),
) -> Callable[..., float]:
    def step(model: nn.Module, optimizer: Optimizer, number: int) -> float:
        optimizer.zero_grad()
        loss = make_loss(model, number)
        go_back(model, loss)
        optimizer.step()
        return float(loss.detach())

    return step


def evaluate_around(model: nn.Module, number: int) -> torch.Tensor:
    with torch.inference_mode():
        before = model(inputs(number))
    loss = model(inputs(number))
    with torch.no_grad():
        assert model(inputs(number)) == before == loss
    return loss


def go_back_twice(model: nn.Module, loss: torch.Tensor) -> None:
    loss.backward(retain_graph=True)
    if isinstance(model, ZeroModel):
        loss.backward()  # the mean of two equal micro-batches is one of them


def edit_gradients(model: nn.Module, loss: torch.Tensor) -> None:
    loss.backward()
    sharded = isinstance(model, ZeroModel) and model.facts.stage >= 2
    for holder in model.shards if sharded else model.parameters():
        if holder.grad is not None:
            holder.grad.clamp_(-0.1, 0.1)


def drop_gradients(model: nn.Module, number: int) -> torch.Tensor:
    module_of(model).zero_grad(set_to_none=True)
    return model(inputs(number))


def recompute(reentrant: bool) -> Callable[[nn.Module, int], torch.Tensor]:
    return lambda model, n: checkpoint(model, inputs(n).requires_grad_(), use_reentrant=reentrant)


STEPS: dict[str, tuple[Callable[..., float], dict[str, Any]]] = {
    "fails in forward": (failing_in("forward"), {}),
    "fails in backward": (failing_in("backward"), {}),
    "two forwards": (step_with(lambda model, n: model(inputs(n)) + model(inputs(n + 100))), {}),
    "evaluates": (step_with(evaluate_around), {"keep_after_forward": "all"}),
    "keeps the graph": (step_with(go_back=go_back_twice), {"micro_batches": 2}),
    "edits gradients": (step_with(go_back=edit_gradients), {}),
    "drops gradients": (step_with(drop_gradients), {}),
    "recomputes the model": (step_with(recompute(False)), {}),
    "recomputes it reentrantly": (step_with(recompute(True)), {}),
}


@pytest.mark.parametrize(("name", "stage"), on_stages(STEPS))
def test_odd_steps_train_as_they_do_without_the_engine(name, stage):
    step, settings = STEPS[name]
    check_training(Failing, stage, step=step, **settings)


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
    return x.grad


@pytest.mark.parametrize(
    ("stage", "take"), [(0, backward_to_input), (2, gradient_of_input), (3, backward_to_input)]
)
def test_the_gradient_of_an_input_is_no_backward_of_the_step(stage, take):
    def step(model: nn.Module, optimizer: Optimizer, number: int) -> float:
        optimizer.zero_grad()
        x = inputs(number).requires_grad_()
        of_another_graph = take(model(x), x).clone()
        x.grad = None
        loss = model(x)
        torch.testing.assert_close(take(loss, x), of_another_graph)
        loss.backward()
        optimizer.step()
        return float(of_another_graph.sum())

    check_training(Layers, stage, step=step)


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


def skip_a_step(model: ZeroModel, optimizer: Optimizer) -> None:
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
        (skip_a_step, "micro_batches is 1"),
        (use_an_old_graph, "inplace"),
        (take_second_derivatives, "create_graph"),
    ],
)
def test_what_would_be_wrong_is_refused_and_training_goes_on(stage, work, word):
    model, optimizer, _ = in_engine(Layers(), stage)
    with pytest.raises(RuntimeError, match=word):
        work(model, optimizer)
    assert train(model, optimizer) > 0
