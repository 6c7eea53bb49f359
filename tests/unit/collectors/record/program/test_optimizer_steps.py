"""When an optimizer's step is reported, which one ends a step, and torch as it was afterwards."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

from zprof.collectors.record.program.steps import BACKWARD, OptimizerSteps, StepCycle
from zprof.collectors.record.torch_private import SCALED_STEP


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

    def after(self, key: object, skipped: bool) -> None:
        self.log.append("all in backward" if key is BACKWARD else "skipped" if skipped else "after")
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


class Named:
    """An optimizer of tensors; ``of``: the tensors of another one."""

    def __init__(self, of: "Named | None" = None) -> None:
        self.param_groups = [{"params": [weight()]}] if of is None else of.param_groups


def make_cycle(names: str = "") -> tuple[StepCycle, dict[str, Any]]:
    return StepCycle(), {name: Named() for name in names}


def ends(order: str, cycle: StepCycle, optimizers: Mapping[str, object]) -> str:
    """Return the optimizers after which a step is over."""
    return "".join(name if cycle.record_step(optimizers[name]) else "." for name in order)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("AAAA", "AAAA"),
        ("ABABAB", "AB.B.B"),  # until B is seen for the first time, A looks like the whole cycle
        ("ABCABC", "ABC..C"),
        ("DDDGDDDG", "DDDG...G"),
        ("D" * 9 + "G" + "D" * 9 + "G", "D" * 9 + "G" + "." * 9 + "G"),
        ("BAAA", "BAAA"),
        ("ABAB" + "A" + "AB" + "B" + "AB", "AB.B" + "." + ".B" + "B" + ".B"),  # B does not step once
        ("ABAAAAAAA", "AB....AAA"),  # B never steps again
    ],
)
def test_the_optimizer_first_seen_last_closes_the_step(order: str, expected: str) -> None:
    assert ends(order, *make_cycle("ABCDG")) == expected


def test_a_new_optimizer_changes_nothing_once_the_cycle_is_settled() -> None:
    cycle, optimizers = make_cycle("AB")
    ends("AA", cycle, optimizers)
    cycle.freeze_order()
    assert ends("ABAB", cycle, optimizers) == "A.A."
    assert not cycle.uncertain_steps


def test_52_optimizers_are_one_step() -> None:
    names = "".join(map(chr, range(ord("A"), ord("A") + 52)))
    cycle, optimizers = make_cycle(names)
    ends(names * 2, cycle, optimizers)
    assert cycle.has_repeated
    cycle.freeze_order()
    assert ends(names * 3, cycle, optimizers) == ("." * 51 + names[-1]) * 3
    without_last = names[:-1] + names  # the last layer is frozen for a step, and both are one
    assert ends(without_last + names, cycle, optimizers).strip(".") == names[-1] + "." * 51 + names[-1]


@pytest.mark.parametrize("is_alive", [True, False])
@pytest.mark.parametrize("has_same_tensors", [True, False])
def test_an_optimizer_that_takes_the_place_of_another_ends_each_of_its_steps(
    is_alive: bool, has_same_tensors: bool
) -> None:
    cycle, optimizers = make_cycle("T")
    ends("TT", cycle, optimizers)
    cycle.freeze_order()
    ends("TT", cycle, optimizers)
    former = optimizers["T"] if is_alive else optimizers.pop("T")
    optimizers["R"] = Named(former if has_same_tensors else None)
    former.cycle = former  # only the garbage collector can delete it
    del former
    is_known = has_same_tensors or not is_alive
    assert ends("RRRRR", cycle, optimizers) == ("RRRRR" if is_known else "..RRR")
    assert (cycle.replaced_steps, cycle.uncertain_steps) == (([4], []) if is_known else ([], [4]))


def test_each_of_several_new_optimizers_takes_the_place_of_the_one_with_its_tensors() -> None:
    cycle, optimizers = make_cycle("ABC")
    ends("ABCABC", cycle, optimizers)
    cycle.freeze_order()
    optimizers |= {"X": Named(optimizers["A"]), "Y": Named(optimizers["B"]), "Z": Named(optimizers["C"])}
    assert ends("XYZXYZ", cycle, optimizers) == "..Z..Z"


def test_an_id_that_is_used_again_is_another_optimizer() -> None:
    cycle, optimizers = make_cycle("AB")
    ends("ABAB", cycle, optimizers)
    cycle.freeze_order()
    for _ in range(100):
        former = id(optimizers.pop("A"))
        optimizers["A"] = Named()
        if id(optimizers["A"]) == former:
            break
    assert ends("ABAB", cycle, optimizers) == ".B.B"
    assert len(cycle.replaced_steps) == 1
