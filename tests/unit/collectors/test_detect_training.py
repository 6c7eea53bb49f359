"""The facts that are detected of a model and its optimizers: what is not certain stays unknown."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from zprof.collectors.training import detect_training

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


class FSDPModule(nn.Sequential):
    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None

    def _get_fsdp_state(self) -> object:
        return type("State", (), {"_mp_policy": self})


def fsdp(gathered: torch.dtype | None = None, reduced: torch.dtype | None = None) -> nn.Module:
    module = FSDPModule(nn.Linear(4, 4))
    module.param_dtype, module.reduce_dtype = gathered, reduced
    return module


@pytest.mark.parametrize(
    ("wrapped", "stage", "sizes"),
    [
        (DistributedDataParallel(model(), []), 0, (4, 4)),
        (DistributedDataParallel(model(), [object()]), 0, (None, None)),
        (fsdp(), 3, (4, 4)),
        (fsdp(torch.bfloat16), 3, (2, 2)),
        (fsdp(torch.bfloat16, torch.float32), 3, (2, 4)),
        (nn.Sequential(fsdp(torch.bfloat16), fsdp()), 3, (None, None)),
    ],
    ids=["DDP", "DDP with a hook", "FSDP2", "cast", "cast, reduced in full", "units of two kinds"],
)
def test_bytes_on_the_wire(wrapped: nn.Module, stage: int, sizes: tuple[int | None, int | None]) -> None:
    facts = detect_training(wrapped)
    assert facts.stage == stage
    assert (facts.communication_bytes, facts.reduction_bytes) == sizes
