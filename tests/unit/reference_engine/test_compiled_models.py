"""torch.compile inside of the engine: of a block, in place, and of the whole model before zero()."""

import pytest
import torch
from pitfall_models import Layers, check_training
from torch import nn
from torch._dynamo.utils import counters

BACKEND = "aot_eager"  # traces forward and backward as inductor does, and needs no C++ compiler


def wrapped() -> nn.Module:
    model = Layers(count=2)
    for index, layer in enumerate(model.layers):
        model.layers[index] = torch.compile(layer, backend=BACKEND)  # type: ignore[assignment]
    return model


def in_place() -> nn.Module:
    model = Layers(count=2)
    for layer in model.layers:
        layer.compile(backend=BACKEND)
    return model


def whole() -> nn.Module:
    model = Layers(count=2)
    model.compile(backend=BACKEND)
    return model


@pytest.mark.parametrize(
    ("make", "stage"),
    [
        (wrapped, 3),
        *(pytest.param(*way, marks=pytest.mark.slow) for way in ((in_place, 3), (in_place, 1))),
        (whole, 3),
    ],
)
def test_compiled_blocks_train_as_they_do_without_the_engine(make, stage):
    torch._dynamo.reset()
    counters.clear()
    check_training(make, stage, steps=2)
    assert counters["stats"]["unique_graphs"] > 0
