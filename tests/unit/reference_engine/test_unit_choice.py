"""How units are chosen, and what cannot be a unit, a model or a parameter: refused in one line."""

import pytest
import torch
from fake_comm import FakeComm
from pitfall_models import UNITS, Layer, Layers, check_training, in_engine, train
from torch import nn

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.program.gpt import GPT, GPTConfig
from zprof.reference_engine.unit_split import split_by_dtype, split_into_units

LAYERS = UNITS[1:]
LINEARS = [f"{layer}.linear" for layer in LAYERS]


def test_every_parameter_belongs_to_one_unit_and_tied_ones_to_the_root():
    model = GPT(GPTConfig(layers=2, hidden=8, heads=2, vocabulary=11, context=6, tied=True))
    model.blocks[1].expand.weight = model.blocks[0].expand.weight
    table = {spec.name: [name for name, _ in spec.parameters] for spec in split_into_units(model)}
    assert tuple(table) == ("root", "blocks.0", "blocks.1")
    assert all(name.startswith("blocks.1.") for name in table["blocks.1"])
    assert sorted(name for unit in table.values() for name in unit) == sorted(dict(model.named_parameters()))
    assert {"token_embedding.weight", "blocks.0.expand.weight"} < set(table["root"])


def test_frozen_and_other_dtypes_are_flat_units_of_their_own():
    named = [(str(index), nn.Parameter(torch.zeros(1))) for index in range(2)]
    named.append(("2", nn.Parameter(torch.zeros(1), requires_grad=False)))
    assert [(name, len(members)) for name, members in split_by_dtype(named, "u")] == [
        ("u", 2),
        ("u.frozen", 1),
    ]
    named.append(("3", nn.Parameter(torch.zeros(1, dtype=torch.float64))))
    assert [name for name, _ in split_by_dtype(named, "u")] == ["u.float32", "u.frozen", "u.float64"]


@pytest.mark.parametrize(
    ("units", "names"),
    [
        ([Layer], UNITS),
        ([nn.Linear], ["root", "first", *LINEARS]),
        ([Layer, nn.Linear], ["first", *sorted(LAYERS + LINEARS)]),
        ([], ["root"]),
    ],
)
@pytest.mark.parametrize("stage", [1, 3])
def test_units_can_be_chosen_by_class_and_lie_inside_of_each_other(stage, units, names):
    assert list(check_training(Layers, stage, units=units).facts.units) == names


def test_nested_units_are_gathered_one_inside_of_the_other():
    module = Layers(count=2)
    model, optimizer, comm = in_engine(module, 3, 2, units=[module.first, Layer, nn.Linear])
    for step in range(2):
        comm.take_events()
        train(model, optimizer, step)
    forward = ["first", "layers.0", "layers.0.linear", "layers.1", "layers.1.linear"]
    backward = ["layers.1", "layers.1.linear", "layers.0", "layers.0.linear", "first"]
    assert comm.launches("all_gather") == forward + backward


@pytest.mark.parametrize(
    ("units", "word"),
    [
        (lambda module: [nn.Conv2d], "Conv2d"),
        (lambda module: [nn.ModuleList], "ModuleList"),
        (lambda module: [module.layers], "ModuleList"),
        (lambda module: [nn.Linear(2, 2)], "module of the model"),
    ],
)
def test_units_that_the_model_does_not_have_or_call_are_refused(units, word):
    module = Layers()
    with pytest.raises(ValueError, match=word):
        in_engine(module, 3, units=units(module))


def with_parameter(make) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = make(model[0].weight.data)
    return model


class Sharded(torch.Tensor):
    """A tensor class that the engine does not know."""


def made_in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return nn.Linear(2, 2)


def integers(data: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(data.to(torch.int64), requires_grad=False)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: nn.DataParallel(nn.Linear(2, 2)), "DataParallel"),
        (lambda: with_parameter(lambda data: nn.Parameter(data.clone().as_subclass(Sharded))), "Sharded"),
        (lambda: with_parameter(nn.Parameter), r"0.weight and 1.weight"),
        (lambda: with_parameter(integers), "floating point"),
        (made_in_inference_mode, "inference mode"),
        (lambda: nn.Embedding(3, 2, sparse=True), "sparse"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "trainable"),
        (lambda: nn.Linear(2, 2, device="meta"), "meta"),
        (lambda: nn.LazyLinear(2), "uninitialized"),
    ],
)
def test_a_model_that_cannot_work_is_refused(make, word):
    with pytest.raises(ValueError, match=f"^[^\n]*{word}[^\n]*$"):
        zero(make(), ZeroConfig(), FakeComm())


@pytest.mark.parametrize("stage", [0, 3])
def test_a_model_in_an_engine_is_refused_by_a_second(stage):
    module = Layers()
    module.layers[1].requires_grad_(False)
    model, _, _ = in_engine(module, stage)
    frozen = nn.Sequential(module.layers[1], nn.Linear(4, 4))
    for again in (module, model, module.layers[2].linear, nn.Sequential(module), frozen):
        with pytest.raises(ValueError, match="already"):
            in_engine(again, stage)
