"""When an optimizer's step is told, with torch's own optimizers; and torch as it was afterwards."""

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from zprof.collectors.program.steps import BACKWARD, OptimizerSteps


class Own(torch.optim.SGD):
    """A class of its own for each test: torch wraps the step of a class once."""


class Outer(torch.optim.Optimizer):
    """Wraps another optimizer, as ZeroRedundancyOptimizer does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Any = None) -> None:
        self.inner.step()


class Watched:
    def __init__(self) -> None:
        self.log: list[Any] = []
        self.steps = OptimizerSteps(
            lambda optimizer: self.log.append(("before", type(optimizer).__name__)),
            self._after,
            lambda: self.log.append("backward"),
        )
        self.on_after: Callable[[], None] = lambda: None

    def _after(self, key: Hashable) -> None:
        self.log.append("all in backward" if key == BACKWARD else "after")
        self.on_after()


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    watched.steps.install()
    yield watched
    watched.steps.remove()


def weight() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return parameter


def test_a_step_is_told_before_and_after(watched: Watched) -> None:
    parameter = weight()
    Own([parameter], lr=1.0).step()
    assert watched.log == [("before", "Own"), "after"]
    assert parameter.tolist() == [0.0, 0.0, 0.0]


def test_an_optimizer_within_another_one_is_not_told(watched: Watched) -> None:
    Outer(torch.optim.Adam([weight()])).step()
    assert watched.log == [("before", "Outer"), "after"]


def test_a_step_that_raises_is_over_but_not_told(watched: Watched) -> None:
    optimizer = torch.optim.LBFGS([weight()])

    def fail() -> float:
        raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program"):
        optimizer.step(fail)
    Own([weight()], lr=1.0).step()
    assert watched.log == [("before", "LBFGS"), ("before", "Own"), "after"]


def test_optimizers_that_step_in_the_backward_are_told_once_at_its_end(watched: Watched) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    each = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: each[parameter].step())
    model(torch.ones(1, 2)).sum().backward()
    assert watched.log == [("before", "SGD")] * 4 + ["all in backward"]
    each.clear()  # a cycle through torch that Python cannot see through


def test_a_backward_without_steps_is_a_moment_to_look(watched: Watched) -> None:
    weight().sum().backward()
    assert watched.log == ["backward"]


def test_hooks_may_come_and_go_when_a_step_is_over(watched: Watched) -> None:
    """torch iterates over the table of hooks while it runs them: within one of them this would raise."""
    handles = []
    watched.on_after = lambda: handles.append(register_optimizer_step_post_hook(lambda *_: None))
    register_optimizer_step_post_hook(lambda *_: None).remove()
    optimizer = Own([weight()], lr=1.0)
    optimizer.step()
    optimizer.step()
    for handle in handles:
        handle.remove()
    assert watched.log.count("after") == 2


def test_torch_is_as_it_was_afterwards() -> None:
    wrap, backward = torch.optim.Optimizer.profile_hook_step, torch.autograd._engine_run_backward
    watched = Watched()
    watched.steps.install()
    kind = type("Late", (torch.optim.SGD,), {"step": lambda self, closure=None: torch.optim.SGD.step(self)})
    optimizer = kind([weight()], lr=1.0)
    wrapped = kind.step
    watched.steps.remove()
    assert torch.optim.Optimizer.profile_hook_step is wrap
    assert torch.autograd._engine_run_backward is backward
    assert kind.step is not wrapped
    assert kind.step.hooked, "torch must not wrap it again"
    optimizer.step()
    assert not watched.log


def test_a_scheduler_that_kept_the_wrapped_step_goes_on(watched: Watched) -> None:
    optimizer = Own([weight()], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    watched.steps.remove()
    optimizer.step()
    scheduler.step()
    assert not watched.log
