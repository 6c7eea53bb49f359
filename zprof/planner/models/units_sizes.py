"""Sizes of a GPT on one model-parallel rank, in elements and bytes.

Parameters of a block, hidden h, over N model-parallel ranks (Megatron-LM, arXiv 1909.08053, section 3: the
four matrices are split, norms and the biases behind the two row-parallel ones are whole on every rank):

    attention_norm 2h   query_key_value 3h(h+1)/N   attention.projection h^2/N + h
    perceptron_norm 2h  expand 4h(h+1)/N            projection 4h^2/N + h

    = (12 h^2 + 7 h)/N + 6 h;  with N = 1: 12 h^2 + 13 h

The root, vocabulary V and context c: token embedding Vh/N, positions ch, final norm 2h, head Vh/N where it is
not tied.  A vocabulary or context of 0 is not counted, and neither is what it would make.
"""

from dataclasses import dataclass

from zprof.model.planning.job import Job, Shape

#: hidden size of a head where the shape does not say how many there are.
_HEAD_WIDTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """A shape and the samples of one micro-batch; ``element``: bytes of an activation."""

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
        """Of one micro-batch."""
        return self.samples * self.sequence

    @property
    def stream_bytes(self) -> int:
        """A tensor of tokens x hidden: what passes between blocks."""
        return self.tokens * self.hidden * self.element

    @property
    def split_bytes(self) -> int:
        """The same of what model-parallel ranks divide."""
        return self.stream_bytes // self.ranks

    @property
    def matrix_elements(self) -> int:
        """h^2, divided over the ranks."""
        return self.hidden * self.hidden // self.ranks

    @property
    def word_elements(self) -> int:
        """Of the token embedding, and of the head: vocabulary x hidden, divided over the ranks."""
        return self.vocabulary * self.hidden // self.ranks


def sizes_of(job: Job, shape: Shape) -> Sizes:
    """The sizes of a job; without a batch of no tokens."""
    known = job.batch.tokens is not None
    return Sizes(
        hidden=shape.hidden,
        heads=shape.heads or max(1, shape.hidden // _HEAD_WIDTH),
        vocabulary=shape.vocabulary,
        context=shape.context,
        tied=shape.tied,
        samples=(job.batch.samples or 0) if known else 0,
        sequence=(job.batch.sequence or 0) if known else 0,
        micro_batches=job.batch.micro_batches,
        element=job.element_bytes.parameter,
        ranks=job.degrees.mp,
    )


def block_elements(sizes: Sizes) -> int:
    """Parameters of one block."""
    h, ranks = sizes.hidden, sizes.ranks
    return 12 * sizes.matrix_elements + 7 * h // ranks + 6 * h


def root_elements(sizes: Sizes) -> int:
    """Parameters around the blocks."""
    words = sizes.word_elements * (1 if sizes.tied else 2)
    return words + sizes.context * sizes.hidden + 2 * sizes.hidden
