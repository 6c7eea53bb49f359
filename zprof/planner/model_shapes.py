"""Provide GPT shapes: presets by name, parameter counts, and sizes per model-parallel rank.

    parameters = 12 L h^2 + V h + s h        (12 h^2: attention 4, perceptron 8; no norms, no biases)

L layers, h hidden, V vocabulary, s context (arXiv 1910.02054, appendix: with or without the last two terms,
this reproduces every row there within 3 %). Shapes come from the paper's tables 5 (figure 2), 6 (figure 3), 7
(figure 6) and 10 (figure 4). Table 4 prints hidden 4096 for 40B to 60B, which is an error: 12 * 88 * 4096^2
is only 17.7e9. Table 5 has the correct 6144. If two tables give a model different shapes, the second preset
has the shape in its name.

Sizes per rank. Parameters of a block with hidden size h over N model-parallel ranks (Megatron-LM, arXiv
1909.08053, section 3: the four matrices are split; norms and the biases of the two row-parallel layers are
replicated on every rank):

    attention_norm 2h   query_key_value 3h(h+1)/N   attention.projection h^2/N + h
    perceptron_norm 2h  expand 4h(h+1)/N            projection 4h^2/N + h

    = (12 h^2 + 7 h)/N + 6 h;  with N = 1: 12 h^2 + 13 h

The root, vocabulary V and context c: token embedding Vh/N, positions ch, final norm 2h, head Vh/N if it is
not tied. A vocabulary or context of 0 means that its tables are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zprof.model.errors import BadInput
from zprof.model.job import Job, Shape

#: GPT-2's 50257 words, padded as Megatron-LM pads them (a multiple of 128 on each of 8 or 16 ranks).
VOCABULARY = 51_200
#: "Sequence length 1K" throughout the paper.
CONTEXT = 1024
#: Heads by hidden size: from table 5 if it has that width, else heads of 96 to 160 elements.
_HEADS = {1600: 16, 1920: 16, 2304: 24, 3072: 24, 4096: 32, 6144: 32, 8192: 64, 25600: 160}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPreset:
    """A named model; ``source`` is the publication of its shape."""

    name: str
    shape: Shape
    source: str

    @property
    def parameters(self) -> int:
        """Parameters by the formula of this module."""
        return count_parameters(self.shape)


def count_parameters(shape: Shape) -> int:
    """Return the parameters of a shape; a head tied to the embedding is not counted again."""
    tables = shape.vocabulary * (1 if shape.tied else 2) + shape.context
    return 12 * shape.layers * shape.hidden**2 + tables * shape.hidden


def find_preset(name: str) -> ModelPreset:
    """Return the model of that name, in any case.

    Raises:
        BadInput: no preset has that name.
    """
    preset = MODEL_PRESETS.get(name.strip().lower())
    if preset is None:
        raise BadInput(f"unknown model {name[:60]!r}", hint=f"known: {', '.join(MODEL_PRESETS)}")
    return preset


def _make_preset(name: str, layers: int, hidden: int, source: str, context: int = CONTEXT) -> ModelPreset:
    shape = Shape(layers=layers, hidden=hidden, vocabulary=VOCABULARY, context=context, heads=_HEADS[hidden])
    return ModelPreset(name=name, shape=shape, source=source)


_PAPER = "arXiv 1910.02054"
_ALL = (
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
MODEL_PRESETS: Mapping[str, ModelPreset] = {preset.name: preset for preset in _ALL}


#: Hidden elements per head if the shape does not state the number of heads.
_DEFAULT_HEAD_WIDTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSizes:
    """A shape with the samples of one micro-batch; ``element`` is the bytes per activation element."""

    hidden: int
    heads: int
    vocabulary: int
    context: int
    tied: bool
    samples: int
    sequence: int
    micro_batches: int
    element: int
    ranks: int

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.samples * self.sequence

    @property
    def stream_bytes(self) -> int:
        """Bytes of a tokens x hidden tensor, as it passes between blocks."""
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


def compute_gpt_sizes(job: Job, shape: Shape) -> GptSizes:
    """Return the sizes of a job; without a batch, they have no tokens."""
    known = job.batch.tokens is not None
    return GptSizes(
        hidden=shape.hidden,
        heads=shape.heads or max(1, shape.hidden // _DEFAULT_HEAD_WIDTH),
        vocabulary=shape.vocabulary,
        context=shape.context,
        tied=shape.tied,
        samples=(job.batch.samples or 0) if known else 0,
        sequence=(job.batch.sequence or 0) if known else 0,
        micro_batches=job.batch.micro_batches,
        element=job.element_bytes.parameter,
        ranks=job.degrees.mp,
    )


def count_block_elements(sizes: GptSizes) -> int:
    """Return the parameters of one block on one rank."""
    h, ranks = sizes.hidden, sizes.ranks
    return 12 * sizes.matrix_elements + 7 * h // ranks + 6 * h


def root_elements(sizes: GptSizes) -> int:
    """Return the parameters outside the blocks on one rank."""
    words = sizes.word_elements * (1 if sizes.tied else 2)
    return words + sizes.context * sizes.hidden + 2 * sizes.hidden
