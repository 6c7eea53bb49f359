"""Derive the units of a model from its shape, and model the GPT block and the root operator by operator.

Units follow the default split of the reference engine: each block is a unit, and the rest of the model is the
root, which encloses the blocks. Blocks of the Llama family are in ``llama_block``.

GPT block: bytes saved for the backward pass, and temporary bytes, for T tokens, hidden size h, a heads, e
bytes per element and N model-parallel ranks (the sequence length does not enter: attention is computed in
tiles, FlashAttention, arXiv 2205.14135):

    operator              saves for the backward                       bytes
    attention_norm        its input x; mean and 1/std                  T h e; 2 T e
    query_key_value       its input (the norm's output)                T h e
    attention             q, k, v; output; log-sum-exp in fp32         3 T h e/N; T h e/N; 4 T a/N
    projection            its input (attention's output)               counted there
    perceptron_norm       its input; mean and 1/std                    T h e; 2 T e
    expand                its input (the norm's output)                T h e
    gelu                  its input                                    4 T h e/N
    projection            its input (gelu's output)                    4 T h e/N

    = T e (4 h + 12 h/N + 4) + 4 T a/N;  the paper's footnote counts 12 T h per block (arXiv 1910.02054,
    section 3.2), without norms and residual inputs.

The backward pass peaks at the gelu (its input and output gradients, 8 T h e/N, in addition to those of the
residual stream) and at attention, whose three gradients are stacked and then copied into a different layout
(6 T h e/N). GPU kernels keep the norms' statistics in fp32 (2 x 4 T) and allocate their own workspaces.
Workspaces of CPU kernels (oneDNN packs 16-bit matrices) are not included because they depend on the
processor.

The root: embeddings before the blocks; final norm, head and loss after them. Bytes for T tokens, hidden
size h, vocabulary V, e bytes per element and N model-parallel ranks:

    operator        saves for the backward                                    bytes
    embeddings      tokens and positions (8-byte numbers)                     8 T + 8 s
    final_norm      its input; mean and 1/std                                 T h e; 2 T e
    head            its input (the norm's output)                             T h e
    cross entropy   log-softmax in fp32, targets, target count                4 T V; 8 T + 4
                    N > 1: own logits; log-sum-exp, column, mask              T V e/N; 13 T

The loss is computed in fp32, so 16-bit logits are copied (4 T V). It peaks in the backward pass: the
log-softmax and two gradients of it, 12 T V. With N > 1 the logits stay split (Megatron-LM, arXiv 1909.08053,
section 3), and the loss is a custom operator that saves only the logits.

If head and embedding are tied, the head's gradient, V h e/N, stays live until the gradient of the embedding
is computed. Both are live while their sum is allocated as the parameter gradient: 3 V h e/N.

Token ids cover this rank's entire batch of the step, with one extra id per sample.

Llama models have no position embedding (``8 s`` is their cache index), and their RMS norm saves 4 T.
"""

from collections.abc import Callable

from msgspec.structs import replace

from zprof.model.job import Job, ModelUnit, Shape
from zprof.planner.llama_block import compute_llama_flop, compute_llama_moments
from zprof.planner.model_shapes import (
    ModelSizes,
    compute_model_sizes,
    count_active_block_elements,
    count_block_elements,
    count_root_elements,
)
from zprof.planner.unit_times import (
    HELD_GRADIENT,
    OperatorStep,
    UnitMoments,
    copy_gradient,
    find_max_work_bytes,
    replay_operators,
    row_parallel,
    saved_bytes_by_name,
)

ROOT = "root"
_BLOCK_SAVED = frozenset(
    ("x", "stats1", "norm1", "qkv", "attention", "lse", "middle", "stats2", "norm2", "wide", "gelu")
)
_LSE_BYTES = 4
_ROOT_SAVED = frozenset(("ids", "x", "stats", "norm", "log_softmax", "targets", "logits_kept", "lse"))
_INDEX_BYTES = 8
_FP32 = 4


def with_units(job: Job) -> Job:
    """Return the job with units derived from its shape, sized for one model-parallel rank.

    A job that already has units, or has no shape, is returned unchanged. Without a batch, units carry element
    counts only.
    """
    if job.units or job.shape is None:
        return job
    root, inner = _root_and_block(job, job.shape)
    blocks = tuple(replace(inner, name=f"blocks.{index}") for index in range(job.shape.layers))
    return replace(job, units=(root, *blocks))


def moments_by_unit(job: Job) -> Callable[[ModelUnit], UnitMoments | None]:
    """Return a function that maps a unit to its moments, or to None if it does not match the shape."""
    known: dict[ModelUnit, UnitMoments] = {}
    if job.shape is not None and job.batch.tokens is not None:
        root, inner = _root_and_block(job, job.shape)
        sizes = compute_model_sizes(job, job.shape)
        known[replace(root, name="")] = compute_root_moments(sizes)
        known[replace(inner, name="")] = _block_moments(sizes)
    return lambda unit: known.get(replace(unit, name="", frozen_elements=0))


def _root_and_block(job: Job, shape: Shape) -> tuple[ModelUnit, ModelUnit]:
    sizes = compute_model_sizes(job, shape)
    root = ModelUnit(name=ROOT, elements=count_root_elements(sizes), encloses=True)
    inner = ModelUnit(
        name="block",
        elements=count_block_elements(sizes),
        active_elements=count_active_block_elements(sizes),
    )
    if job.batch.tokens is None:
        return root, inner
    block = sizes.shape.block
    # Forward flop of the head: 2 T h V / N, with a multiply-add as 2 flop.
    return _add_bytes(root, compute_root_moments(sizes), 2.0 * sizes.tokens * sizes.word_elements), replace(
        _add_bytes(
            inner,
            _block_moments(sizes),
            (compute_gpt_flop(sizes) if block is None else compute_llama_flop(sizes, block)),
        ),
        checkpoint_bytes=sizes.stream_bytes,
    )


def _block_moments(sizes: ModelSizes) -> UnitMoments:
    block = sizes.shape.block
    return compute_gpt_moments(sizes) if block is None else compute_llama_moments(sizes, block)


def _add_bytes(unit: ModelUnit, moments: UnitMoments, flop: float) -> ModelUnit:
    """Add bytes and flop; ``checkpoint_bytes`` equals ``saved_bytes``, because the root is not recomputed."""
    last = moments.forward_end or moments.forward
    return replace(
        unit,
        saved_bytes=last[-1].saved_bytes,
        checkpoint_bytes=last[-1].saved_bytes,
        forward_work_bytes=find_max_work_bytes((*moments.forward, *moments.forward_end)),
        backward_work_bytes=find_max_work_bytes((*moments.backward, *moments.backward_end)),
        forward_flop=flop,
    )


def compute_gpt_moments(sizes: ModelSizes) -> UnitMoments:
    """Return the moments of one GPT block; its output gradient is live when its backward pass starts."""
    stream, part, stats = sizes.stream_bytes, sizes.split_bytes, 2 * sizes.tokens * sizes.element
    lse = _LSE_BYTES * sizes.tokens * sizes.heads // sizes.ranks
    forward = (
        OperatorStep(operator="layer_norm", makes={"norm1": stream, "stats1": stats}),
        OperatorStep(operator="query_key_value", makes={"qkv": 3 * part}),
        OperatorStep(operator="attention", makes={"attention": part, "lse": lse}),
        *row_parallel("projection", "branch1", sizes),
        OperatorStep(operator="add", makes={"middle": stream}, drops=("branch1",)),
        OperatorStep(operator="layer_norm", makes={"norm2": stream, "stats2": stats}),
        OperatorStep(operator="expand", makes={"wide": 4 * part}),
        OperatorStep(operator="gelu", makes={"gelu": 4 * part}),
        *row_parallel("projection", "branch2", sizes),
        OperatorStep(operator="add", makes={"y": stream}, drops=("branch2",)),
    )
    kept = {"x": stream, **saved_bytes_by_name(forward, _BLOCK_SAVED)}
    return UnitMoments(
        forward=replay_operators(forward, saved=_BLOCK_SAVED, live={"x": stream}),
        checkpointed=replay_operators(
            _block_checkpointed_forward(sizes), saved=frozenset("x"), live={"x": stream}
        ),
        backward=replay_operators(_block_backward(sizes), saved=_BLOCK_SAVED, live={**kept, "g": stream}),
    )


def compute_gpt_flop(sizes: ModelSizes) -> float:
    """Return the forward flop of a GPT block: (24 T h^2 for the matrices + 4 T s h for attention) / N.

    A multiply-add counts as 2 flop.
    """
    h, tokens = sizes.hidden, sizes.tokens
    return (24.0 * tokens * h * h + 4.0 * tokens * sizes.sequence * h) / sizes.ranks


def _block_checkpointed_forward(sizes: ModelSizes) -> tuple[OperatorStep, ...]:
    """Return the forward pass with only the input saved: each tensor is freed after its last reader."""
    stream, part = sizes.stream_bytes, sizes.split_bytes
    return (
        OperatorStep(operator="query_key_value", makes={"norm1": stream, "qkv": 3 * part}),
        OperatorStep(operator="attention", makes={"attention": part}),
        OperatorStep(operator="projection", makes={"branch1": stream}, drops=("norm1", "qkv", "attention")),
        OperatorStep(operator="add", makes={"middle": stream}, drops=("branch1",)),
        OperatorStep(operator="expand", makes={"norm2": stream, "wide": 4 * part}, drops=("norm2",)),
        OperatorStep(operator="gelu", makes={"gelu": 4 * part}, drops=("wide",)),
        OperatorStep(operator="projection", makes={"branch2": stream}, drops=("gelu",)),
        OperatorStep(operator="add", makes={"y": stream}, drops=("branch2", "middle")),
    )


def _block_backward(sizes: ModelSizes) -> tuple[OperatorStep, ...]:
    stream, part, matrix, h = sizes.stream_bytes, sizes.split_bytes, sizes.matrix_elements, sizes.hidden
    share = h // sizes.ranks
    return (
        OperatorStep(
            operator="projection",
            makes={"dgelu": 4 * part},
            gradient_elements=4 * matrix + h,
            drops=("gelu",),
        ),
        OperatorStep(operator="gelu", makes={"dwide": 4 * part}, drops=("dgelu", "wide")),
        OperatorStep(
            operator="expand",
            makes={"dnorm2": stream},
            gradient_elements=4 * matrix + 4 * share,
            drops=("dwide", "norm2"),
        ),
        *copy_gradient(sizes),
        OperatorStep(
            operator="layer_norm",
            makes={"dmiddle": stream},
            gradient_elements=2 * h,
            drops=("dnorm2", "middle", "stats2"),
        ),
        OperatorStep(operator="add", makes={"g1": stream}, drops=("g", "dmiddle")),
        OperatorStep(operator="projection", makes={"dattention": part}, gradient_elements=matrix + h),
        OperatorStep(
            operator="attention", makes={"dqkv": 3 * part}, drops=("dattention", "qkv", "attention", "lse")
        ),
        OperatorStep(operator="stack", makes={"stacked": 3 * part}, drops=("dqkv",)),
        OperatorStep(operator="clone", makes={"laid_out": 3 * part}, drops=("stacked",)),
        OperatorStep(
            operator="query_key_value",
            makes={"dnorm1": stream},
            gradient_elements=3 * matrix + 3 * share,
            drops=("laid_out", "norm1"),
        ),
        *copy_gradient(sizes),
        OperatorStep(
            operator="layer_norm",
            makes={"dx": stream},
            gradient_elements=2 * h,
            drops=("dnorm1", "x", "stats1"),
        ),
        OperatorStep(operator="add", makes={"g0": stream}, drops=("g1", "dx")),
    )


def compute_root_moments(sizes: ModelSizes) -> UnitMoments:
    """Return the moments of the root: before and after the blocks, in both directions."""
    tokens = sizes.samples * (sizes.sequence + 1) * sizes.micro_batches
    ids, stream = {"ids": _INDEX_BYTES * (tokens + sizes.sequence)}, {"x": sizes.stream_bytes}
    end, loss = _root_forward_end(sizes), _loss_backward(sizes)
    kept = {**ids, **stream, **saved_bytes_by_name(end, _ROOT_SAVED)}
    backward = replay_operators(loss, saved=_ROOT_SAVED, live=kept)
    return UnitMoments(
        forward=replay_operators(_root_forward(sizes), saved=_ROOT_SAVED, live=ids),
        forward_end=replay_operators(end, saved=_ROOT_SAVED, live={**ids, **stream}),
        backward=backward,
        backward_end=replay_operators(
            _embeddings_backward(sizes),
            saved=_ROOT_SAVED,
            live={**ids, "g": sizes.stream_bytes, HELD_GRADIENT: backward[-1].held_bytes},
            made=backward[-1].gradient_elements,
        ),
    )


def _root_forward(sizes: ModelSizes) -> tuple[OperatorStep, ...]:
    if not sizes.vocabulary:
        return (OperatorStep(operator="input", makes={"x": sizes.stream_bytes}),)
    if sizes.shape.block is not None:  # rotary positions are applied in the blocks
        return (OperatorStep(operator="embedding", makes={"x0": sizes.stream_bytes}),)
    position_bytes = sizes.sequence * sizes.hidden * sizes.element if sizes.shape.position_rows else 0
    made = {"words": sizes.stream_bytes, "places": position_bytes}
    return (
        OperatorStep(operator="embedding", makes=made),
        OperatorStep(operator="add", makes={"x0": sizes.stream_bytes}, drops=("words", "places")),
    )


def _root_forward_end(sizes: ModelSizes) -> tuple[OperatorStep, ...]:
    stats = sizes.norm_statistics_bytes
    norm = OperatorStep(operator="final_norm", makes={"norm": sizes.stream_bytes, "stats": stats})
    if not sizes.vocabulary:
        return (norm,)
    wide = _fp32_logits_bytes(sizes)
    if sizes.ranks > 1:
        return (
            norm,
            OperatorStep(operator="head", makes={"logits_kept": _logits_bytes(sizes)}),
            OperatorStep(
                operator="logsumexp",
                makes={"copy": _logits_copy_bytes(sizes), "exp": wide, "lse": 13 * sizes.tokens},
                drops=("copy", "exp"),
            ),
        )
    targets_bytes = _INDEX_BYTES * sizes.tokens + _FP32  # one per token, and their count
    return (
        norm,
        OperatorStep(operator="head", makes={"logits": _logits_bytes(sizes)}),
        OperatorStep(operator="float", makes={"copy": _logits_copy_bytes(sizes), "targets": targets_bytes}),
        OperatorStep(operator="log_softmax", makes={"log_softmax": wide}, drops=("copy", "logits")),
    )


def _loss_backward(sizes: ModelSizes) -> tuple[OperatorStep, ...]:
    norm = OperatorStep(
        operator="final_norm",
        makes={"gx": sizes.stream_bytes},
        gradient_elements=sizes.norm_elements,
        drops=("dnorm", "x", "stats", "norm"),
    )
    if not sizes.vocabulary:
        return (norm,)
    words = sizes.word_elements
    return (
        *_logits_backward(sizes),
        OperatorStep(
            operator="head",
            makes={
                "dnorm": sizes.stream_bytes,
                HELD_GRADIENT: words * sizes.element if sizes.shape.tied else 0,
            },
            gradient_elements=0 if sizes.shape.tied else words,
            drops=("d", "dlogits", "norm"),
        ),
        norm,
    )


def _logits_backward(sizes: ModelSizes) -> tuple[OperatorStep, ...]:
    wide, copied = _fp32_logits_bytes(sizes), _logits_copy_bytes(sizes)
    if sizes.ranks > 1:
        made = {"d": wide, "copy": copied}
        drops = ("logits_kept", "lse")
        if not copied:
            return (
                OperatorStep(operator="softmax", makes=made, drops=drops),
                OperatorStep(operator="scale", drops=drops),
            )
        return (
            OperatorStep(operator="softmax", makes=made, drops=("copy",)),
            OperatorStep(operator="to", makes={"dlogits": _logits_bytes(sizes)}, drops=("d", *drops)),
        )
    steps = (
        OperatorStep(operator="nll_loss", makes={"dlog": wide}, drops=("targets",)),
        OperatorStep(operator="log_softmax", makes={"d": wide}, drops=("dlog", "log_softmax")),
    )
    if not copied:
        return steps
    return (*steps, OperatorStep(operator="to", makes={"dlogits": _logits_bytes(sizes)}, drops=("d",)))


def _embeddings_backward(sizes: ModelSizes) -> tuple[OperatorStep, ...]:
    """Return the backward pass of the embeddings; if tied, the sum of gradients is a third tensor."""
    if not sizes.vocabulary:
        return (OperatorStep(operator="input", drops=("g", "ids")),)
    position_bytes = sizes.sequence * sizes.hidden * sizes.element if sizes.shape.position_rows else 0
    words = sizes.word_elements
    if not sizes.shape.tied:
        last: tuple[OperatorStep, ...] = (
            OperatorStep(operator="token_embedding", gradient_elements=words, drops=("g", "ids")),
        )
    else:
        last = (
            OperatorStep(operator="token_embedding", makes={"dwords": words * sizes.element}, drops=("g",)),
            OperatorStep(operator="add", gradient_elements=words, drops=("ids", "dwords", HELD_GRADIENT)),
        )
    return (
        OperatorStep(operator="sum", makes={"dplaces": position_bytes}),
        OperatorStep(
            operator="position_embedding",
            gradient_elements=sizes.shape.position_rows * sizes.hidden,
            drops=("dplaces",),
        ),
        *last,
    )


def _logits_bytes(sizes: ModelSizes) -> int:
    return sizes.tokens * sizes.vocabulary // sizes.ranks * sizes.element


def _fp32_logits_bytes(sizes: ModelSizes) -> int:
    return sizes.tokens * sizes.vocabulary // sizes.ranks * _FP32


def _logits_copy_bytes(sizes: ModelSizes) -> int:
    """Return the bytes of the fp32 copy of the logits; 0 if the logits are already fp32."""
    return 0 if sizes.element >= _FP32 else _fp32_logits_bytes(sizes)
