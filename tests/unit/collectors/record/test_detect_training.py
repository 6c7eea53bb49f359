"""The facts that are detected of a model and its optimizers: what is not certain stays unknown."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from zprof.collectors.record.training import detect_training

SGD, AdamW = torch.optim.SGD, torch.optim.AdamW


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def with_frozen_layer() -> nn.Module:
    frozen = model()
    frozen[0].requires_grad_(False)
    return frozen


def with_two_dtypes() -> nn.Module:
    mixed = model()
    mixed[1].to(torch.bfloat16)
    return mixed


@pytest.mark.parametrize(
    ("make", "parameters", "element_bytes"),
    [
        (model, 40, 4),
        (with_frozen_layer, None, 4),
        (with_two_dtypes, 40, None),
        (lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4)), None, 4),
    ],
    ids=["plain", "frozen", "two dtypes", "lazy"],
)
def test_parameters(make: Callable[[], nn.Module], parameters: int | None, element_bytes: int | None) -> None:
    facts = detect_training(make())
    assert (facts.engine, facts.stage, facts.shard_ranks) == ("pytorch", 0, 1)
    assert (facts.parameters, facts.parameter_bytes, facts.gradient_bytes) == (
        parameters,
        element_bytes,
        element_bytes,
    )
    assert facts.communication_bytes == element_bytes


def stepped(trained: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    trained(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("make", "state_bytes", "counters"),
    [
        (AdamW, 8, 4),
        (partial(AdamW, amsgrad=True), 12, 4),
        (partial(SGD, lr=0.1, momentum=0.9), 4, 0),
        (partial(SGD, lr=0.1), 0, 0),
        (torch.optim.Adagrad, 4, 4),
    ],
)
def test_optimizer_state_after_the_first_step(
    make: Callable[..., torch.optim.Optimizer], state_bytes: int, counters: int
) -> None:
    trained = model()
    facts = detect_training(trained, stepped(trained, make(trained.parameters())))
    assert (facts.optimizer_state_bytes, facts.step_counters) == (state_bytes, counters)


@pytest.mark.parametrize(
    "make",
    [
        lambda trained: [AdamW(trained.parameters())],
        lambda trained: [stepped(trained, AdamW(trained[0].parameters()))],
        lambda trained: [
            stepped(trained, AdamW(trained[0].parameters())),
            stepped(trained, SGD(trained[1].parameters(), 0.1, 0.9)),
        ],
    ],
    ids=["before the first step", "of a part", "of different sizes"],
)
def test_optimizer_state_that_is_not_known_of_all_parameters(make: Callable[..., object]) -> None:
    trained = model()
    assert detect_training(trained, make(trained)).optimizer_state_bytes is None


def test_masters_count_as_state() -> None:
    trained = model().to(torch.bfloat16)
    masters = [parameter.detach().float() for parameter in trained.parameters()]
    for master in masters:
        master.grad = torch.ones_like(master)
    optimizer = AdamW(masters)
    optimizer.step()
    facts = detect_training(trained, optimizer)
    assert (facts.parameter_bytes, facts.optimizer_state_bytes) == (2, 12)


class DistributedDataParallel(nn.Module):
    def __init__(self, module: nn.Module, hooks: list[object]) -> None:
        super().__init__()
        self.module, self._comm_hooks = module, hooks


@pytest.mark.parametrize(("hooks", "size"), [([], 4), ([object()], None)], ids=["DDP", "DDP with a hook"])
def test_bytes_on_the_wire(hooks: list[object], size: int | None) -> None:
    facts = detect_training(DistributedDataParallel(model(), hooks))
    assert (facts.stage, facts.communication_bytes, facts.reduction_bytes) == (0, size, size)
