"""How long the engine lives, and what copies, pickles and later changes of the model do to it."""

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator

import pytest
import torch
from fake_comm import FakeComm
from pitfall_models import STAGES, Layer, Layers, in_engine, inputs, train
from torch import nn

from zprof.reference_engine import ZeroConfig, zero


@pytest.fixture
def no_collector() -> Iterator[None]:
    in_engine(Layers(Layer), 0)  # what torch does once, at the first optimizer
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.usefixtures("no_collector")
def test_memory_goes_back_without_the_cycle_collector(stage):
    model, optimizer, _ = in_engine(Layers(Layer), stage)
    train(model, optimizer)
    loss = model(inputs(0))
    units = [weakref.ref(unit) for unit in model.units]
    storages = [weakref.ref(unit.full) for unit in model.units]
    del model, optimizer, loss
    assert [reference() for reference in units + storages] == [None] * 8


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_module_outlives_its_engine(stage):
    module = Layers(Layer)
    model, optimizer, comm = in_engine(module, stage)
    train(model, optimizer)
    expected = float(model(inputs(1)).detach())
    comm.take_events()
    del model, optimizer
    loss = module(inputs(1))
    assert float(loss.detach()) == expected
    loss.backward()
    assert comm.events == []


def test_in_stage_3_the_values_go_with_the_engine():
    module = Layers(Layer)
    model, optimizer, _ = in_engine(module, 3)
    del model, optimizer
    with pytest.raises(RuntimeError, match="engine"):
        module(inputs(0))


@pytest.mark.parametrize("stage", [0, 3])
def test_copies_and_pickles_of_the_engine_are_refused(stage):
    model, _, _ = in_engine(Layers(Layer), stage)
    for take in (copy.deepcopy, pickle.dumps, lambda model: pickle.dumps(model.module), nn.Module.half):
        with pytest.raises(RuntimeError, match=r"zero\(\)|state_dict\(\)"):
            take(model)
    with pytest.raises(ValueError, match="assign"):
        model.load_state_dict(model.state_dict(), assign=True)
    if stage == 3:
        with pytest.raises(RuntimeError, match="unit"):
            copy.deepcopy(model.module)


@pytest.mark.parametrize("stage", [1, 3])
def test_a_copy_of_the_module_is_a_plain_module(stage):
    model, optimizer, comm = in_engine(Layers(Layer), stage)
    train(model, optimizer)
    with model.gathered() as module:
        twin = copy.deepcopy(module)
    comm.take_events()
    expected = twin(inputs(1))
    expected.backward()
    assert comm.events == []
    assert all(parameter.grad is not None for parameter in twin.parameters())
    assert torch.equal(model(inputs(1)), expected)
    zero(twin, ZeroConfig(stage=stage), FakeComm())


def add(module: Layers) -> None:
    module.layers[0].late = nn.Linear(2, 2)


def replace(module: Layers) -> None:
    module.first = nn.Linear(4, 4)


def unfreeze(module: Layers) -> None:
    module.layers[1].requires_grad_(True)


@pytest.mark.parametrize(
    ("change", "name"),
    [(add, "layers.0.late.weight"), (replace, "first.weight"), (unfreeze, "layers.1.scale")],
)
@pytest.mark.parametrize("stage", [1, 3])
def test_a_parameter_that_came_after_the_engine_is_refused(stage, change, name):
    module = Layers(Layer)
    module.layers[1].requires_grad_(False)
    model, optimizer, _ = in_engine(module, stage)
    train(model, optimizer)
    change(module)
    with pytest.raises(RuntimeError, match=f"^[^\n]*{name}[^\n]*$"):
        train(model, optimizer)


@pytest.mark.parametrize("stage", [0, 3])
def test_buffers_are_those_of_rank_0_once_and_never_moved_again(stage):
    class Buffers(Layers):
        def __init__(self) -> None:
            super().__init__(Layer)
            self.register_buffer("mask", torch.tensor([True, False, True, True]))
            self.register_buffer("count", torch.tensor(3))
            self.register_buffer("turned", torch.randn(4, 2).t())
            self.register_buffer("wide", torch.randn(1, 1).expand(3, 3))
            self.register_buffer("nothing", torch.zeros(0))
            self.register_buffer("table", torch.arange(2.0), persistent=False)

    comm = FakeComm(2)
    module = Buffers()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    model, optimizer = zero(module, ZeroConfig(stage=stage, dtype=torch.bfloat16), comm)
    assert comm.launches("broadcast").count("buffers") == 6
    comm.take_events()
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, before[name])
        assert buffer.dtype == before[name].dtype
    optimizer.zero_grad()
    model(inputs(0).bfloat16()).backward()
    optimizer.step()
    assert comm.launches("broadcast") == []
