"""The tenants that a memory window finds in a program, with the sizes of its tensors as truth."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from memory_window import Window, record, small_model, train_step
from torch import nn
from torch.utils.checkpoint import checkpoint

from zprof.collectors.record.memory.collector import MemoryCollector
from zprof.collectors.record.schedule import MemoryMode
from zprof.model.gap_texts import make_gap
from zprof.model.tenants import Tenant

PARAMETERS, GRADIENTS, STATE = Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE
COMMUNICATION = Tenant.COMMUNICATION_BUFFERS
FULL = 64 * 64 * 4


def size_of(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def phases(window: Window) -> list[str]:
    return list(window.mark.texts("name").at(window.mark.texts("kind").equals("phase")))


def states(window: Window) -> dict[Tenant, int]:
    found = window.lives.states()
    assert found is not None
    return {tenant: size for tenant, size in found.items() if size}


@pytest.mark.parametrize("warm", [True, False], ids=["states are there", "states are made"])
@pytest.mark.parametrize("mode", list(MemoryMode))
def test_states_are_those_of_the_tensors(mode: MemoryMode, warm: bool) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    if warm:
        train_step(model, optimizer)
    body = lambda: train_step(model, optimizer)  # noqa: E731
    window = record(body, model, optimizer, MemoryCollector(model, optimizer, mode))
    steps = 4 * len(list(model.parameters()))
    size = size_of(model)
    assert states(window) == {PARAMETERS: size, GRADIENTS: size, STATE: 2 * size + steps}
    assert phases(window) == ["forward", "backward", "optimizer", "other"]


def test_a_step_of_a_small_model_row_by_row() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    train_step(model, optimizer)
    window = record(lambda: train_step(model, optimizer), model, optimizer)
    assert Counter(zip(window.role.texts("tenant"), window.role.texts("sub"), strict=True)) == {
        ("optimizer_state", "state"): 18,
        ("optimizer_state", "master"): 6,
        ("activations", "saved"): 10,
        ("parameters", "weight"): 6,
        ("gradients", "unreduced"): 6,
        ("gradients", "grad"): 6,
    }
    inside = window.storages()
    assert (len(inside), int(inside.ints("bytes").sum())) == (35, 339_976)
    assert Counter(inside.texts("phase")) == {"backward": 13, "optimizer": 12, "forward": 9, "other": 1}
    assert inside.known("freed_ns").all()
    backward = inside.at(
        inside.texts("operator").equals("aten.mm.default") & inside.texts("phase").equals("backward")
    )
    assert set(backward.texts("module")) == {"0", "2"}


def test_a_resized_storage_begins_a_new_life() -> None:
    tensor, x = torch.empty(0), torch.zeros(64)

    def body() -> None:
        for size in (400, 0, 800):
            tensor.untyped_storage().resize_(size)
        x.resize_(256)

    inside = record(body).storages()
    assert inside.ints("bytes").tolist() == [400, 800, 1024]
    assert inside.known("freed_ns").tolist() == [True, False, False]


def test_memory_of_numpy_is_foreign() -> None:
    keep: list[torch.Tensor] = []
    window = record(lambda: keep.append(torch.from_numpy(np.zeros(1000)).view(10, 100)))
    assert window.alloc.ints("bytes")[window.alloc.texts("source").equals("foreign")].tolist() == [8000]


def test_recomputing_is_a_phase_of_its_own() -> None:
    model, x = small_model(), torch.randn(8, 64)
    window = record(lambda: checkpoint(model, x, use_reentrant=False).sum().backward(), model)
    assert phases(window) == ["forward", "backward", "recompute", "backward"]


def test_masters_are_optimizer_state_and_their_gradients_gradients() -> None:
    model = nn.Linear(64, 64, bias=False).to(torch.bfloat16)
    master = model.weight.detach().float().requires_grad_()
    optimizer = torch.optim.SGD([master], lr=0.1)

    def body() -> None:
        model(torch.randn(8, 64, dtype=torch.bfloat16)).sum().backward()
        assert model.weight.grad is not None
        master.grad = model.weight.grad.float()
        optimizer.step()

    window = record(body, model, optimizer)
    assert states(window) == {PARAMETERS: FULL // 2, GRADIENTS: FULL // 2 + FULL, STATE: FULL}


def test_buffers_and_tied_weights_count_once() -> None:
    model = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 32, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("mask", torch.ones(100))
    window = record(lambda: model(torch.arange(8)).sum().backward(), model)
    assert window.lives.peak().tenants[PARAMETERS] == 32 * 16 * 4 + 400
    assert states(window)[PARAMETERS] == 32 * 16 * 4


@pytest.mark.parametrize("mode", list(MemoryMode))
def test_a_parameter_that_is_gathered_for_its_use_is_communication(mode: MemoryMode) -> None:
    model = nn.Linear(64, 64, bias=False)
    model.register_parameter("shard", nn.Parameter(model.weight.detach()[:32].clone()))
    storage = model.weight.untyped_storage()
    storage.resize_(0)
    model.register_forward_pre_hook(lambda *_: storage.resize_(FULL) and None)

    def body() -> None:
        with torch.no_grad():
            model(torch.zeros(4, 64))
        storage.resize_(0)

    window = record(body, model, collector=MemoryCollector(model, None, mode))
    assert window.lives.peak().tenants[PARAMETERS] == FULL // 2
    assert window.lives.peak().tenants[COMMUNICATION] == FULL
    assert window.claimed("gathered_param").known("freed_ns").all()


@pytest.mark.parametrize("mode", list(MemoryMode))
def test_a_parameter_that_is_swapped_for_its_use_is_communication(mode: MemoryMode) -> None:
    model = nn.Linear(64, 64, bias=False)
    model.weight.data = torch.empty(1).expand(64, 64)

    def swap(data: Callable[[], torch.Tensor]) -> Callable[..., None]:
        return lambda *_: setattr(model.weight, "data", data())

    model.register_forward_pre_hook(swap(lambda: torch.zeros(64, 64)))
    model.register_forward_hook(swap(lambda: torch.empty(1).expand(64, 64)))

    def body() -> None:
        with torch.no_grad():
            model(torch.zeros(4, 64))

    window = record(body, model, collector=MemoryCollector(model, None, mode))
    assert window.lives.peak().tenants[COMMUNICATION] == FULL


@pytest.mark.parametrize("known", [True, False])
def test_without_the_model_the_optimized_tensors_are_parameters_with_a_gap(known: bool) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    train_step(model, optimizer)
    window = record(lambda: train_step(model, optimizer), None, optimizer if known else None)
    assert window.gaps == [make_gap("model_not_given")]
    size = size_of(model)
    assert states(window)[PARAMETERS] == size
    assert states(window)[STATE] == 2 * size + 4 * len(list(model.parameters()))


class Unwilling(torch.Tensor):
    @property
    def layout(self) -> torch.layout:
        raise RuntimeError("do not ask")


def test_tensors_that_refuse_questions_are_one_gap() -> None:
    held = [torch.ones(10).as_subclass(Unwilling) for _ in range(3)]
    model = small_model()
    window = record(lambda: None, model)
    assert [gap.reason for gap in window.gaps] == ["do not ask"]
    assert window.lives.peak().tenants[PARAMETERS] == size_of(model)
    assert len(held) == 3


@pytest.mark.parametrize("mode", list(MemoryMode))
def test_no_object_of_the_program_is_kept_alive(mode: MemoryMode) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    collector = MemoryCollector(model, optimizer, mode)
    collector.start()
    tensor = torch.ones(10) * 2
    gone = weakref.ref(tensor.untyped_storage())
    del tensor
    assert gone() is None
    train_step(model, optimizer)
    collector.stop()
    references = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert set(collector.tables()) >= {"alloc", "role"}
