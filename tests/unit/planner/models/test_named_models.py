"""Named models against the sizes that the paper gives them."""

import re

import pytest

from zprof.base.errors import BadInput
from zprof.model.job import Job, Shape
from zprof.planner.gpt_units import with_units
from zprof.planner.model_shapes import MODEL_PRESETS, count_parameters, find_preset

#: Labels are rounded, some with the tables of words and positions and some without.
TOLERANCE = 0.031


#: Parameters of the released weights.
RELEASED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
}


@pytest.mark.parametrize("name", [name for name, preset in MODEL_PRESETS.items() if not preset.shape.block])
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


@pytest.mark.parametrize("name", RELEASED)
def test_parameters_are_those_of_the_released_weights(name: str) -> None:
    preset = find_preset(name)
    assert preset.parameters == RELEASED[name]
    units = with_units(Job(parameters=preset.parameters, shape=preset.shape)).units
    assert sum(unit.elements for unit in units) == RELEASED[name], "units count the same"


def test_an_unknown_name_has_a_suggestion() -> None:
    with pytest.raises(BadInput, match="llama3-8b") as caught:
        find_preset("llama3-8b")
    assert "llama-3-8b" in caught.value.hint
