"""List the known models by name: shapes of the ZeRO paper and of the Llama, Qwen and Mixtral families.

Shapes of the paper come from its tables 5 (figure 2), 6 (figure 3), 7 (figure 6) and 10 (figure 4). Table 4
prints hidden 4096 for 40B to 60B, which is an error: 12 * 88 * 4096^2 is only 17.7e9. Table 5 has the correct
6144. If two tables give a model different shapes, the second preset has the shape in its name.

Shapes of the other families are those of their published configurations; their parameter counts are exact.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.base.suggestions import ask_for_name
from zprof.model.job import LlamaBlock, Shape
from zprof.planner.model_shapes import count_parameters

#: GPT-2's 50257 words, padded as Megatron-LM pads them (a multiple of 128 on each of 8 or 16 ranks).
VOCABULARY = 51_200
#: "Sequence length 1K" throughout the paper.
CONTEXT = 1024
#: Heads by hidden size: from table 5 if it has that width, else heads of 96 to 160 elements.
_HEADS = {1600: 16, 1920: 16, 2304: 24, 3072: 24, 4096: 32, 6144: 32, 8192: 64, 25600: 160}


class ModelPreset(Struct, frozen=True, kw_only=True):
    """A named model; ``source`` is the publication of its shape."""

    name: str
    shape: Shape
    source: str

    @property
    def parameters(self) -> int:
        """Parameters of the shape."""
        return count_parameters(self.shape)


def find_preset(name: str) -> ModelPreset:
    """Return the model of that name, in any case.

    Raises:
        BadInput: no preset has that name; the hint has similar ones.
    """
    preset = MODEL_PRESETS.get(name.strip().lower())
    if preset is None:
        question = ask_for_name(name, MODEL_PRESETS)
        known = f"known: {', '.join(MODEL_PRESETS)}"
        raise BadInput(
            f"unknown model {name[:60]!r}",
            hint=f"{question} zprof plan --preset list shows all" if question else known,
        )
    return preset


def _make_preset(name: str, layers: int, hidden: int, source: str, context: int = CONTEXT) -> ModelPreset:
    shape = Shape(layers=layers, hidden=hidden, vocabulary=VOCABULARY, context=context, heads=_HEADS[hidden])
    return ModelPreset(name=name, shape=shape, source=source)


class _Family(Struct, frozen=True, kw_only=True):
    """What the models of a family share; ``source`` is the publication of their shapes."""

    source: str
    vocabulary: int
    context: int
    biased: bool = False
    head_norms: bool = False


def _make_llama(
    name: str,
    family: _Family,
    layers: int,
    hidden: int,
    *,
    heads: int,
    kv_heads: int,
    mlp: int,
    head_width: int = 128,
    vocabulary: int | None = None,
    tied: bool = False,
    experts: tuple[int, int] = (1, 1),
) -> ModelPreset:
    """Make a model of Llama blocks; ``experts``: all, and those that a token is sent to."""
    block = LlamaBlock(
        kv_heads=kv_heads,
        head_width=head_width,
        mlp=mlp,
        biased=family.biased,
        head_norms=family.head_norms,
        experts=experts[0],
        active_experts=experts[1],
    )
    shape = Shape(
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary or family.vocabulary,
        context=family.context,
        heads=heads,
        tied=tied,
        block=block,
    )
    return ModelPreset(name=name, shape=shape, source=family.source)


_PAPER = "arXiv 1910.02054"
_OF_PAPER = (
    _make_preset("gpt2-1.5b", 48, 1600, f"{_PAPER}, section 3.2 and table 5"),
    _make_preset("1.5b", 34, 1920, f"{_PAPER}, table 10"),
    _make_preset("2.5b", 54, 1920, f"{_PAPER}, table 10"),
    _make_preset("4b", 64, 2304, f"{_PAPER}, table 10"),
    _make_preset("6b", 52, 3072, f"{_PAPER}, table 10"),
    _make_preset("7.5b", 36, 4096, f"size of {_PAPER}, figure 1, which gives no shape"),
    _make_preset("8b", 72, 3072, f"{_PAPER}, tables 5 and 10"),
    _make_preset("10b", 50, 4096, f"{_PAPER}, table 10"),
    _make_preset("11b", 54, 4096, f"{_PAPER}, table 10"),
    _make_preset("12b", 58, 4096, f"{_PAPER}, table 10"),
    _make_preset("13b", 62, 4096, f"{_PAPER}, table 10"),
    _make_preset("40b", 88, 6144, f"{_PAPER}, table 5 (table 4 prints hidden 4096, an error)"),
    _make_preset("40b-50x8192", 50, 8192, f"{_PAPER}, table 7"),
    _make_preset("50b", 62, 8192, f"{_PAPER}, table 7"),
    _make_preset("60b", 75, 8192, f"{_PAPER}, tables 6 and 9"),
    _make_preset(
        "60b-132x6144", 132, 6144, f"{_PAPER}, tables 5 and 7 (table 4 prints hidden 4096, an error)"
    ),
    _make_preset("80b", 100, 8192, f"{_PAPER}, table 5"),
    _make_preset("100b", 125, 8192, f"{_PAPER}, table 5"),
    _make_preset("120b", 150, 8192, f"{_PAPER}, table 5"),
    _make_preset("128b", 159, 8192, f"size of {_PAPER}, table 1, which gives no shape"),
    _make_preset("140b", 175, 8192, f"{_PAPER}, tables 5 and 7"),
    _make_preset("150b", 187, 8192, f"{_PAPER}, table 7"),
    _make_preset("170b", 212, 8192, f"{_PAPER}, tables 5 and 9"),
    _make_preset(
        "1t", 128, 25600, f"size of {_PAPER}, table 1; shape of arXiv 2104.04473, table 1", context=2048
    ),
)
_CONFIG = "config.json of the released weights"
_LLAMA_2 = _Family(source="arXiv 2307.09288, table 1", vocabulary=32_000, context=4096)
_LLAMA_3 = _Family(source="arXiv 2407.21783, table 3", vocabulary=128_256, context=8192)
_LLAMA_31 = replace(_LLAMA_3, context=131_072)
_LLAMA_32 = replace(_LLAMA_31, source=_CONFIG)
_QWEN_25 = _Family(
    source=f"arXiv 2412.15115, table 1; {_CONFIG}", vocabulary=151_936, context=32_768, biased=True
)
_QWEN_3 = _Family(
    source=f"arXiv 2505.09388, tables 1 and 2; {_CONFIG}", vocabulary=151_936, context=40_960, head_norms=True
)
_MISTRAL = _Family(source="arXiv 2310.06825, table 1", vocabulary=32_000, context=32_768)
_MIXTRAL = replace(_MISTRAL, source="arXiv 2401.04088, table 1")
_MIXTRAL_22B = replace(_MISTRAL, source=_CONFIG, context=65_536)
_OF_FAMILIES = (
    _make_llama("llama-2-7b", _LLAMA_2, 32, 4096, heads=32, kv_heads=32, mlp=11_008),
    _make_llama("llama-2-13b", _LLAMA_2, 40, 5120, heads=40, kv_heads=40, mlp=13_824),
    _make_llama("llama-2-70b", _LLAMA_2, 80, 8192, heads=64, kv_heads=8, mlp=28_672),
    _make_llama("llama-3-8b", _LLAMA_3, 32, 4096, heads=32, kv_heads=8, mlp=14_336),
    _make_llama("llama-3-70b", _LLAMA_3, 80, 8192, heads=64, kv_heads=8, mlp=28_672),
    _make_llama("llama-3-405b", _LLAMA_31, 126, 16_384, heads=128, kv_heads=8, mlp=53_248),
    _make_llama("llama-3.1-8b", _LLAMA_31, 32, 4096, heads=32, kv_heads=8, mlp=14_336),
    _make_llama("llama-3.1-70b", _LLAMA_31, 80, 8192, heads=64, kv_heads=8, mlp=28_672),
    _make_llama("llama-3.1-405b", _LLAMA_31, 126, 16_384, heads=128, kv_heads=8, mlp=53_248),
    _make_llama(
        "llama-3.2-1b", _LLAMA_32, 16, 2048, heads=32, kv_heads=8, mlp=8192, head_width=64, tied=True
    ),
    _make_llama("llama-3.2-3b", _LLAMA_32, 28, 3072, heads=24, kv_heads=8, mlp=8192, tied=True),
    _make_llama("qwen2.5-0.5b", _QWEN_25, 24, 896, heads=14, kv_heads=2, mlp=4864, head_width=64, tied=True),
    _make_llama("qwen2.5-1.5b", _QWEN_25, 28, 1536, heads=12, kv_heads=2, mlp=8960, tied=True),
    _make_llama("qwen2.5-3b", _QWEN_25, 36, 2048, heads=16, kv_heads=2, mlp=11_008, tied=True),
    _make_llama("qwen2.5-7b", _QWEN_25, 28, 3584, heads=28, kv_heads=4, mlp=18_944, vocabulary=152_064),
    _make_llama("qwen2.5-14b", _QWEN_25, 48, 5120, heads=40, kv_heads=8, mlp=13_824, vocabulary=152_064),
    _make_llama("qwen2.5-32b", _QWEN_25, 64, 5120, heads=40, kv_heads=8, mlp=27_648, vocabulary=152_064),
    _make_llama("qwen2.5-72b", _QWEN_25, 80, 8192, heads=64, kv_heads=8, mlp=29_568, vocabulary=152_064),
    _make_llama("qwen3-0.6b", _QWEN_3, 28, 1024, heads=16, kv_heads=8, mlp=3072, tied=True),
    _make_llama("qwen3-1.7b", _QWEN_3, 28, 2048, heads=16, kv_heads=8, mlp=6144, tied=True),
    _make_llama("qwen3-4b", _QWEN_3, 36, 2560, heads=32, kv_heads=8, mlp=9728, tied=True),
    _make_llama("qwen3-8b", _QWEN_3, 36, 4096, heads=32, kv_heads=8, mlp=12_288),
    _make_llama("qwen3-14b", _QWEN_3, 40, 5120, heads=40, kv_heads=8, mlp=17_408),
    _make_llama("qwen3-32b", _QWEN_3, 64, 5120, heads=64, kv_heads=8, mlp=25_600),
    _make_llama("qwen3-30b-a3b", _QWEN_3, 48, 2048, heads=32, kv_heads=4, mlp=768, experts=(128, 8)),
    _make_llama("qwen3-235b-a22b", _QWEN_3, 94, 4096, heads=64, kv_heads=4, mlp=1536, experts=(128, 8)),
    _make_llama("mistral-7b", _MISTRAL, 32, 4096, heads=32, kv_heads=8, mlp=14_336),
    _make_llama("mixtral-8x7b", _MIXTRAL, 32, 4096, heads=32, kv_heads=8, mlp=14_336, experts=(8, 2)),
    _make_llama("mixtral-8x22b", _MIXTRAL_22B, 56, 6144, heads=48, kv_heads=8, mlp=16_384, experts=(8, 2)),
)
MODEL_PRESETS: Mapping[str, ModelPreset] = {preset.name: preset for preset in (*_OF_PAPER, *_OF_FAMILIES)}
