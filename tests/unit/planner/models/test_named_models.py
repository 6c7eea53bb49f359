"""Named models against the sizes that the paper gives them."""

import re

import pytest

from zprof.model.job import Shape
from zprof.planner.model_shapes import MODEL_PRESETS, count_parameters, find_preset

#: Labels are rounded, some with the tables of words and positions and some without.
TOLERANCE = 0.031


@pytest.mark.parametrize("name", MODEL_PRESETS)
def test_a_name_says_the_size(name: str) -> None:
    label = re.search(r"([\d.]+)([bt])(-\d+x\d+)?$", name)
    assert label is not None
    size = float(label[1]) * {"b": 1e9, "t": 1e12}[label[2]]
    shape = MODEL_PRESETS[name].shape
    blocks = 12 * shape.layers * shape.hidden**2
    assert min(abs(blocks - size), abs(MODEL_PRESETS[name].parameters - size)) < TOLERANCE * size
    assert shape.heads
    assert shape.hidden % shape.heads == 0


@pytest.mark.parametrize(
    ("name", "layers", "hidden"),
    [
        ("gpt2-1.5b", 48, 1600),
        ("7.5b", 36, 4096),
        ("13b", 62, 4096),
        ("40b", 88, 6144),
        ("60b", 75, 8192),
        ("60b-132x6144", 132, 6144),
        ("100b", 125, 8192),
        ("140b", 175, 8192),
        ("170b", 212, 8192),
        (" 1T ", 128, 25600),
    ],
)
def test_shapes_of_the_papers_tables(name: str, layers: int, hidden: int) -> None:
    shape = find_preset(name).shape
    assert (shape.layers, shape.hidden) == (layers, hidden)


def test_parameters_are_blocks_and_tables() -> None:
    shape = Shape(layers=2, hidden=10, vocabulary=7, context=3)
    assert count_parameters(shape) == 2400 + 70 + 30
    assert count_parameters(Shape(layers=2, hidden=10, vocabulary=7, context=3, tied=False)) == 2570
    # The paper's table 4 gives 40B to 88 layers of 4096: less than half of it.
    assert count_parameters(Shape(layers=88, hidden=4096)) == pytest.approx(17.7e9, rel=0.002)
