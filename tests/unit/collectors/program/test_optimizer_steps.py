"""When an optimizer's step is reported, which one ends a step, and torch as it was afterwards."""

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest
import torch

from zprof.collectors.program.steps import BACKWARD, MAX_OTHER_STEPS, OptimizerSteps, StepCycle
from zprof.collectors.torch_private import SCALED_STEP


class Own(torch.optim.SGD):
    """A class of its own: torch wraps the step of a class once."""


class Outer(torch.optim.Optimizer):
    """Wraps another optimizer, as ZeroRedundancyOptimizer does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Any = None) -> None:
        self.inner.step()


class Watched:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.on_after: Callable[[], None] = lambda: None
        self.steps = OptimizerSteps(
            lambda optimizer: self.log.append(type(optimizer).__name__),
            self.after,
            lambda accumulates: self.log.append("backward" if accumulates else "gradient only"),
        )

    def after(self, key: Hashable, skipped: bool) -> None:
        self.log.append("all in backward" if key == BACKWARD else "skipped" if skipped else "after")
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


def test_the_outermost_step_is_reported_before_and_after(watched: Watched) -> None:
    parameter = weight()
    Own([parameter], lr=1.0).step()
    Outer(torch.optim.Adam([weight()])).step()
    assert watched.log == ["Own", "after", "Outer", "after"]
    assert parameter.tolist() == [0.0, 0.0, 0.0]


def test_steps_within_the_backward_are_reported_once_at_its_end(watched: Watched) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    each = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: each[parameter].step())
    model(torch.ones(1, 2)).sum().backward()
    weight().sum().backward()
    torch.autograd.grad(weight().square().sum(), parameter := weight(), allow_unused=True)
    assert parameter.grad is not None
    assert watched.log == ["SGD"] * 4 + ["all in backward", "backward", "gradient only"]
    each.clear()  # a cycle through torch that Python cannot see through


def test_a_step_that_a_gradient_scaler_skips_is_a_step(watched: Watched) -> None:
    scaler, parameter = torch.amp.GradScaler("cpu", init_scale=4.0), weight()
    optimizer = Own([parameter], lr=1.0)
    for gradient in (float("inf"), 4.0):
        parameter.grad = torch.full((3,), gradient)
        scaler.scale(torch.ones(1))
        scaler.step(optimizer)
        scaler.update()
    assert watched.log == ["Own", "skipped", "Own", "after"]
    assert parameter.tolist() == [-1.0, -1.0, -1.0]  # 1 - 4 / 2: the scale was halved


def test_torch_is_as_it_was_afterwards() -> None:
    scaled = torch.amp.GradScaler.__dict__[SCALED_STEP]
    wrap, backward = torch.optim.Optimizer.profile_hook_step, torch.autograd._engine_run_backward
    watched = Watched()
    watched.steps.install()
    kind = type("Late", (torch.optim.SGD,), {"step": lambda self, closure=None: torch.optim.SGD.step(self)})
    optimizer = kind([weight()], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # keeps the wrapped step
    wrapped = kind.step
    watched.steps.remove()
    assert torch.optim.Optimizer.profile_hook_step is wrap
    assert torch.autograd._engine_run_backward is backward
    assert torch.amp.GradScaler.__dict__[SCALED_STEP] is scaled
    assert kind.step is not wrapped
    assert kind.step.hooked  # or torch would wrap it again
    optimizer.step()
    scheduler.step()
    assert not watched.log


def ends(order: str, cycle: StepCycle | None = None) -> str:
    """Return the optimizers after which a step is over."""
    cycle = cycle or StepCycle()
    return "".join(name if cycle.record_step(name) else "." for name in order)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("AAAA", "AAAA"),
        ("ABABAB", "AB.B.B"),  # until B is seen for the first time, A looks like the whole cycle
        ("ABCABC", "ABC..C"),
        ("DDDGDDDG", "DDDG...G"),
        ("BAAA", "BAAA"),
        ("ABAB" + "A" + "AB" + "B" + "AB", "AB.B" + "." + ".B" + "B" + ".B"),  # a GradScaler skips steps
        ("AB" + "A" * MAX_OTHER_STEPS + "AAA", "AB" + "." * MAX_OTHER_STEPS + "AAA"),  # B never steps again
    ],
)
def test_the_optimizer_first_seen_last_closes_the_step(order: str, expected: str) -> None:
    assert ends(order) == expected


def test_a_new_optimizer_changes_nothing_once_the_cycle_is_settled() -> None:
    cycle = StepCycle()
    ends("AA", cycle)
    cycle.freeze_order()
    assert ends("ABAB", cycle) == "A.A."
