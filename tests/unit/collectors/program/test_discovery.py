"""What a program trains, found among Python's objects."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from zprof.collectors.program.discovery import find_idle_optimizers, find_trained


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class Generator(nn.Sequential):
    pass


class Critic(nn.Sequential):
    pass


def test_the_root_is_the_wrapper() -> None:
    model = Wrapper(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    found = find_trained([torch.optim.SGD(model.parameters(), lr=0.1)])
    assert found.models == (model,)
    assert found.model() is model
    assert not found.by_size


def test_a_compiled_model_is_found_by_its_wrapper() -> None:
    model = nn.Linear(3, 3)
    compiled = torch.compile(model, backend="eager")
    assert find_trained([torch.optim.SGD(model.parameters(), lr=0.1)]).models == (compiled,)


def test_a_copy_that_is_not_trained_is_none_of_it() -> None:
    model = nn.Linear(3, 3)
    others = AveragedModel(model), copy.deepcopy(model)
    assert find_trained([torch.optim.SGD(model.parameters(), lr=0.1)]).models == (model,)
    del others


def test_several_roots_are_one_model_by_their_names_the_largest_first() -> None:
    small, large, twin = Generator(nn.Linear(2, 2)), Critic(nn.Linear(9, 9)), Generator(nn.Linear(3, 3))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (small, large, twin)]
    found = find_trained(optimizers)
    assert found.models == (large, twin, small)
    together = found.model()
    assert together is not None
    assert [name for name, _ in together.named_children()] == ["Critic", "Generator", "Generator2"]
    assert list(small._modules) == ["0"], "nothing was changed"


def test_where_copies_are_optimized_the_largest_model_is_taken() -> None:
    """An engine that optimizes fp32 masters of its own."""
    model = Wrapper(nn.Linear(500, 500))
    masters = [parameter.detach().clone() for parameter in model.parameters()]
    found = find_trained([torch.optim.SGD(masters, lr=0.1)])
    assert (found.models, found.by_size) == ((model,), True)


def test_the_optimizer_inside_of_another_is_found_by_its_states() -> None:
    model = nn.Linear(3, 3)
    inner = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert not any(found is inner for found in find_trained([outer]).optimizers)
    inner.step()
    assert any(found is inner for found in find_trained([outer]).optimizers)


def test_an_idle_optimizer_has_parameters_of_its_own() -> None:
    model, other = nn.Linear(3, 3), nn.Linear(3, 3)
    stepped, wrapper = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    waiting = torch.optim.SGD(other.parameters(), lr=0.1)
    idle = find_idle_optimizers([stepped])
    assert any(found is waiting for found in idle)
    assert not any(found is wrapper or found is stepped for found in idle)
