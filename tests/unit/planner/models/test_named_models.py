"""Named models: the sizes that the paper gives them, names as people type them, shapes."""

import re

import pytest

from zprof.base.errors import BadInput
from zprof.model.job import Job, Shape
from zprof.planner.gpt_units import with_units
from zprof.planner.model_shapes import count_parameters
from zprof.planner.models.counting import count_parameters as count_elements
from zprof.planner.models.presets import find_preset, load_presets
from zprof.planner.models.shapes import extend_context, make_shape, make_transformer

#: Labels are rounded, some with the tables of words and positions and some without.
TOLERANCE = 0.031


PAPER = [name for name, preset in load_presets().items() if "1910.02054" in preset.source]


@pytest.mark.parametrize("name", PAPER)
def test_a_name_says_the_size(name: str) -> None:
    label = re.search(r"([\d.]+)([bt])(-\d+x\d+)?$", name)
    assert label is not None
    size = float(label[1]) * {"b": 1e9, "t": 1e12}[label[2]]
    shape = load_presets()[name].shape
    blocks = 12 * shape.layers * shape.hidden**2
    assert min(abs(blocks - size), abs(load_presets()[name].parameters - size)) < TOLERANCE * size
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


@pytest.mark.parametrize("name", load_presets())
def test_shape_and_transformer_are_the_same_model(name: str) -> None:
    preset = find_preset(name)
    if preset.shape is None:
        return
    units = with_units(Job(parameters=preset.parameters, shape=preset.shape)).units
    assert sum(unit.elements for unit in units) == count_elements(preset.transformer)
    assert make_shape(make_transformer(preset.shape)) == preset.shape


def test_layers_that_differ_have_no_shape() -> None:
    without = {name for name, preset in load_presets().items() if preset.shape is None}
    families = {re.split(r"-?\d", name)[0] for name in without}
    assert families == {
        "deepseek-v",
        "kimi-k",
        "gpt-oss",
        "llama",
        "nemotron",
        "nemotron-h",
        "vit-b",
        "vit-l",
        "vit-h",
    }
    assert {name for name in without if name.startswith("llama")} == {"llama-4-scout", "llama-4-maverick"}


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("llama3-8b", "llama-3-8b"),
        ("llama-3-8b", "llama-3-8b"),
        ("Llama 3 8B", "llama-3-8b"),
        ("Meta-Llama-3-8B", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("llama3-70b", "llama-3-70b"),
        ("llama3-405b", "llama-3.1-405b"),
        ("Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("llama2_13b", "llama-2-13b"),
        ("Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
        ("llama4-maverick", "llama-4-maverick"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("deepseek-v3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("DeepSeek-R1", "deepseek-v3"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("gpt_oss_20b", "gpt-oss-20b"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano-30b-a3b"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2"),
        ("google/vit-base-patch16-224", "vit-b-16"),
        ("ViT-B/16", "vit-b-16"),
        ("openai-community/gpt2-xl", "gpt2-xl"),
        ("7.5B", "7.5b"),
    ],
)
def test_names_as_people_type_them(typed: str, name: str) -> None:
    assert find_preset(typed).name == name


def test_each_name_and_alias_is_its_own_model() -> None:
    for name, preset in load_presets().items():
        for typed in (name, *preset.aliases):
            assert find_preset(typed).name == name


@pytest.mark.parametrize(("typed", "near"), [("lama-3-8b", "llama-3-8b"), ("qwen4-8b", "qwen3-8b")])
def test_an_unknown_name_has_a_suggestion(typed: str, near: str) -> None:
    with pytest.raises(BadInput, match=typed) as caught:
        find_preset(typed)
    assert near in caught.value.hint


@pytest.mark.parametrize("typed", ["", "15b", "llama", "75b", "/", "\udcff" * 300, "instruct"])
def test_no_other_name_is_a_model(typed: str) -> None:
    with pytest.raises(BadInput):
        find_preset(typed)


def test_a_longer_context_has_more_learned_positions() -> None:
    gpt, llama = find_preset("gpt2").transformer, find_preset("llama-3-8b").transformer
    assert count_elements(extend_context(gpt, 4096)) - count_elements(gpt) == (4096 - 1024) * 768
    assert extend_context(llama, 100) == llama
    assert extend_context(llama, 16_384).context == 16_384
    vit = find_preset("vit-b-16").transformer
    assert extend_context(vit, 4096) == vit, "an image has no more patches"
