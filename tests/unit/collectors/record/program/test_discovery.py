"""The trained models and optimizers of a program, found among Python's objects."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from zprof.collectors.record.program.discovery import find_trained


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class Generator(nn.Sequential):
    pass


class Critic(nn.Sequential):
    pass


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_the_root_is_the_wrapper_and_copies_are_not_trained() -> None:
    model = Wrapper(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    copies = AveragedModel(model), copy.deepcopy(model)
    found = find_trained([optimizer_of(model)])
    assert found.models == (model,)
    assert found.model() is model
    assert not found.by_size
    del copies


def test_several_roots_are_one_model_by_their_names_the_largest_first() -> None:
    small, large, twin = Generator(nn.Linear(2, 2)), Critic(nn.Linear(9, 9)), Generator(nn.Linear(3, 3))
    found = find_trained([optimizer_of(model) for model in (small, large, twin)])
    assert found.models == (large, twin, small)
    together = found.model()
    assert together is not None
    assert [name for name, _ in together.named_children()] == ["Critic", "Generator", "Generator2"]


def test_the_largest_model_is_taken_where_copies_are_optimized() -> None:
    model = Wrapper(nn.Linear(500, 500))
    masters = [parameter.detach().clone() for parameter in model.parameters()]
    found = find_trained([torch.optim.SGD(masters, lr=0.1)])
    assert (found.models, found.by_size) == ((model,), True)
