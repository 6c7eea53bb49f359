"""Model the block of the Llama family operator by operator; experts make it a Mixtral block.

Bytes for T tokens, hidden size h, query width q (heads x head width), key and value width k, MLP width m, a
heads, e bytes per element and N model-parallel ranks. Kernels are fused: an RMS norm saves its input and
1/RMS in fp32, attention reads grouped keys and values without repeating them (FlashAttention, arXiv
2205.14135), and the rotation of queries and keys, which is linear, saves nothing.

    operator              saves for the backward                       bytes
    attention_norm        its input x; 1/RMS                           T h e; 4 T
    query, key, value     their input (the norm's output)              T h e
    head norms (Qwen 3)   queries and keys; 1/RMS per head             T (q + k) e/N; 4 T (a + a_k)/N
    attention             q, k, v; output; log-sum-exp in fp32         T (q + 2 k) e/N; T q e/N; 4 T a/N
    projection            its input (attention's output)               counted there
    mlp_norm              its input; 1/RMS                             T h e; 4 T
    gate, up              their input (the norm's output)              T h e
    silu                  its input (gate)                             T m e/N
    product               its inputs (silu's output and up)            2 T m e/N
    down                  its input (the product)                      T m e/N

    = T e (4 h + (2 q + 2 k + 4 m)/N) + 8 T + 4 T a/N

Experts (arXiv 2401.04088, section 2.1). A router sends each token to A of E experts: the MLP runs on A T rows
instead of T, and no token is dropped. The block also saves these rows and the expert outputs, A T h e each,
the router's softmax in fp32, 4 T E, and the weight and 8-byte index of each row, 12 A T. A replica computes
its own tokens with all experts: expert parallelism is not modelled.

    forward flop = 2 T (2 h q + 2 h k + 3 A h m + h E if E > 1) / N + 4 T s q / N

A multiply-add is 2 flop; attention over s tokens is counted in full, without halving it for the causal mask,
as for GPT blocks.
"""

from collections.abc import Iterator

from msgspec import Struct

from zprof.model.job import LlamaBlock
from zprof.planner.model_shapes import ModelSizes
from zprof.planner.unit_times import (
    OperatorStep,
    UnitMoments,
    copy_gradient,
    replay_operators,
    saved_bytes_by_name,
)

_SAVED = frozenset(
    (
        *("x", "stats1", "norm1", "raw_queries", "raw_keys", "head_stats", "queries", "keys", "values"),
        *("attention", "lse", "middle", "stats2", "norm2", "gate", "silu", "up", "product"),
        *("probabilities", "places", "rows", "outputs"),
    )
)
_FP32 = 4
_INDEX_BYTES = 8
#: Tensor: its last reader in a forward pass that saves only the block input.
_LAST_READERS = {
    **{"norm1": "query_key_value", "stats1": "rms_norm", "stats2": "rms_norm", "head_stats": "head_norms"},
    **{"raw_queries": "head_norms", "raw_keys": "head_norms", "lse": "attention"},
    **{"queries": "attention", "keys": "attention", "values": "attention", "attention": "projection"},
    **{"gate": "silu", "silu": "product", "up": "product", "product": "down"},
    **{"probabilities": "softmax", "places": "unpermute", "outputs": "weight"},
}


def compute_llama_moments(sizes: ModelSizes, block: LlamaBlock) -> UnitMoments:
    """Return the moments of one block; its output gradient is live when its backward pass starts."""
    tokens, ranks, h = sizes.tokens, sizes.ranks, sizes.hidden
    query_width, key_width = sizes.heads * block.head_width, block.kv_heads * block.head_width
    widths = _Widths(
        queries=tokens * query_width * sizes.element // ranks,
        keys=tokens * key_width * sizes.element // ranks,
        lse=_FP32 * tokens * sizes.heads // ranks,
        mlp=block.active_experts * tokens * block.mlp * sizes.element // ranks,
        rows=block.active_experts * sizes.stream_bytes,
        query_matrix=h * query_width // ranks,
        key_matrix=h * key_width // ranks,
        mlp_matrix=block.experts * h * block.mlp // ranks,
    )
    forward = (*_attention_forward(sizes, block, widths), *_mlp_forward(sizes, block, widths))
    stream = sizes.stream_bytes
    kept = {"x": stream, **saved_bytes_by_name(forward, _SAVED)}
    return UnitMoments(
        forward=replay_operators(forward, saved=_SAVED, live={"x": stream}),
        checkpointed=replay_operators(
            _drop_after_last_use(forward), saved=frozenset("x"), live={"x": stream}
        ),
        backward=replay_operators(
            (*_mlp_backward(sizes, block, widths), *_attention_backward(sizes, block, widths)),
            saved=_SAVED,
            live={**kept, "g": stream},
        ),
    )


def compute_llama_flop(sizes: ModelSizes, block: LlamaBlock) -> float:
    """Return the forward flop of a block on one rank."""
    h, queries = sizes.hidden, sizes.heads * block.head_width
    matrices = 2 * h * queries + 2 * h * block.kv_heads * block.head_width
    matrices += 3 * block.active_experts * h * block.mlp + (h * block.experts if block.experts > 1 else 0)
    return (2.0 * sizes.tokens * matrices + 4.0 * sizes.tokens * sizes.sequence * queries) / sizes.ranks


class _Widths(Struct, frozen=True, kw_only=True):
    """Tensor bytes of a micro-batch on one rank, and matrix elements.

    ``queries``, ``keys``: T q e/N and T k e/N. ``mlp``: A T m e/N. ``rows``: A T h e, the expert inputs.
    ``query_matrix``, ``key_matrix``, ``mlp_matrix``: h q/N, h k/N and h m/N, the last over all experts.
    """

    queries: int
    keys: int
    lse: int
    mlp: int
    rows: int
    query_matrix: int
    key_matrix: int
    mlp_matrix: int


def _attention_forward(sizes: ModelSizes, block: LlamaBlock, widths: _Widths) -> Iterator[OperatorStep]:
    stream, stats = sizes.stream_bytes, sizes.norm_statistics_bytes
    yield OperatorStep(operator="rms_norm", makes={"norm1": stream, "stats1": stats})
    raw = {"raw_queries": widths.queries, "raw_keys": widths.keys}
    if block.head_norms:
        heads = _FP32 * sizes.tokens * (sizes.heads + block.kv_heads) // sizes.ranks
        normed = {"normed_queries": widths.queries, "normed_keys": widths.keys}
        yield OperatorStep(operator="query_key_value", makes={**raw, "values": widths.keys})
        yield OperatorStep(operator="head_norms", makes={**normed, "head_stats": heads})
        rotated = tuple(normed)
    else:
        unrotated = {"flat_queries": widths.queries, "flat_keys": widths.keys}
        yield OperatorStep(operator="query_key_value", makes={**unrotated, "values": widths.keys})
        rotated = tuple(unrotated)
    yield OperatorStep(
        operator="rotate", makes={"queries": widths.queries, "keys": widths.keys}, drops=rotated
    )
    yield OperatorStep(operator="attention", makes={"attention": widths.queries, "lse": widths.lse})
    yield OperatorStep(operator="projection", makes={"branch1": stream})
    yield OperatorStep(operator="add", makes={"middle": stream}, drops=("branch1",))
    yield OperatorStep(operator="rms_norm", makes={"norm2": stream, "stats2": stats})


def _mlp_forward(sizes: ModelSizes, block: LlamaBlock, widths: _Widths) -> Iterator[OperatorStep]:
    stream, routed = sizes.stream_bytes, block.experts > 1
    if routed:
        yield OperatorStep(operator="router", makes={"scores": sizes.tokens * block.experts * sizes.element})
        yield OperatorStep(
            operator="softmax",
            makes={
                "probabilities": _FP32 * sizes.tokens * block.experts,
                "places": (_FP32 + _INDEX_BYTES) * sizes.tokens * block.active_experts,
            },
            drops=("scores",),
        )
        yield OperatorStep(operator="permute", makes={"rows": widths.rows})
    yield OperatorStep(operator="gate", makes={"gate": widths.mlp})
    yield OperatorStep(operator="silu", makes={"silu": widths.mlp})
    yield OperatorStep(operator="up", makes={"up": widths.mlp})
    yield OperatorStep(operator="product", makes={"product": widths.mlp})
    if routed:
        yield OperatorStep(operator="down", makes={"outputs": widths.rows})
        yield OperatorStep(operator="weight", makes={"weighted": widths.rows})
        yield OperatorStep(operator="unpermute", makes={"branch2": stream}, drops=("weighted",))
    else:
        yield OperatorStep(operator="down", makes={"branch2": stream})
    yield OperatorStep(operator="add", makes={"y": stream}, drops=("branch2",))


def _drop_after_last_use(forward: tuple[OperatorStep, ...]) -> Iterator[OperatorStep]:
    """Yield the same forward pass with only the input saved: each tensor is freed after its last reader."""
    has_rows = any("rows" in step.makes for step in forward)
    readers = {**_LAST_READERS, "norm2": "permute" if has_rows else "up", "rows": "up"}
    for step in forward:
        dead = tuple(name for name, reader in readers.items() if reader == step.operator)
        middle = ("middle",) if step.operator == "add" and "y" in step.makes else ()
        yield OperatorStep(operator=step.operator, makes=step.makes, drops=(*step.drops, *dead, *middle))


def _mlp_backward(sizes: ModelSizes, block: LlamaBlock, widths: _Widths) -> Iterator[OperatorStep]:
    stream, matrix, routed = sizes.stream_bytes, widths.mlp_matrix, block.experts > 1
    read = "rows" if routed else "norm2"
    if routed:
        yield OperatorStep(
            operator="unpermute", makes={"dweighted": widths.rows}
        )  # rows of the gradient, which the residual stream still needs
        yield OperatorStep(operator="weight", makes={"doutputs": widths.rows}, drops=("dweighted", "outputs"))
    yield OperatorStep(
        operator="down",
        makes={"dproduct": widths.mlp},
        gradient_elements=matrix,
        drops=("product", "doutputs"),
    )
    yield OperatorStep(
        operator="product",
        makes={"dsilu": widths.mlp, "dup": widths.mlp},
        drops=("dproduct", "silu", "up"),
    )
    yield OperatorStep(
        operator="up",
        makes={"dread": widths.rows if routed else stream},
        gradient_elements=matrix,
        drops=("dup",),
    )
    yield OperatorStep(operator="silu", makes={"dgate": widths.mlp}, drops=("dsilu", "gate"))
    yield OperatorStep(
        operator="gate",
        makes={"dread_too": widths.rows if routed else stream},
        gradient_elements=matrix,
        drops=("dgate", read),
    )
    yield OperatorStep(operator="accumulate", drops=("dread_too",))  # autograd adds in place
    if routed:
        yield OperatorStep(operator="permute", makes={"dnorm2": stream}, drops=("dread",))
        yield OperatorStep(
            operator="router",
            makes={"dscores": _FP32 * sizes.tokens * block.experts, "drouted": stream},
            gradient_elements=sizes.hidden * block.experts,
            drops=("dscores", "drouted", "probabilities", "places", "norm2"),
        )
    yield from copy_gradient(sizes)
    yield OperatorStep(
        operator="rms_norm",
        makes={"dmiddle": stream},
        gradient_elements=sizes.norm_elements,
        drops=("dnorm2", "dread", "middle", "stats2"),
    )
    yield OperatorStep(operator="add", makes={"g1": stream}, drops=("g", "dmiddle"))


def _attention_backward(sizes: ModelSizes, block: LlamaBlock, widths: _Widths) -> Iterator[OperatorStep]:
    stream, queries, keys = sizes.stream_bytes, widths.queries, widths.keys
    yield OperatorStep(
        operator="projection", makes={"dattention": queries}, gradient_elements=widths.query_matrix
    )
    yield OperatorStep(
        operator="attention",
        makes={"dqueries": queries, "dkeys": keys, "dvalues": keys},
        drops=("dattention", "queries", "keys", "values", "attention", "lse"),
    )
    yield OperatorStep(
        operator="rotate", makes={"dflat_queries": queries, "dflat_keys": keys}, drops=("dqueries", "dkeys")
    )
    if block.head_norms:
        yield OperatorStep(
            operator="head_norms",
            makes={"draw_queries": queries, "draw_keys": keys},
            gradient_elements=2 * block.head_width,
            drops=("dflat_queries", "dflat_keys", "raw_queries", "raw_keys", "head_stats"),
        )
    query_bias, key_bias = _count_biases(sizes, block)
    yield OperatorStep(
        operator="value",
        makes={"dnorm1": stream},
        gradient_elements=widths.key_matrix + key_bias,
        drops=("dvalues",),
    )
    yield OperatorStep(
        operator="key",
        makes={"dnorm1_too": stream},
        gradient_elements=widths.key_matrix + key_bias,
        drops=("dnorm1_too", "dflat_keys", "draw_keys"),
    )
    yield OperatorStep(
        operator="query",
        makes={"dnorm1_too": stream},
        gradient_elements=widths.query_matrix + query_bias,
        drops=("dnorm1_too", "dflat_queries", "draw_queries", "norm1"),
    )
    yield from copy_gradient(sizes)
    yield OperatorStep(
        operator="rms_norm",
        makes={"dx": stream},
        gradient_elements=sizes.norm_elements,
        drops=("dnorm1", "x", "stats1"),
    )
    yield OperatorStep(operator="add", makes={"g0": stream}, drops=("g1", "dx"))


def _count_biases(sizes: ModelSizes, block: LlamaBlock) -> tuple[int, int]:
    """Return the bias elements of the query, and of the key (the value has as many)."""
    if not block.biased:
        return 0, 0
    return sizes.heads * block.head_width // sizes.ranks, block.kv_heads * block.head_width // sizes.ranks
