"""A transformer block, operator by operator: what its forward keeps, and what lives in its backward.

Bytes with T tokens, hidden h, a heads, e bytes an element, N model-parallel ranks (sequence length does not
enter: attention is computed in tiles, FlashAttention, arXiv 2205.14135):

    operator              keeps for the backward                       bytes
    attention_norm        its input x; mean and 1/std                  T h e; 2 T e
    query_key_value       its input (the norm's output)                T h e
    attention             q, k, v; output; log-sum-exp in fp32         3 T h e/N; T h e/N; 4 T a/N
    projection            its input (attention's output)               counted there
    perceptron_norm       its input; mean and 1/std                    T h e; 2 T e
    expand                its input (the norm's output)                T h e
    gelu                  its input                                    4 T h e/N
    projection            its input (gelu's output)                    4 T h e/N

    = T e (4 h + 12 h/N + 4) + 4 T a/N;  the paper's footnote counts 12 T h for the whole (arXiv 1910.02054,
    section 3.2), which leaves norms and residual inputs out.

The backward's highest moments: the gelu's (its gradient in and out, 8 T h e/N, beside the stream's), and
attention's, whose three gradients are stacked, then laid out anew (6 T h e/N).  Kernels on a GPU keep the
norms' statistics in fp32 (2 x 4 T) and allocate workspaces of their own; those of CPU kernels (oneDNN packs
16-bit matrices) are left out: they depend on the processor.
"""

from collections.abc import Iterator

from zprof.planner.models.units_moments import Moments, Step, play, saved_of
from zprof.planner.models.units_sizes import Sizes

SAVED = frozenset(
    ("x", "stats1", "norm1", "qkv", "attention", "lse", "middle", "stats2", "norm2", "wide", "gelu")
)
_LSE_BYTES = 4


def block_moments(sizes: Sizes) -> Moments:
    """The moments of one block; the gradient of its output is there when its backward begins."""
    forward = _forward(sizes)
    stream = sizes.stream_bytes
    kept = {"x": stream, **saved_of(forward, SAVED)}
    return Moments(
        forward=play(forward, saved=SAVED, live={"x": stream}),
        checkpointed=play(_unsaved_forward(sizes), saved=frozenset("x"), live={"x": stream}),
        backward=play(_backward(sizes), saved=SAVED, live={**kept, "g": stream}),
    )


def forward_flop(sizes: Sizes) -> float:
    """Two for a multiply and an add: 24 T h^2 of the matrices and 4 T s h of attention, over N ranks."""
    h, tokens = sizes.hidden, sizes.tokens
    return (24.0 * tokens * h * h + 4.0 * tokens * sizes.sequence * h) / sizes.ranks


def _forward(sizes: Sizes) -> tuple[Step, ...]:
    stream, part, stats = sizes.stream_bytes, sizes.split_bytes, 2 * sizes.tokens * sizes.element
    lse = _LSE_BYTES * sizes.tokens * sizes.heads // sizes.ranks
    return (
        Step(operator="layer_norm", makes={"norm1": stream, "stats1": stats}),
        Step(operator="query_key_value", makes={"qkv": 3 * part}),
        Step(operator="attention", makes={"attention": part, "lse": lse}),
        *_row_parallel("projection", "branch1", sizes),
        Step(operator="add", makes={"middle": stream}, drops=("branch1",)),
        Step(operator="layer_norm", makes={"norm2": stream, "stats2": stats}),
        Step(operator="expand", makes={"wide": 4 * part}),
        Step(operator="gelu", makes={"gelu": 4 * part}),
        *_row_parallel("projection", "branch2", sizes),
        Step(operator="add", makes={"y": stream}, drops=("branch2",)),
    )


def _unsaved_forward(sizes: Sizes) -> tuple[Step, ...]:
    """The forward where nothing but the input is kept: a tensor dies when the last that reads it has run."""
    stream, part = sizes.stream_bytes, sizes.split_bytes
    return (
        Step(operator="query_key_value", makes={"norm1": stream, "qkv": 3 * part}),
        Step(operator="attention", makes={"attention": part}),
        Step(operator="projection", makes={"branch1": stream}, drops=("norm1", "qkv", "attention")),
        Step(operator="add", makes={"middle": stream}, drops=("branch1",)),
        Step(operator="expand", makes={"norm2": stream, "wide": 4 * part}, drops=("norm2",)),
        Step(operator="gelu", makes={"gelu": 4 * part}, drops=("wide",)),
        Step(operator="projection", makes={"branch2": stream}, drops=("gelu",)),
        Step(operator="add", makes={"y": stream}, drops=("branch2", "middle")),
    )


def _backward(sizes: Sizes) -> tuple[Step, ...]:
    stream, part, matrix, h = sizes.stream_bytes, sizes.split_bytes, sizes.matrix_elements, sizes.hidden
    share = h // sizes.ranks
    return (
        Step(
            operator="projection",
            makes={"dgelu": 4 * part},
            gradient_elements=4 * matrix + h,
            drops=("gelu",),
        ),
        Step(operator="gelu", makes={"dwide": 4 * part}, drops=("dgelu", "wide")),
        Step(
            operator="expand",
            makes={"dnorm2": stream},
            gradient_elements=4 * matrix + 4 * share,
            drops=("dwide", "norm2"),
        ),
        *_copied(sizes),
        Step(
            operator="layer_norm",
            makes={"dmiddle": stream},
            gradient_elements=2 * h,
            drops=("dnorm2", "middle", "stats2"),
        ),
        Step(operator="add", makes={"g1": stream}, drops=("g", "dmiddle")),
        Step(operator="projection", makes={"dattention": part}, gradient_elements=matrix + h),
        Step(operator="attention", makes={"dqkv": 3 * part}, drops=("dattention", "qkv", "attention", "lse")),
        Step(operator="stack", makes={"stacked": 3 * part}, drops=("dqkv",)),
        Step(operator="clone", makes={"laid_out": 3 * part}, drops=("stacked",)),
        Step(
            operator="query_key_value",
            makes={"dnorm1": stream},
            gradient_elements=3 * matrix + 3 * share,
            drops=("laid_out", "norm1"),
        ),
        *_copied(sizes),
        Step(
            operator="layer_norm",
            makes={"dx": stream},
            gradient_elements=2 * h,
            drops=("dnorm1", "x", "stats1"),
        ),
        Step(operator="add", makes={"g0": stream}, drops=("g1", "dx")),
    )


def _row_parallel(operator: str, name: str, sizes: Sizes) -> Iterator[Step]:
    """Split by rows: the sum over the ranks, then the bias is added to it, in memory of its own."""
    if sizes.ranks == 1:
        yield Step(operator=operator, makes={name: sizes.stream_bytes})
        return
    yield Step(operator=operator, makes={"summed": sizes.stream_bytes})
    yield Step(operator="add_bias", makes={name: sizes.stream_bytes}, drops=("summed",))


def _copied(sizes: Sizes) -> Iterator[Step]:
    """The gradient before a layer that is split by columns: a copy of it is summed over the ranks."""
    if sizes.ranks > 1:
        yield Step(operator="all_reduce", makes={"copy": sizes.stream_bytes}, drops=("copy",))
