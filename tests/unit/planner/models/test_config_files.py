"""Configurations of Hugging Face: each family against what its reference code builds, and hostile files."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.base.errors import BadInput
from zprof.model.transformer import Attention, Experts, LatentAttention, Mamba, Mlp
from zprof.planner.models.config_file import ConfigAssumption, parse_config, read_model_config
from zprof.planner.models.counting import count_parameters
from zprof.planner.models.presets import find_preset

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 112,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
GPT = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "vocab_size": 320}
FALCON = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 320}
LATENT = {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
}
HYBRID = {
    "head_dim": 16,
    "layers_block_type": ["mamba", "attention", "mlp", "moe"],
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 88,
    "n_shared_experts": 1,
    "moe_latent_size": 24,
}
QWEN_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
OPT = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 256,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "word_embed_proj_dim": 64,
}
VIT = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 112,
    "image_size": 64,
    "patch_size": 16,
    "num_labels": 10,
}
#: A configuration, and the elements of the model that transformers 5.24 builds from it (device "meta").
FAMILIES: list[tuple[str, dict[str, Any], int]] = [
    ("llama", SMALL, 176_704),
    ("llama", {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, 158_144),
    ("granite", SMALL, 176_704),
    ("smollm3", SMALL, 156_224),
    ("mistral", {**SMALL, "head_dim": 24}, 201_280),
    ("mixtral", {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}, 435_776),
    ("qwen2", {**SMALL, "tie_word_embeddings": True}, 156_736),
    (
        "qwen2_moe",
        {**SMALL, **QWEN_EXPERTS, "shared_expert_intermediate_size": 88, "decoder_sparse_step": 2},
        261_056,
    ),
    ("qwen3", {**SMALL, "head_dim": 24}, 201_472),
    ("qwen3_moe", {**SMALL, **QWEN_EXPERTS, "head_dim": 24, "mlp_only_layers": [1]}, 276_352),
    ("phi3", SMALL, 176_704),
    ("gemma", {**SMALL, "head_dim": 24}, 180_800),
    ("gemma2", {**SMALL, "head_dim": 24}, 181_312),
    ("gemma3_text", {**SMALL, "head_dim": 24}, 181_504),
    ("nemotron", {**SMALL, "head_dim": 16}, 148_608),
    ("starcoder2", SMALL, 129_600),
    ("gpt2", GPT, 178_752),
    ("gpt_bigcode", GPT, 160_032),
    ("gpt_neox", {**SMALL, "num_key_value_heads": None}, 166_720),
    ("opt", OPT, 178_880),
    ("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 3, "vocab_size": 320, "max_seq_len": 128}, 168_384),
    ("falcon", FALCON, 150_016),
    ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}, 156_544),
    ("falcon", {**FALCON, "parallel_attn": False, "multi_query": False, "bias": True}, 170_560),
    (
        "deepseek_v2",
        {**SMALL, **LATENT, "q_lora_rank": None, "n_shared_experts": 2, "first_k_dense_replace": 2},
        294_528,
    ),
    (
        "deepseek_v3",
        {**SMALL, **LATENT, "q_lora_rank": 24, "n_shared_experts": 1, "first_k_dense_replace": 1},
        320_760,
    ),
    (
        "glm4_moe",
        {
            **SMALL,
            "head_dim": 16,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 40,
            "first_k_dense_replace": 1,
        },
        321_752,
    ),
    (
        "llama4_text",
        {
            **SMALL,
            "head_dim": 16,
            "intermediate_size_mlp": 200,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
        },
        383_040,
    ),
    ("gpt_oss", {**SMALL, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}, 441_184),
    ("nemotron_h", {**SMALL, **HYBRID}, 122_080),
    ("vit", VIT, 145_370),
]


@pytest.mark.parametrize(("family", "config", "elements"), FAMILIES)
def test_a_family_has_the_elements_of_its_reference_code(
    family: str, config: dict[str, Any], elements: int
) -> None:
    model = parse_config({**config, "model_type": family})
    assert count_parameters(model.transformer) == elements
    assert model.assumptions == ()


def test_layers_in_order() -> None:
    config = dict(next(config for family, config, _ in FAMILIES if family == "nemotron_h"))
    model = parse_config({**config, "model_type": "nemotron_h"}).transformer
    parts = [run.mixer or run.feed_forward for run in model.layers]
    assert [type(part) for part in parts] == [Mamba, Attention, Mlp, Experts]
    pattern = {**config, "hybrid_override_pattern": "M*-E", "model_type": "nemotron_h"}
    assert parse_config(pattern).transformer == model

    deepseek = find_preset("deepseek-v3").transformer
    assert [run.count for run in deepseek.layers] == [3, 58]
    assert all(isinstance(run.mixer, LatentAttention) for run in deepseek.layers)
    maverick = find_preset("llama-4-maverick").transformer
    kinds = [run.feed_forward for run in maverick.layers for _ in range(run.count)]
    assert [isinstance(kind, Experts) for kind in kinds] == [False, True] * 24


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "gpt_oss", "sliding_window": 8}, [8, None, 8, None]),
        ({"model_type": "mistral", "sliding_window": 8}, [8] * 4),
        ({"model_type": "mistral", "sliding_window": None}, [None] * 4),
        ({"model_type": "qwen2", "sliding_window": 8}, [None] * 4),
        (
            {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3},
            [None, None, None, 8],
        ),
        ({"model_type": "llama4_text", "attention_chunk_size": 16}, [16, 16, 16, None]),
        ({"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 2}, [8, None] * 2),
        (
            {
                "model_type": "new",
                "sliding_window": 8,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
            },
            [None, 8, None, 8],
        ),
    ],
)
def test_windows_by_layer(changes: dict[str, Any], windows: list[int | None]) -> None:
    routed = changes["model_type"] in ("gpt_oss", "llama4_text")
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2} if routed else {}
    model = parse_config({**SMALL, **experts, **changes}).transformer
    mixers = [run.mixer for run in model.layers for _ in range(run.count)]
    assert [mixer.window for mixer in mixers if isinstance(mixer, Attention)] == windows


def test_what_is_assumed_is_said() -> None:
    assert parse_config({**SMALL, "model_type": "brand_new"}).assumptions == (
        ConfigAssumption.UNKNOWN_FAMILY,
    )
    llama = parse_config({**SMALL, "model_type": "llama"}).transformer
    assert parse_config({**SMALL, "model_type": "brand_new"}).transformer == llama
    wrapped = {
        "model_type": "kimi_k25",
        "vision_config": {"hidden_size": 1},
        "text_config": {**SMALL, "model_type": "llama", "num_nextn_predict_layers": 1},
    }
    model = parse_config(wrapped)
    assert model.transformer == llama
    assert set(model.assumptions) == {
        ConfigAssumption.OTHER_TOWERS,
        ConfigAssumption.PREDICTION_LAYERS,
    }


def test_an_unknown_family_may_have_experts() -> None:
    config = {**SMALL, "model_type": "brand_new", "n_routed_experts": 4, "num_experts_per_tok": 2}
    part = parse_config(config).transformer.layers[0].feed_forward
    assert part == Experts(experts=4, active=2, width=112)


def write(folder: Path, content: bytes | str) -> Path:
    path = folder / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_file_or_its_folder_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    path = write(folder, json.dumps({**SMALL, "model_type": "llama", "rope_scaling": None}))
    assert read_model_config(path) == read_model_config(folder)
    assert read_model_config(path).name == "My-Llama"


HOSTILE_FILES = [
    "",
    "null",
    "[]",
    "{",
    '"text"',
    b"\xff\xfe",
    b"\x00" * 100,
    "[" * 100_000,
    '{"a":' * 100_000,
    '{"hidden_size": NaN}',
    '{"hidden_size": ' + "9" * 5_000 + "}",
    '{"text_config": ' * 50 + "{}" + "}" * 50,
    '{"model_type": "llama"}',
    b" " * ((1 << 24) + 1),
]


@pytest.mark.parametrize("content", HOSTILE_FILES, ids=range(len(HOSTILE_FILES)))
def test_a_hostile_file_is_one_line(tmp_path: Path, content: bytes | str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(BadInput) as caught:
        read_model_config(path)
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith(str(path))


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no.json", tmp_path / ("x" * 300), Path("a\0b"), Path("/dev/zero")):
        with pytest.raises(BadInput):
            read_model_config(path)


HOSTILE_VALUES = [
    -1,
    0,
    True,
    1.5,
    4096.0,
    float("nan"),
    float("inf"),
    10**400,
    "64",
    [],
    {},
    [[1]],
    "\x1b[2J",
]
KEYS = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_with_a_wrong_value_is_named(key: str) -> None:
    for value in HOSTILE_VALUES:
        with pytest.raises(BadInput) as caught:
            parse_config({**SMALL, "model_type": "llama", key: value})
        assert key in caught.value.message
        assert caught.value.message.isprintable()
    without = {name: value for name, value in SMALL.items() if name != key}
    with pytest.raises(BadInput, match=key):
        parse_config({**without, "model_type": "llama"})


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 3},
        {"hidden_size": 66},
        {"num_experts": 4, "num_experts_per_tok": 5},
        {"num_experts": 4},
        {"layer_types": ["full_attention"]},
        {"layer_types": ["linear_attention"] * 4},
        {"layer_types": "full"},
        {"moe_layer_freq": [1], "num_experts": 4, "num_experts_per_tok": 1},
        {"tie_word_embeddings": 1},
        {"model_type": 5},
        {"is_encoder_decoder": True},
        {"kv_lora_rank": 16},
        {"compress_ratios": [4]},
        {"hidden_size": 10**7, "vocab_size": 10**9},
        {"model_type": "nemotron_h"},
        {"model_type": "nemotron_h", "hybrid_override_pattern": "MX"},
        {"model_type": "vit"},
        {"model_type": "opt", "word_embed_proj_dim": 32},
    ],
)
def test_what_cannot_be_a_model_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        parse_config({**SMALL, "model_type": "new", **changes})


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.integers(0, 64),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(-1, 9), st.text("M*-E", max_size=3)), max_size=5),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.just([]),
)
ALL_KEYS = [
    *sorted({key for _, config, _ in FAMILIES for key in config}),
    "text_config",
    "vision_config",
    "id2label",
    "layer_types",
    "sliding_window",
    "attn_config",
    "use_sliding_window",
    "max_window_layers",
    "moe_layers",
    "moe_layer_freq",
    "hybrid_override_pattern",
    "num_nextn_predict_layers",
]


def parse_or_refuse(config: dict[str, Any]) -> None:
    """Parse; any other error than BadInput fails the test."""
    refusal = None
    try:
        model = parse_config(config)
        assert 0 < count_parameters(model.transformer) <= 10**15
    except BadInput as error:
        refusal = error.message
    assert refusal is None or refusal.isprintable()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FAMILIES), st.dictionaries(st.sampled_from(ALL_KEYS), VALUES, max_size=4))
def test_random_changes_give_a_model_or_one_line(
    family: tuple[str, dict[str, Any], int], changes: dict[str, Any]
) -> None:
    parse_or_refuse({**family[1], "model_type": family[0], **changes})


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.one_of(st.sampled_from(ALL_KEYS), st.text(max_size=4)), VALUES, max_size=12))
def test_random_configurations_give_a_model_or_one_line(config: dict[str, Any]) -> None:
    parse_or_refuse(config)
