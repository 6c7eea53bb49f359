"""Count the parameters of model shapes and compute the sizes of one model-parallel rank.

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
"""

from msgspec import Struct
from msgspec.structs import replace

from zprof.model.job import Job, Shape
from zprof.planner.rounding import ceil_div

#: Hidden elements per head, for shapes without a number of heads.
_DEFAULT_HEAD_WIDTH = 64
_FP32_BYTES = 4


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
