"""Count the parameters of model shapes, compute the sizes of one model-parallel rank, and list preset models.

GPT block (no norms, no biases):

    parameters = 12 L h^2 + V h + s h        (12 h^2: attention 4, perceptron 8)

L layers, h hidden, V vocabulary, s context (arXiv 1910.02054, appendix: with or without the last two terms,
the formula reproduces every row within 3 %).

Llama block (arXiv 2302.13971, section 2.2; grouped queries: arXiv 2307.09288; experts: arXiv 2401.04088),
exact, with query width q = heads x head width, key and value width k, MLP width m and E experts:

    block = 2 h q + 2 h k + 3 E h m + 2 h, and h E for the router if E > 1, q + 2 k if query, key and value
            have biases, 2 x head width if queries and keys are normalized
    root  = V h, twice if the head is not tied, + h

Sizes per rank. Parameters of a GPT block with hidden size h over N model-parallel ranks (Megatron-LM, arXiv
1909.08053, section 3: the four matrices are split; norms and the biases of the two row-parallel layers are
replicated on every rank):

    attention_norm 2h   query_key_value 3h(h+1)/N   attention.projection h^2/N + h
    perceptron_norm 2h  expand 4h(h+1)/N            projection 4h^2/N + h

    = (12 h^2 + 7 h)/N + 6 h;  with N = 1: 12 h^2 + 13 h

The root, vocabulary V and context c: token embedding Vh/N, positions ch, final norm 2h, head Vh/N if it is
not tied. A vocabulary or context of 0 means that its tables are not counted. In a Llama block, norms and the
router are replicated on every rank.

Presets: the models of the ZeRO paper and the Llama, Qwen and Mixtral families.

The paper's shapes come from its tables 5 (figure 2), 6 (figure 3), 7 (figure 6) and 10 (figure 4). Table 4
prints hidden 4096 for 40B to 60B, which is an error: 12 * 88 * 4096^2 is only 17.7e9. Table 5 has the correct
6144. If two tables give a model different shapes, the second preset has the shape in its name.

The other shapes come from published configurations; their parameter counts are exact.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput, ask_for_name
from zprof.model.job import Job, LlamaBlock, Shape
from zprof.planner.rounding import ceil_div

#: Hidden elements per head, for shapes without a number of heads.
_DEFAULT_HEAD_WIDTH = 64
_FP32_BYTES = 4
#: GPT-2's 50257 words, padded as Megatron-LM pads them (a multiple of 128 on each of 8 or 16 ranks).
VOCABULARY = 51_200
#: "Sequence length 1K" throughout the paper.
CONTEXT = 1024
#: Heads by hidden size: from table 5 if it lists the size, else heads of 96 to 160 elements.
_HEADS = {1600: 16, 1920: 16, 2304: 24, 3072: 24, 4096: 32, 6144: 32, 8192: 64, 25600: 160}


def count_parameters(shape: Shape) -> int:
    """Return the parameters of a shape; a head tied to the embedding is not counted again."""
    tables = shape.vocabulary * (1 if shape.tied else 2) + shape.position_rows
    final_norm = 0 if shape.block is None else shape.hidden
    return shape.layers * count_block_parameters(shape) + tables * shape.hidden + final_norm


def count_block_parameters(shape: Shape) -> int:
    """Return the parameters of one block of the full model."""
    return 12 * shape.hidden**2 if shape.block is None else _count_llama_elements(shape, ranks=1)


def count_saved_elements(shape: Shape) -> int:
    """Return the elements per token that a block saves for its backward pass, including its input.

    GPT: 12 h, as the paper counts (arXiv 1910.02054, section 3.2, footnote). Llama: see ``llama_block``,
    without the statistics of norms and attention.
    """
    block, h = shape.block, shape.hidden
    if block is None:
        return 12 * h
    queries, keys = (shape.heads or 1) * block.head_width, block.kv_heads * block.head_width
    norms = queries + keys if block.head_norms else 0
    routed = 2 * block.active_experts * h if block.experts > 1 else 0
    return 4 * h + 2 * queries + 2 * keys + norms + 4 * block.active_experts * block.mlp + routed


def scale_width(shape: Shape, hidden: int, ranks: int = 1) -> Shape:
    """Return the shape with another hidden size.

    Head width and MLP width scale with it; the number of heads does not change.
    """
    block = shape.block
    if block is None:
        return replace(shape, hidden=hidden)
    mlp = ceil_div(ceil_div(block.mlp * hidden, shape.hidden), ranks) * ranks
    head_width = ceil_div(block.head_width * hidden, shape.hidden)
    return replace(shape, hidden=hidden, block=replace(block, mlp=mlp, head_width=head_width))


class ModelSizes(Struct, frozen=True, kw_only=True):
    """A shape with the samples of one micro-batch; ``element``: bytes per activation element."""

    shape: Shape
    heads: int
    samples: int
    sequence: int
    micro_batches: int
    element: int
    ranks: int

    @property
    def hidden(self) -> int:
        """Hidden size."""
        return self.shape.hidden

    @property
    def vocabulary(self) -> int:
        """Vocabulary over all ranks."""
        return self.shape.vocabulary

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.samples * self.sequence

    @property
    def stream_bytes(self) -> int:
        """Bytes of a tokens x hidden tensor, the one that passes between blocks."""
        return self.tokens * self.hidden * self.element

    @property
    def split_bytes(self) -> int:
        """Bytes of a tokens x hidden tensor divided over the model-parallel ranks."""
        return self.stream_bytes // self.ranks

    @property
    def matrix_elements(self) -> int:
        """Elements of an h x h matrix, divided over the ranks."""
        return self.hidden * self.hidden // self.ranks

    @property
    def word_elements(self) -> int:
        """Elements of the token embedding, and of the head: vocabulary x hidden, divided over the ranks."""
        return self.vocabulary * self.hidden // self.ranks

    @property
    def norm_elements(self) -> int:
        """Parameters of a norm: weight and bias, or the weight alone for an RMS norm."""
        return self.hidden * (2 if self.shape.block is None else 1)

    @property
    def norm_statistics_bytes(self) -> int:
        """Bytes that a norm saves per micro-batch: mean and 1/std per token, or 1/RMS in fp32."""
        return self.tokens * (2 * self.element if self.shape.block is None else _FP32_BYTES)


def compute_model_sizes(job: Job, shape: Shape) -> ModelSizes:
    """Return the sizes of a job; token counts are 0 without a batch."""
    known = job.batch.tokens is not None
    return ModelSizes(
        shape=shape,
        heads=shape.heads or max(1, shape.hidden // _DEFAULT_HEAD_WIDTH),
        samples=(job.batch.samples or 0) if known else 0,
        sequence=(job.batch.sequence or 0) if known else 0,
        micro_batches=job.batch.micro_batches,
        element=job.element_bytes.parameter,
        ranks=job.degrees.mp,
    )


def count_block_elements(sizes: ModelSizes) -> int:
    """Return the parameters of one block on one rank."""
    if sizes.shape.block is not None:
        return _count_llama_elements(sizes.shape, sizes.ranks)
    h, ranks = sizes.hidden, sizes.ranks
    return 12 * sizes.matrix_elements + 7 * h // ranks + 6 * h


def count_active_block_elements(sizes: ModelSizes) -> int | None:
    """Return the parameters of a block on one rank that a token uses; None if it uses all of them."""
    block = sizes.shape.block
    if block is None or block.experts == 1:
        return None
    idle_experts = block.experts - block.active_experts
    idle = 3 * idle_experts * sizes.shape.hidden * block.mlp // sizes.ranks
    return count_block_elements(sizes) - idle


def count_root_elements(sizes: ModelSizes) -> int:
    """Return the parameters outside the blocks on one rank."""
    words = sizes.word_elements * (1 if sizes.shape.tied else 2)
    return words + sizes.shape.position_rows * sizes.hidden + sizes.norm_elements


def _count_llama_elements(shape: Shape, ranks: int) -> int:
    block, h = shape.block, shape.hidden
    if block is None:
        return 0
    queries, keys = (shape.heads or 1) * block.head_width, block.kv_heads * block.head_width
    split = 2 * h * queries + 2 * h * keys + 3 * block.experts * h * block.mlp
    biases = queries + 2 * keys if block.biased else 0
    router = h * block.experts if block.experts > 1 else 0
    head_norms = 2 * block.head_width if block.head_norms else 0
    return (split + biases) // ranks + 2 * h + router + head_norms


class ModelPreset(Struct, frozen=True, kw_only=True):
    """A named model; ``source``: publication of its shape."""

    name: str
    shape: Shape
    source: str

    @property
    def parameters(self) -> int:
        """Parameters of the shape."""
        return count_parameters(self.shape)


def find_preset(name: str) -> ModelPreset:
    """Return the model with that name; case is ignored.

    Raises:
        BadInput: no preset has that name; the hint lists similar names.
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
    """Properties shared by the models of a family; ``source``: publication of the shapes."""

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
    """Make a model of Llama blocks; ``experts``: the total, and how many each token uses."""
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
_PAPER_PRESETS = (
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
_FAMILY_PRESETS = (
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
MODEL_PRESETS: Mapping[str, ModelPreset] = {
    preset.name: preset for preset in (*_PAPER_PRESETS, *_FAMILY_PRESETS)
}
