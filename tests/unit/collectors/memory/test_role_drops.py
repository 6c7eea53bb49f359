"""A claim ends when its holder lets go, though somebody keeps the tensor, and never by a scan alone."""

from collections.abc import Callable

import pytest
import torch
from memory_window import Window, record, small_model, train_step
from torch import nn
from torch.utils.checkpoint import checkpoint

from zprof.analysis.memory.live_bytes import sum_by_tenant
from zprof.analysis.memory.tables import TENANT_CODES
from zprof.model.tenants import Tenant

GRADIENTS, STATE, PARAMETERS = Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE, Tenant.PARAMETERS


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(8, 64)).square().mean()


def held_at_end(window: Window, tenant: Tenant) -> int:
    """Bytes of a tenant just before the last scan, which is made after the window's end."""
    return int(sum_by_tenant(window.lives.segments, window.lives.timeline.end_ns)[TENANT_CODES[tenant]])


def size(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def drops(window: Window) -> list[str]:
    return window.role.loc[~window.role["gained"].astype(bool), "tenant"].tolist()


def test_a_gradient_that_is_kept_after_it_was_dropped_is_none_afterwards() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept: list[torch.Tensor | None] = []

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


def test_a_gradient_that_nobody_keeps_leaves_no_row() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())

    def body() -> None:
        train_step(model, optimizer)
        train_step(model, optimizer)

    assert drops(record(body, model, optimizer)) == []


def test_a_gradient_that_is_accumulated_stays_one() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body() -> None:
        for _ in range(3):
            loss_of(model).backward()
        optimizer.step()
        loss_of(model)

    window = record(body, model, optimizer)
    assert drops(window) == []
    assert held_at_end(window, GRADIENTS) == size(model)


def test_a_gradient_that_is_put_back_is_one_from_its_backward_on() -> None:
    """DDP's buckets: one storage is the gradient, then nobody's, then the gradient again."""
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    buckets: list[torch.Tensor] = []

    def body() -> None:
        loss_of(model).backward()
        optimizer.step()
        buckets.append(model.weight.grad)
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        model.weight.grad = buckets[0]
        optimizer.step()

    segments = (window := record(body, model, optimizer)).lives.segments
    begins = [t for t, name in window.lives.timeline.phases if name == "backward"]
    block = segments.block[(segments.tenant == TENANT_CODES[GRADIENTS]) & (segments.bytes == 64 * 64 * 4)][0]
    mine = segments.block == block
    pieces = sorted(zip(segments.begin_ns[mine].tolist(), segments.tenant[mine].tolist(), strict=True))
    assert [tenant for _, tenant in pieces] == [
        TENANT_CODES[GRADIENTS], TENANT_CODES[Tenant.TEMPORARY_BUFFERS], TENANT_CODES[GRADIENTS],
    ]  # fmt: skip
    assert pieces[2][0] == begins[1]


def test_a_gradient_shared_by_two_parameters_ends_with_the_second() -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    flat = torch.zeros(2, 64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, layer in enumerate(model):
        layer.weight.grad = flat[number]

    def body() -> None:
        loss_of(model).backward()
        optimizer.step()
        model[0].weight.grad = None
        loss_of(model)

    assert held_at_end(record(body, model, optimizer), GRADIENTS) == flat.nbytes

    def drop_both() -> None:
        body()
        model[1].weight.grad = None
        loss_of(model)

    model[0].weight.grad = flat[0]
    assert held_at_end(record(drop_both, model, optimizer), GRADIENTS) == 0


def test_an_optimizer_that_is_not_asked_now_keeps_its_gradients() -> None:
    """The scan for one optimizer says nothing of the tensors of another."""
    model = nn.Linear(64, 64, bias=False)
    masters = [nn.Parameter(torch.zeros(64, 64)) for _ in range(2)]
    first, second = (torch.optim.SGD([master], lr=0.1) for master in masters)
    for master in masters:
        master.grad = torch.ones(64, 64)

    def body() -> None:
        second.step()
        first.step()
        loss_of(model)

    window = record(body, model, [first, second])
    assert drops(window) == []
    assert held_at_end(window, GRADIENTS) == 2 * 64 * 64 * 4


def test_states_that_are_deleted_and_kept_are_states_no_longer() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    train_step(model, optimizer)
    kept: list[object] = []

    def body() -> None:
        kept.append(dict(optimizer.state))
        optimizer.state.clear()
        loss_of(model)

    assert held_at_end(record(body, model, optimizer), STATE) == 0


def test_states_that_are_replaced_are_counted_once() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    train_step(model, optimizer)
    kept: list[object] = []

    def body() -> None:
        kept.append({key: dict(value) for key, value in optimizer.state.items()})
        optimizer.load_state_dict(optimizer.state_dict())
        for state in optimizer.state.values():
            state["exp_avg"] = state["exp_avg"].clone()
        train_step(model, optimizer)

    window = record(body, model, optimizer)
    steps = 4 * len(list(model.parameters()))
    states = window.lives.states()
    assert states is not None
    assert states[STATE] == 2 * size(model) + steps


@pytest.mark.parametrize("remove", [lambda model: delattr(model, "extra"), lambda model: model.pop_extra()])
def test_a_parameter_that_is_taken_out_of_the_model_is_none(remove: Callable[[nn.Module], None]) -> None:
    class Extended(nn.Linear):
        def __init__(self) -> None:
            super().__init__(64, 64, bias=False)
            self.extra = nn.Linear(64, 64, bias=False)

        def pop_extra(self) -> None:
            self.extra.register_parameter("weight", None)

    model = Extended()
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    kept = [model.extra.weight]

    def body() -> None:
        remove(model)
        loss_of(model).backward()
        optimizer.step()

    window = record(body, model, optimizer)
    assert held_at_end(window, PARAMETERS) == kept[0].nbytes
    assert drops(window) == [PARAMETERS]


def test_a_parameter_with_another_in_its_place_for_a_time_stays_one() -> None:
    """FSDP2 puts the gathered parameter into the module, and the shard back after its use."""
    model = nn.Linear(64, 64, bias=False)
    shard = model.weight
    optimizer = torch.optim.SGD([shard], lr=0.1)

    def body() -> None:
        model.weight = nn.Parameter(shard.detach().clone())
        loss_of(model).backward()
        shard.grad = model.weight.grad
        optimizer.step()
        model.weight = shard

    window = record(body, model, optimizer)
    assert drops(window) == []
    assert held_at_end(window, PARAMETERS) == shard.nbytes


def test_recomputing_the_whole_model_drops_nothing() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body() -> None:
        x = torch.ones(8, 64)
        (
            checkpoint(model, x, use_reentrant=False) + checkpoint(model, x, use_reentrant=False)
        ).sum().backward()
        optimizer.step()

    window = record(body, model, optimizer)
    assert drops(window) == []
    assert held_at_end(window, GRADIENTS) == size(model)
