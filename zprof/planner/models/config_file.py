"""Read the config.json of a Hugging Face model as a transformer.

Families differ in the names of keys, in defaults and in what stands in a layer; the modeling files of the
``transformers`` library (5.24) are the source. What no key says, as the biases of GPT-2, is in ``_FAMILIES``.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.base.formatting import printable
from zprof.model.transformer import (
    Attention,
    Experts,
    FeedForward,
    LatentAttention,
    LayerRun,
    Mamba,
    Mixer,
    Mlp,
    Transformer,
)
from zprof.planner.models.config_values import MAX_LAYERS, MAX_ROWS, ConfigValues
from zprof.planner.models.counting import count_parameters
from zprof.planner.stated_files import name_parse_error, read_stated_file

#: A released config.json has up to 6 MB: some list every quantized module.
_MAX_BYTES = 1 << 24
_MAX_PARAMETERS = 10**15
_MAX_NESTED = 3
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
_TOWERS = ("vision_config", "audio_config", "sound_config")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_WIDTHS = ("intermediate_size_mlp", "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
_PREDICTION_LAYERS = ("num_nextn_predict_layers", "num_mtp_layers")
#: Keys of mixers that ``zprof.model.transformer`` cannot describe: sparse and linear attention, other
#: recurrent layers, hyper-connections.
_UNSUPPORTED = (
    "attn_layer_period",
    "compress_ratios",
    "hc_mult",
    "index_topk",
    "linear_attn_config",
    "linear_num_value_heads",
    "mamba_d_state",
    "mamba_config",
    "state_size",
    "time_mix_extra_dim",
)


class ConfigAssumption(StrEnum):
    """What a config.json was read as, for lack of better knowledge.

    UNKNOWN_FAMILY: the model type is unknown, its layers are read as Llama blocks. PREDICTION_LAYERS: layers
    for multi-token prediction are left out. OTHER_TOWERS: encoders of images and sound are left out.
    """

    UNKNOWN_FAMILY = "unknown_family"
    PREDICTION_LAYERS = "prediction_layers"
    OTHER_TOWERS = "other_towers"


class NamedModel(Struct, frozen=True, kw_only=True):
    """A transformer that was read from a config.json, and what was assumed."""

    name: str
    transformer: Transformer
    assumptions: tuple[ConfigAssumption, ...] = ()


class _Windows(StrEnum):
    """Layers that see only a window of tokens, if no key lists them.

    ALL: every layer; FLAG: the layers from ``max_window_layers`` on, if ``use_sliding_window``; ALTERNATE:
    the first, third, …; SIXTH: all but each sixth; CHUNKED: Llama 4's chunks, all but each fourth.
    """

    NONE = "none"
    ALL = "all"
    FLAG = "flag"
    ALTERNATE = "alternate"
    SIXTH = "sixth"
    CHUNKED = "chunked"


class _Family(Struct, frozen=True, kw_only=True):
    """What the keys of a family leave unsaid; the defaults are those of Llama.

    ``qkv_biased``, ``attention_biased``: query, key and value, or also the output, have biases by default.
    ``positions``: the context is a table of learned positions, with ``extra_positions`` unused rows.
    ``expansion``: width of the MLP in hidden sizes, if no key gives the width; 0: a key must.
    """

    gated: bool = True
    layer_norm: bool = False
    tied: bool = False
    qkv_biased: bool = False
    attention_biased: bool = False
    mlp_biased: bool = False
    head_norms: bool = False
    extra_norms: int = 0
    sinks: bool = False
    experts: bool = False
    experts_biased: bool = False
    router_biased: bool = False
    latent: bool = False
    windows: _Windows = _Windows.NONE
    positions: bool = False
    extra_positions: int = 0
    expansion: int = 0


_LLAMA = _Family()
_GPT = _Family(
    gated=False, layer_norm=True, tied=True, attention_biased=True, mlp_biased=True, positions=True
)
_QWEN_2 = _Family(qkv_biased=True, windows=_Windows.FLAG)
_QWEN_3 = _Family(head_norms=True, windows=_Windows.FLAG)
_GEMMA = _Family(tied=True)
_GEMMA_3 = _Family(tied=True, extra_norms=2, head_norms=True, windows=_Windows.SIXTH)
_DEEPSEEK_V3 = _Family(experts=True, latent=True, router_biased=True)
_LLAMA_4 = _Family(experts=True, windows=_Windows.CHUNKED)
_FAMILIES: Mapping[str, _Family] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "smollm3": _Family(tied=True),
    "mistral": _Family(windows=_Windows.ALL),
    "phi3": _Family(windows=_Windows.ALL),
    "mixtral": _Family(experts=True, windows=_Windows.ALL),
    "qwen2": _QWEN_2,
    "qwen2_moe": replace(_QWEN_2, experts=True),
    "qwen3": _QWEN_3,
    "qwen3_moe": replace(_QWEN_3, experts=True),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, extra_norms=2, windows=_Windows.ALTERNATE),
    "gemma3": _GEMMA_3,
    "gemma3_text": _GEMMA_3,
    "nemotron": _Family(gated=False, layer_norm=True),
    "gpt2": replace(_GPT, expansion=4),
    "gpt_bigcode": replace(_GPT, expansion=4),
    "opt": replace(_GPT, extra_positions=2),
    "starcoder2": replace(_GPT, positions=False, windows=_Windows.ALL),
    "gpt_neox": replace(_GPT, positions=False, tied=False),
    "mpt": replace(_GPT, positions=False, expansion=4),
    "falcon": replace(_GPT, positions=False, attention_biased=False, mlp_biased=False, expansion=4),
    "deepseek_v2": _Family(experts=True, latent=True),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe": _Family(experts=True, router_biased=True),
    "llama4": _LLAMA_4,
    "llama4_text": _LLAMA_4,
    "gpt_oss": _Family(
        attention_biased=True,
        sinks=True,
        experts=True,
        experts_biased=True,
        router_biased=True,
        windows=_Windows.ALTERNATE,
    ),
}
_HYBRID_LAYERS = {
    "M": "mamba",
    "mamba": "mamba",
    "linear_attention": "mamba",
    "*": "attention",
    "attention": "attention",
    "full_attention": "attention",
    "-": "mlp",
    "mlp": "mlp",
    "E": "moe",
    "moe": "moe",
}


def read_model_config(path: Path) -> NamedModel:
    """Return the model of a config.json, or of a folder that has one; the name is the folder's.

    Raises:
        BadInput: the file cannot be read, is too large, is not JSON, or is not such a configuration.
    """
    hint = "give the config.json of a model"
    path = _find_config(path)
    where = printable(path)
    content = read_stated_file(path, max_bytes=_MAX_BYTES, what="the config.json of a model", hint=hint)
    try:
        config = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadInput(f"{where}: not JSON ({name_parse_error(error)})", hint=hint) from None
    if not isinstance(config, dict):
        raise BadInput(f"{where}: not a JSON object", hint=hint)
    name = path.parent.name if path.name == "config.json" else path.stem
    return parse_config(config, where=where, name=name)


def _find_config(path: Path) -> Path:
    """Return the config.json of a folder, else the path itself."""
    try:
        return path / "config.json" if path.is_dir() else path
    except (OSError, ValueError):  # too long, or with a NUL character: reading it says so
        return path


def parse_config(config: Mapping[str, Any], *, where: str = "config.json", name: str = "") -> NamedModel:
    """Return the model of a decoded config.json; ``where`` names the file in errors.

    The configuration of the language model counts if it stands inside of another (``text_config``).

    Raises:
        BadInput: a key is missing or has a value that is not possible.
    """
    outer, assumptions = config, []
    for _ in range(_MAX_NESTED):
        inner = next((config[key] for key in _TEXT_CONFIGS if isinstance(config.get(key), dict)), None)
        if inner is None:
            break
        if any(isinstance(config.get(key), dict) for key in _TOWERS):
            assumptions.append(ConfigAssumption.OTHER_TOWERS)
        config = {**{key: outer[key] for key in ("tie_word_embeddings",) if key in outer}, **inner}
    values = ConfigValues(config, where)
    model_type = values.get_text("model_type")
    if values.find_integer(*_PREDICTION_LAYERS):
        assumptions.append(ConfigAssumption.PREDICTION_LAYERS)
    if values.get_flag("is_encoder_decoder", default=False):
        raise BadInput(f"{where}: encoders with decoders are not supported", hint="give a decoder's config")
    if unsupported := [key for key in _UNSUPPORTED if values.has(key)]:
        raise BadInput(f"{where}: the layers that {unsupported[0]} describes are not supported")
    if model_type == "vit":
        model = _read_vit(values)
    elif model_type.startswith("nemotron_h"):
        model = _read_hybrid(values)
    else:
        if model_type not in _FAMILIES:
            assumptions.append(ConfigAssumption.UNKNOWN_FAMILY)
        model = _read_decoder(values, model_type)
    if count_parameters(model) > _MAX_PARAMETERS:
        raise BadInput(f"{where}: the model has more than {_MAX_PARAMETERS:.0e} parameters")
    return NamedModel(
        name=name or model_type, transformer=model, assumptions=tuple(dict.fromkeys(assumptions))
    )


def _read_decoder(values: ConfigValues, model_type: str) -> Transformer:
    family = _adapt_family(values, model_type)
    hidden = values.require_integer("hidden_size", "n_embd", "d_model")
    layers = _require_layers(values)
    context = values.find_integer("max_position_embeddings", "n_positions", "max_seq_len", max_value=MAX_ROWS)
    mixer = _read_latent(values) if family.latent or values.has("kv_lora_rank") else None
    attention = mixer or _read_attention(values, family, model_type, hidden)
    windows = _read_windows(values, family, layers)
    parts = _read_feed_forwards(values, family, model_type, hidden, layers)
    rows = [
        (replace(attention, window=window) if isinstance(attention, Attention) else attention, part)
        for window, part in zip(windows, parts, strict=True)
    ]
    return Transformer(
        hidden=hidden,
        layers=_join_equal(rows, family.extra_norms),
        vocabulary=values.require_integer("vocab_size", max_value=MAX_ROWS),
        context=context or 0,
        tied=values.get_flag("tie_word_embeddings", family.tied),
        learned_positions=(context or 0) + family.extra_positions if family.positions else 0,
        layer_norm=family.layer_norm,
    )


def _adapt_family(values: ConfigValues, model_type: str) -> _Family:
    """Return the family, with what its own keys change.

    Raises:
        BadInput: a key asks for layers that cannot be counted.
    """
    family = _FAMILIES.get(model_type, _LLAMA)
    if model_type == "mpt":
        biased = not values.get_flag("no_bias", default=True)
        attention = values.config.get("attn_config")
        alibi = ConfigValues(attention if isinstance(attention, dict) else {}, values.where)
        return replace(
            family,
            attention_biased=biased,
            mlp_biased=biased,
            layer_norm=biased,
            positions=values.get_flag("learned_pos_emb", default=True)
            and not alibi.get_flag("alibi", default=True),
        )
    if model_type == "falcon":
        biased = values.get_flag("bias", default=False)
        parallel = values.get_flag("parallel_attn", default=True)
        norms = 2 if values.get_flag("new_decoder_architecture", default=False) or not parallel else 1
        norms = values.find_integer("num_ln_in_parallel_attn", min_value=1, max_value=2) or norms
        return replace(family, attention_biased=biased, mlp_biased=biased, extra_norms=norms - 2)
    if model_type == "opt":
        width = values.find_integer("word_embed_proj_dim")
        if width is not None and width != values.config.get("hidden_size"):
            raise values.make_error("word_embed_proj_dim", "differs from hidden_size, which is not supported")
        if not values.get_flag("do_layer_norm_before", default=True):
            raise values.make_error("do_layer_norm_before", "is not supported")
    if model_type == "starcoder2" and not values.get_flag("use_bias", default=True):
        family = replace(family, attention_biased=False, mlp_biased=False)
    if model_type == "glm4_moe":
        return replace(
            family,
            qkv_biased=values.get_flag("attention_bias", default=False),
            head_norms=values.get_flag("use_qk_norm", default=False),
        )
    return replace(
        family,
        qkv_biased=values.get_flag("qkv_bias", family.qkv_biased),
        attention_biased=values.get_flag("attention_bias", family.attention_biased),
        mlp_biased=values.get_flag("mlp_bias", family.mlp_biased),
    )


def _require_layers(values: ConfigValues) -> int:
    return values.require_integer("num_hidden_layers", "n_layer", "n_layers", max_value=MAX_LAYERS)


def _read_attention(values: ConfigValues, family: _Family, model_type: str, hidden: int) -> Attention:
    heads = values.require_integer("num_attention_heads", "n_head", "n_heads")
    kv_heads = values.find_integer("num_key_value_heads", "num_kv_heads", min_value=1) or heads
    if model_type == "gpt_bigcode" and values.get_flag("multi_query", default=True):
        kv_heads = 1
    if model_type == "falcon" and not values.get_flag("new_decoder_architecture", default=False):
        kv_heads = 1 if values.get_flag("multi_query", default=True) else heads
    width = values.find_integer("head_dim", "attention_head_dim", min_value=1)
    if width is None and hidden % heads:
        raise BadInput(f"{values.where}: hidden size {hidden} is not divisible by {heads} attention heads")
    if heads % kv_heads:
        raise BadInput(
            f"{values.where}: {heads} attention heads are not divisible by {kv_heads} key-value heads"
        )
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_width=width or hidden // heads,
        biased=family.qkv_biased or family.attention_biased,
        output_biased=family.attention_biased,
        head_norms=family.head_norms,
        sinks=family.sinks,
    )


def _read_latent(values: ConfigValues) -> LatentAttention:
    values.refuse_true("attention_bias")
    return LatentAttention(
        heads=values.require_integer("num_attention_heads"),
        query_rank=values.find_integer("q_lora_rank", min_value=1),
        kv_rank=values.require_integer("kv_lora_rank"),
        nope_width=values.require_integer("qk_nope_head_dim"),
        rope_width=values.require_integer("qk_rope_head_dim"),
        value_width=values.require_integer("v_head_dim"),
    )


def _read_windows(values: ConfigValues, family: _Family, layers: int) -> list[int | None]:
    """Return the window of each layer, None if it sees all tokens.

    Raises:
        BadInput: a layer is of an unknown type, or the list has another length than the model.
    """
    window = values.find_integer("sliding_window", min_value=1, max_value=MAX_ROWS)
    chunk = values.find_integer("attention_chunk_size", min_value=1, max_value=MAX_ROWS)
    kinds = values.find_list("layer_types", str)
    if kinds is not None:
        sizes = {"full_attention": None, "sliding_attention": window, "chunked_attention": chunk}
        if unknown := [kind for kind in kinds if kind not in sizes]:
            shown = printable(unknown[0][:40])
            raise BadInput(f"{values.where}: layers of type {shown} are not supported")
        if len(kinds) != layers:
            raise BadInput(
                f"{values.where}: layer_types has {len(kinds)} entries, num_hidden_layers is {layers}"
            )
        return [sizes[kind] for kind in kinds]
    match family.windows:
        case _Windows.ALL:
            return [window] * layers
        case _Windows.FLAG if values.get_flag("use_sliding_window", default=False):
            first = values.find_integer("max_window_layers", max_value=MAX_LAYERS) or 0
            return [window if index >= first else None for index in range(layers)]
        case _Windows.ALTERNATE:
            return [None if index % 2 else window for index in range(layers)]
        case _Windows.SIXTH:
            period = values.find_integer("sliding_window_pattern", min_value=1) or 6
            return [window if (index + 1) % period else None for index in range(layers)]
        case _Windows.CHUNKED:
            period = values.find_integer("no_rope_layer_interval", min_value=1) or 4
            return [chunk if (index + 1) % period else None for index in range(layers)]
        case _:
            return [None] * layers


def _read_feed_forwards(
    values: ConfigValues, family: _Family, model_type: str, hidden: int, layers: int
) -> list[FeedForward]:
    """Return the feed-forward network of each layer: experts, or an MLP in layers without."""
    width = values.find_integer(*_WIDTHS, min_value=1) or family.expansion * hidden
    if not family.experts and (values.find_integer(*_EXPERTS) or 0) <= 1:
        routed = [False] * layers
    else:
        routed = _find_expert_layers(values, layers)
    if not width and not all(routed):
        width = values.require_integer("intermediate_size")
    mlp = Mlp(width=width, gated=family.gated, biased=family.mlp_biased)
    experts = _read_experts(values, family, model_type) if any(routed) or family.experts else mlp
    return [experts if has_experts else mlp for has_experts in routed]


def _read_experts(values: ConfigValues, family: _Family, model_type: str) -> Experts:
    count = values.require_integer(*_EXPERTS)
    active = values.require_integer("num_experts_per_tok", "num_experts_per_token")
    if active > count:
        raise BadInput(f"{values.where}: a token uses {active} of {count} experts")
    width = values.require_integer("moe_intermediate_size", "intermediate_size")
    shared = values.find_integer("shared_expert_intermediate_size")
    if model_type.startswith("llama4"):
        shared = width
    if shared is None:
        shared = width * (values.find_integer("n_shared_experts", "num_shared_experts") or 0)
    return Experts(
        experts=count,
        active=active,
        width=width,
        gated=family.gated,
        biased=family.experts_biased,
        shared_width=shared,
        router_biased=family.router_biased,
        shared_gated_by_token=model_type == "qwen2_moe",
    )


def _find_expert_layers(values: ConfigValues, layers: int) -> list[bool]:
    """Return for each layer if it has experts; families list them, or give a first one and a period."""
    listed = values.find_list("moe_layers", int)
    if listed is not None:
        return [index in set(listed) for index in range(layers)]
    if isinstance(values.config.get("moe_layer_freq"), list):
        flags = values.find_list("moe_layer_freq", int) or []
        if len(flags) != layers:
            raise BadInput(
                f"{values.where}: moe_layer_freq has {len(flags)} entries, num_hidden_layers is {layers}"
            )
        return [bool(flag) for flag in flags]
    dense = set(values.find_list("mlp_only_layers", int) or ())
    first = values.find_integer("first_k_dense_replace", max_value=MAX_LAYERS) or 0
    step = values.find_integer("decoder_sparse_step", "interleave_moe_layer_step", min_value=1) or 1
    period = values.find_integer("moe_layer_freq", min_value=1) or 1
    return [
        index >= first and index not in dense and (index + 1) % step == 0 and index % period == 0
        for index in range(layers)
    ]


def _read_hybrid(values: ConfigValues) -> Transformer:
    """Return a Nemotron-H model: each layer has one part and one norm (arXiv 2504.03624)."""
    values.refuse_true("use_bias", "mamba_proj_bias")
    if not values.get_flag("use_conv_bias", default=True):
        raise values.make_error("use_conv_bias", "is not supported")
    pattern: Sequence[str] = values.get_text("hybrid_override_pattern")
    pattern = pattern or values.find_list("layers_block_type", str) or ()
    if not pattern or len(pattern) > MAX_LAYERS:
        raise BadInput(f"{values.where}: hybrid_override_pattern is missing or too long")
    if unknown := [kind for kind in pattern if kind not in _HYBRID_LAYERS]:
        raise BadInput(f"{values.where}: layers of type {printable(unknown[0][:40])} are not supported")
    if values.find_integer("num_hidden_layers", max_value=MAX_LAYERS) not in (None, len(pattern)):
        raise BadInput(
            f"{values.where}: hybrid_override_pattern has {len(pattern)} layers, "
            f"num_hidden_layers is {values.config['num_hidden_layers']}"
        )
    kinds = [_HYBRID_LAYERS[kind] for kind in pattern]
    hidden = values.require_integer("hidden_size")
    parts: dict[str, tuple[Mixer | None, FeedForward | None]] = {}
    if "mamba" in kinds:
        mamba = Mamba(
            heads=values.require_integer("mamba_num_heads"),
            head_width=values.require_integer("mamba_head_dim"),
            groups=values.require_integer("n_groups"),
            state=values.require_integer("ssm_state_size"),
            convolution=values.require_integer("conv_kernel"),
        )
        parts["mamba"] = (mamba, None)
    if "attention" in kinds:
        attention = _read_attention(values, _LLAMA, "nemotron_h", hidden)
        window = values.find_integer("sliding_window", min_value=1, max_value=MAX_ROWS)
        parts["attention"] = (replace(attention, window=window), None)
    biased = values.get_flag("mlp_bias", default=False)
    if "mlp" in kinds:
        width = values.require_integer("intermediate_size")
        parts["mlp"] = (None, Mlp(width=width, gated=False, biased=biased))
    if "moe" in kinds:
        values.refuse_true("mlp_bias")
        experts = _read_experts(values, _Family(gated=False, router_biased=True), "nemotron_h")
        shared = values.require_integer("moe_shared_expert_intermediate_size")
        count = values.find_integer("n_shared_experts")
        latent = values.find_integer("moe_latent_size", min_value=1)
        shared_width = shared * (1 if count is None else count)
        parts["moe"] = (None, replace(experts, shared_width=shared_width, latent_width=latent))
    return Transformer(
        hidden=hidden,
        layers=_join_equal([parts[kind] for kind in kinds], extra_norms=0),
        vocabulary=values.require_integer("vocab_size", max_value=MAX_ROWS),
        context=values.find_integer("max_position_embeddings", max_value=MAX_ROWS) or 0,
        tied=values.get_flag("tie_word_embeddings", default=False),
    )


def _read_vit(values: ConfigValues) -> Transformer:
    """Return a vision transformer with a classifier (arXiv 2010.11929); ``id2label`` says its classes."""
    hidden, layers = values.require_integer("hidden_size"), _require_layers(values)
    image, patch = values.require_integer("image_size"), values.require_integer("patch_size")
    if image % patch or image > MAX_LAYERS:
        raise BadInput(f"{values.where}: image size {image} is not a multiple of patch size {patch}")
    labels = values.config.get("id2label")
    classes = values.find_integer("num_labels", max_value=MAX_ROWS)
    family = _Family(attention_biased=True)
    attention = replace(_read_attention(values, family, "vit", hidden), causal=False)
    attention = replace(attention, biased=values.get_flag("qkv_bias", default=True))
    mlp = Mlp(width=values.require_integer("intermediate_size"), gated=False, biased=True)
    tokens = (image // patch) ** 2 + 1
    return Transformer(
        hidden=hidden,
        layers=(LayerRun(count=layers, mixer=attention, feed_forward=mlp),),
        classes=classes or (len(labels) if isinstance(labels, dict) else 0),
        context=tokens,
        learned_positions=tokens,
        patch_elements=patch**2 * (values.find_integer("num_channels", min_value=1) or 3),
        layer_norm=True,
    )


def _join_equal(
    rows: Sequence[tuple[Mixer | None, FeedForward | None]], extra_norms: int
) -> tuple[LayerRun, ...]:
    """Return runs of equal consecutive layers."""
    return tuple(
        LayerRun(count=len(list(group)), mixer=mixer, feed_forward=part, extra_norms=extra_norms)
        for (mixer, part), group in groupby(rows)
    )
