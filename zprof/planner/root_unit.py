"""Model the root unit operator by operator: what encloses the blocks of a model.

Embeddings before the blocks; final norm, head and loss after them. Bytes for T tokens, hidden size h,
vocabulary V, e bytes per element and N model-parallel ranks:

    operator        saves for the backward                                    bytes
    embeddings      tokens and positions (8-byte numbers)                     8 T + 8 s
    final_norm      its input; mean and 1/std                                 T h e; 2 T e
    head            its input (the norm's output)                             T h e
    cross entropy   log-softmax in fp32, targets, target count                4 T V; 8 T + 4
                    N > 1: own logits; log-sum-exp, column, mask              T V e/N; 13 T

The loss is computed in fp32, so 16-bit logits are copied (4 T V). It peaks in the backward: the log-softmax
and two gradients of it, 12 T V. With N > 1 the logits stay split (Megatron-LM, arXiv 1909.08053, section 3),
and the loss is a custom operator that saves only the logits.

If head and embedding are tied, the head's gradient, V h e/N, stays live until the embedding's is computed.
Both are live while their sum is allocated as the parameter's gradient: 3 V h e/N.

Token ids cover this rank's entire batch of the step, with one extra id per sample.

Models of Llama blocks have no positions (``8 s`` is their cache index), and their RMS norm saves 4 T.
"""

from zprof.planner.model_shapes import ModelSizes
from zprof.planner.unit_moments import (
    HELD_GRADIENT,
    OperatorStep,
    UnitMoments,
    replay_operators,
    saved_bytes_by_name,
)

_ROOT_SAVED = frozenset(("ids", "x", "stats", "norm", "log_softmax", "targets", "logits_kept", "lse"))
_INDEX_BYTES = 8
_FP32 = 4


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


def compute_head_flop(sizes: ModelSizes) -> float:
    """Return the forward flop of the head: 2 T h V / N, with a multiply-add as 2 flop."""
    return 2.0 * sizes.tokens * sizes.word_elements


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
    """Return the embeddings' backward; if tied, the sum with the head's held gradient is a third tensor."""
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
    """Return the bytes of the fp32 copy of the logits; 0 if they are fp32 already."""
    return 0 if sizes.element >= _FP32 else _fp32_logits_bytes(sizes)
