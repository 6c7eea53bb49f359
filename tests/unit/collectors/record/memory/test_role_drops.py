"""A claim ends when its holder lets go, though somebody keeps the tensor, and never by a scan alone."""

from collections.abc import Callable

import pytest
import torch
from memory_window import Window, record, small_model, train_step
from torch import nn

from zprof.analysis.memory.live_bytes import sum_by_tenant
from zprof.analysis.memory.tables import TENANT_CODES
from zprof.model.tenants import Tenant

GRADIENTS, STATE, PARAMETERS = Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE, Tenant.PARAMETERS
FULL = 64 * 64 * 4


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(8, 64)).square().mean()


def held_at_end(window: Window, tenant: Tenant) -> int:
    """Return the bytes of a tenant just before the last scan, which is made after the window's end."""
    return int(sum_by_tenant(window.lives.segments, window.lives.timeline.end_ns)[TENANT_CODES[tenant]])


def size(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def drops(window: Window) -> list[str]:
    return list(window.role.texts("tenant").at(~window.role.bools("gained")))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_gradient_that_is_kept_after_it_was_dropped_is_none_afterwards() -> None:
    model = small_model()
    optimizer, kept = sgd(model), list[object]()

    def body() -> None:
        loss_of(model).backward()
        optimizer.step()
        kept.extend(parameter.grad for parameter in model.parameters())
        optimizer.zero_grad()
        loss_of(model)

    window = record(body, model, optimizer)
    assert held_at_end(window, GRADIENTS) == 0
    assert held_at_end(window, Tenant.TEMPORARY_BUFFERS) >= size(model)
    states = window.lives.states()
    assert states is not None
    assert states[GRADIENTS] == size(model)  # when the optimizer began


@pytest.mark.parametrize("cleared", [True, False], ids=["freed", "accumulated"])
def test_a_gradient_that_is_freed_or_accumulated_is_not_dropped(cleared: bool) -> None:
    model = small_model()
    optimizer = sgd(model)

    def body() -> None:
        for _ in range(3):
            loss_of(model).backward()
            if cleared:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.step()
        loss_of(model)

    window = record(body, model, optimizer)
    assert drops(window) == []
    assert held_at_end(window, GRADIENTS) == (0 if cleared else size(model))


@pytest.mark.parametrize(("dropped", "left"), [(1, 2 * FULL), (2, 0)])
def test_a_gradient_shared_by_two_parameters_ends_with_the_second(dropped: int, left: int) -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    flat = torch.zeros(2, 64, 64)
    optimizer = sgd(model)
    for number, layer in enumerate(model):
        layer.weight.grad = flat[number]

    def body() -> None:
        loss_of(model).backward()
        optimizer.step()
        for number in range(dropped):
            model[number].weight.grad = None
            loss_of(model)

    assert held_at_end(record(body, model, optimizer), GRADIENTS) == left


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "deleted"])
def test_states_that_are_replaced_or_deleted_are_states_no_longer(replaced: bool) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    train_step(model, optimizer)
    kept: list[object] = []

    def body() -> None:
        kept.append({key: dict(value) for key, value in optimizer.state.items()})
        if replaced:
            optimizer.load_state_dict(optimizer.state_dict())
            for state in optimizer.state.values():
                state["exp_avg"] = state["exp_avg"].clone()
            train_step(model, optimizer)
        else:
            optimizer.state.clear()
            loss_of(model)

    window = record(body, model, optimizer)
    if replaced:
        states = window.lives.states()
        assert states is not None
        assert states[STATE] == 2 * size(model) + 4 * len(list(model.parameters()))
    else:
        assert held_at_end(window, STATE) == 0


@pytest.mark.parametrize(
    "remove",
    [lambda model: delattr(model, "extra"), lambda model: model.extra.register_parameter("weight", None)],
    ids=["module", "parameter"],
)
def test_a_parameter_that_is_taken_out_of_the_model_is_none(remove: Callable[[nn.Module], None]) -> None:
    model = nn.Linear(64, 64, bias=False)
    model.extra = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    kept = [model.extra.weight]

    def body() -> None:
        remove(model)
        loss_of(model).backward()
        optimizer.step()

    window = record(body, model, optimizer)
    assert held_at_end(window, PARAMETERS) == kept[0].nbytes
    assert drops(window) == [PARAMETERS]
