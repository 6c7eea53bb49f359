"""How units are chosen, and what cannot be a unit, a model or a parameter: refused in one line."""

import pytest
import torch
from fake_comm import FakeComm
from pitfall_models import STAGES, Layer, Layers, check_training, in_engine, inputs, train
from torch import nn

from zprof.reference_engine import ZeroConfig, zero

NAMES = {
    (Layer,): ["root", "layers.0", "layers.1", "layers.2"],
    (nn.Linear,): ["root", "first", "layers.0.linear", "layers.1.linear", "layers.2.linear"],
    (Layer, nn.Linear): [
        "root",
        "first",
        *("layers.0", "layers.0.linear", "layers.1", "layers.1.linear", "layers.2", "layers.2.linear"),
    ],
    (): ["root"],
}


@pytest.mark.parametrize(
    "units", NAMES, ids=lambda units: "+".join(unit.__name__ for unit in units) or "whole"
)
@pytest.mark.parametrize("stage", STAGES)
def test_units_can_be_chosen_by_class_and_lie_inside_of_each_other(stage, units):
    model = check_training(lambda: Layers(Layer), stage, units=list(units))
    with_parameters = [name for name in NAMES[units] if name != "root" or len(NAMES[units]) != 5]
    if units == (nn.Linear,):
        with_parameters = NAMES[units]  # the scales are the root's
    if units == (Layer, nn.Linear):
        with_parameters = NAMES[units][1:]
    assert list(model.facts.units) == with_parameters


def test_a_class_and_a_module_can_be_mixed():
    module = Layers(Layer)
    model, _, _ = in_engine(module, 3, units=[module.first, Layer])
    assert list(model.facts.units) == ["first", "layers.0", "layers.1", "layers.2"]


def test_nested_units_are_gathered_one_inside_of_the_other():
    model, optimizer, comm = in_engine(Layers(Layer, count=2), 3, 2, units=[Layer, nn.Linear])
    for step in range(2):
        comm.take_events()
        train(model, optimizer, step)
    forward = ["first", "layers.0", "layers.0.linear", "layers.1", "layers.1.linear"]
    backward = ["layers.1", "layers.1.linear", "layers.0", "layers.0.linear", "first"]
    assert comm.launches("all_gather") == forward + backward


def test_a_class_that_the_model_does_not_have_is_refused():
    with pytest.raises(ValueError, match="class Conv2d, and the model has no module of it"):
        in_engine(Layers(Layer), 3, units=[nn.Conv2d])


def test_a_container_that_is_never_called_is_refused():
    module = Layers(Layer)
    for units in ([nn.ModuleList], [module.layers]):
        with pytest.raises(ValueError, match="ModuleList, which is never called"):
            in_engine(module, 3, units=units)


def test_a_list_of_parameters_in_a_list_of_modules_belongs_to_who_uses_it():
    class Listed(Layers):
        def __init__(self) -> None:
            super().__init__(Layer)
            self.more = nn.ModuleList([nn.ParameterList([nn.Parameter(torch.ones(4))])])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * self.more[0][0])

    model = check_training(Listed, 3)
    assert list(model.facts.units) == ["root", "layers.0", "layers.1", "layers.2"]


def wrapped_by_data_parallel() -> nn.Module:
    return nn.DataParallel(nn.Linear(2, 2))


def of_another_tensor_class() -> nn.Module:
    class Sharded(torch.Tensor):
        pass

    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(torch.zeros(2, 2).as_subclass(Sharded))
    return model


def made_in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return nn.Linear(2, 2)


def sharing_memory() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = nn.Parameter(model[0].weight.data)
    return model


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (wrapped_by_data_parallel, "root is a DataParallel, which reduces gradients itself"),
        (of_another_tensor_class, "weight is a Sharded"),
        (made_in_inference_mode, "made in inference mode"),
        (sharing_memory, r"0.weight and 1.weight share memory"),
    ],
)
def test_a_model_that_cannot_work_is_refused(make, said):
    with pytest.raises(ValueError, match=said) as caught:
        zero(make(), ZeroConfig(), FakeComm())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["model", "wrapped", "inside", "around"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_model_in_an_engine_is_refused_by_a_second(stage, part):
    module = Layers(Layer)
    model, _, _ = in_engine(module, stage)
    again = {
        "model": module,
        "wrapped": model,
        "inside": module.layers[1].linear,
        "around": nn.Sequential(module),
    }[part]
    with pytest.raises(ValueError, match="already in a ZeRO engine"):
        in_engine(again, stage)
    assert model.facts.stage == stage


@pytest.mark.parametrize("stage", STAGES)
def test_a_frozen_part_of_a_model_in_an_engine_is_refused_by_a_second(stage):
    module = Layers(Layer)
    module.layers[1].requires_grad_(False)
    model, _, _ = in_engine(module, stage)
    with pytest.raises(ValueError, match=r"module 0 is already in a ZeRO engine"):
        in_engine(nn.Sequential(module.layers[1], nn.Linear(4, 4)), stage)
    assert model.facts.stage == stage


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_model_whose_engine_is_gone_can_be_given_to_another(stage):
    module = Layers(Layer)
    model, optimizer, _ = in_engine(module, stage)
    train(model, optimizer)
    model.synchronize()
    del model, optimizer
    model, optimizer, comm = in_engine(module, 3, 2)
    train(model, optimizer, 1)
    assert len(comm.launches("reduce_scatter")) == 4


def test_neighbours_in_one_storage_do_not_share_memory():
    flat = torch.randn(2 * 16)
    module = Layers(lambda _: nn.Linear(4, 4, bias=False), 2)
    for index, layer in enumerate(module.layers):
        layer.weight = nn.Parameter(flat[16 * index : 16 * (index + 1)].view(4, 4))
    model, optimizer, _ = in_engine(module, 3)
    train(model, optimizer)
    assert model(inputs(1)) > 0
