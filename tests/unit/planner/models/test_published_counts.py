"""Parameters of every preset against what its publisher says, or against the reference code of its family."""

import pytest

from zprof.model.transformer import Experts
from zprof.planner.models.counting import (
    count_active_parameters,
    count_embedding_elements,
    count_parameters,
)
from zprof.planner.models.presets import find_preset, load_presets

#: Elements of the released weights (safetensors headers on Hugging Face), without layers for multi-token
#: prediction and without a tied head's second copy. MPT: the parameters that llm-foundry's benchmark tables
#: print (scripts/train/benchmarking), at 2,048 tokens. ViT: torchvision's weights of ImageNet's classes.
#: transformers 5.24 builds the same number of elements from the preset's keys.
RELEASED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-4-scout": 108_641_793_536 - 871_932_416,  # without the vision tower
    "llama-4-maverick": 401_583_781_376 - 871_932_416,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "mpt-125m": 130_030_080 - (8192 - 2048) * 768,  # printed at 8,192 tokens
    "mpt-350m": 355_985_408,
    "mpt-760m": 760_470_528,
    "mpt-1b": 1_315_950_592,
    "mpt-3b": 2_651_837_440,
    "mpt-7b": 6_658_859_008,
    "mpt-13b": 12_853_954_560,
    "mpt-30b": 29_975_214_080,
    "mpt-70b": 64_862_437_376,
    "vit-b-16": 86_567_656,
    "vit-l-16": 304_326_632,
    "vit-h-14": 632_045_800,
}
#: Elements of the model that transformers 5.24 builds from the same keys, without weights (device "meta"),
#: with the corrections of the routers' scores. Publishers round these or count other parts.
BUILT = {
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
    "kimi-k2": 1_026_408_232_448,
    "nemotron-4-15b": 15_628_775_424,
    "nemotron-4-340b": 341_029_195_776,
    "nemotron-h-8b": 8_100_852_736,
    "nemotron-3-nano-30b-a3b": 31_577_940_288,
    "nemotron-3-super-120b-a12b": 120_668_707_840,
}
#: Totals in text: DeepSeek-V3 arXiv 2412.19437; V2-Lite arXiv 2405.04434, appendix; Nemotron-4 340B arXiv
#: 2406.11704, table 1 (9.4 billion in embeddings, 331.6 outside); Nemotron 3 at research.nvidia.com;
#: GPT-OSS arXiv 2508.10925, table 1.
STATED = {
    "deepseek-v3": 671e9,
    "deepseek-v2-lite": 15.7e9,
    "nemotron-4-340b": 341.0e9,
    "nemotron-3-nano-30b-a3b": 31.6e9,
    "nemotron-3-super-120b-a12b": 120.6e9,
    "gpt-oss-20b": 20.91e9,
    "gpt-oss-120b": 116.83e9,
}
#: Active parameters, and one unit of the last published digit. False: the embedding table is not counted.
#: Mixtral arXiv 2401.04088 and mistral.ai/news/mixtral-8x22b, Qwen 3 arXiv 2505.09388, Llama 4's model card.
ACTIVE = {
    "mixtral-8x7b": (12.9e9, 0.1e9, True),
    "mixtral-8x22b": (39e9, 1e9, True),
    "qwen3-30b-a3b": (3.3e9, 0.1e9, True),
    "qwen3-235b-a22b": (22e9, 1e9, True),
    "llama-4-scout": (17e9, 1e9, True),
    "llama-4-maverick": (17e9, 1e9, True),
    "deepseek-v2": (21e9, 1e9, True),
    "deepseek-v2-lite": (2.4e9, 0.1e9, False),
    "deepseek-v3": (37e9, 1e9, True),
    "kimi-k2": (32e9, 1e9, True),
    "gpt-oss-20b": (3.61e9, 0.01e9, False),
    "gpt-oss-120b": (5.13e9, 0.01e9, False),
    "nemotron-3-nano-30b-a3b": (3.6e9, 0.1e9, True),
    "nemotron-3-super-120b-a12b": (12.7e9, 0.1e9, True),
}


@pytest.mark.parametrize("name", [*RELEASED, *BUILT])
def test_parameters_are_those_of_the_released_weights(name: str) -> None:
    preset = find_preset(name)
    assert count_parameters(preset.transformer) == preset.parameters == (RELEASED | BUILT)[name]


@pytest.mark.parametrize("name", STATED)
def test_parameters_are_as_stated_within_a_thousandth(name: str) -> None:
    assert find_preset(name).parameters == pytest.approx(STATED[name], rel=1e-3)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_as_stated(name: str) -> None:
    stated, unit, with_embedding = ACTIVE[name]
    model = find_preset(name).transformer
    active = count_active_parameters(model) - (0 if with_embedding else count_embedding_elements(model))
    assert abs(active - stated) <= max(unit, 0.005 * stated)


def test_no_published_preset_is_left_out() -> None:
    published = {name for name, preset in load_presets().items() if "1910.02054" not in preset.source}
    assert published == set(RELEASED) | set(BUILT)
    mixtures = {
        name
        for name in published
        if any(isinstance(run.feed_forward, Experts) for run in find_preset(name).transformer.layers)
    }
    assert mixtures == set(ACTIVE)
