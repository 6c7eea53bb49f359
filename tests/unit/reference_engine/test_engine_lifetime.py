"""How long the engine lives, and what copies, pickles and later changes of the model do to it."""

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator

import pytest
import torch
from fake_comm import FakeComm
from pitfall_models import STAGES, Layers, in_engine, inputs, train
from torch import nn

from zprof.reference_engine import ZeroConfig, zero


@pytest.fixture
def no_collector() -> Iterator[None]:
    in_engine(Layers(), 0)  # what torch does once, at the first optimizer
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.usefixtures("no_collector")
def test_memory_goes_back_without_the_cycle_collector(stage):
    model, optimizer, _ = in_engine(Layers(), stage)
    train(model, optimizer)
    loss = model(inputs(0))
    units = [weakref.ref(unit) for unit in model.units]
    storages = [weakref.ref(unit.full) for unit in model.units]
    del model, optimizer, loss
    assert [reference() for reference in units + storages] == [None] * 8


@pytest.mark.parametrize("stage", STAGES)
def test_the_module_outlives_its_engine_but_in_stage_3(stage):
    module = Layers()
    model, optimizer, comm = in_engine(module, stage)
    train(model, optimizer)
    expected = float(model(inputs(1)).detach())
    comm.take_events()
    del model, optimizer
    if stage == 3:
        with pytest.raises(RuntimeError, match="engine"):
            module(inputs(1))
        return
    loss = module(inputs(1))
    assert float(loss.detach()) == expected
    loss.backward()
    assert comm.events == []
    model, optimizer, comm = in_engine(module, 3, 2)  # it can be given to another
    train(model, optimizer, 1)
    assert len(comm.launches("reduce_scatter")) == 4


@pytest.mark.parametrize("stage", [0, 3])
def test_the_engine_is_not_copied_and_its_module_becomes_a_plain_one(stage):
    model, optimizer, comm = in_engine(Layers(), stage)
    train(model, optimizer)
    for take in (copy.deepcopy, pickle.dumps, lambda model: pickle.dumps(model.module), nn.Module.half):
        with pytest.raises(RuntimeError, match=r"zero\(\)|state_dict\(\)"):
            take(model)
    with pytest.raises(ValueError, match="assign"):
        model.load_state_dict(model.state_dict(), assign=True)
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
    module = Layers()
    module.layers[1].requires_grad_(False)
    model, optimizer, _ = in_engine(module, stage)
    train(model, optimizer)
    change(module)
    with pytest.raises(RuntimeError, match=f"^[^\n]*{name}[^\n]*$"):
        train(model, optimizer)


def test_buffers_are_those_of_rank_0_once_and_never_moved_again():
    module = Layers()
    buffers = {
        "mask": torch.tensor([True, False]),
        "count": torch.tensor(3),
        "turned": torch.randn(4, 2).t(),
        "wide": torch.randn(1, 1).expand(3, 3),
        "nothing": torch.zeros(0),
    }
    for name, buffer in buffers.items():
        module.register_buffer(name, buffer.clone() if name != "wide" else buffer)
    comm = FakeComm(2)
    model, optimizer = zero(module, ZeroConfig(stage=3, dtype=torch.bfloat16), comm)
    assert comm.launches("broadcast").count("buffers") == len(buffers)
    comm.take_events()
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, buffers[name])
        assert buffer.dtype == buffers[name].dtype
    optimizer.zero_grad()
    model(inputs(0).bfloat16()).backward()
    optimizer.step()
    assert comm.launches("broadcast") == []
