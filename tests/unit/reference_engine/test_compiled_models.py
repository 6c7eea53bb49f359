"""torch.compile inside of the engine: of a block, in place, and of the whole model before zero()."""

import pytest
import torch
from pitfall_models import Layers, check_training
from torch import nn
from torch._dynamo.utils import counters

BACKEND = "aot_eager"  # traces forward and backward as inductor does, and needs no C++ compiler


def compiled(kind: str) -> nn.Module:
    model = Layers(count=2)
    for index, layer in enumerate(model.layers):
        if kind == "wrapped":
            model.layers[index] = torch.compile(layer, backend=BACKEND)  # type: ignore[assignment]
        elif kind == "in place":
            layer.compile(backend=BACKEND)
    if kind == "whole":
        model.compile(backend=BACKEND)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wrapped", "in place", "whole"])
def test_compiled_models_train_as_they_do_without_the_engine(kind):
    torch._dynamo.reset()
    counters.clear()
    check_training(lambda: compiled(kind), 3, steps=2)
    assert counters["stats"]["unique_graphs"] > 0
