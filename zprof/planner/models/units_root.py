"""What is around the blocks, operator by operator: embeddings before them; final norm, head and loss behind.

Bytes with T tokens, hidden h, vocabulary V, e bytes an element, N model-parallel ranks:

    operator        keeps for the backward                                    bytes
    embeddings      tokens and positions (8-byte numbers)                     8 T + 8 s
    final_norm      its input; mean and 1/std                                 T h e; 2 T e
    head            its input (the norm's output)                             T h e
    cross entropy   log-softmax in fp32, targets and their number             4 T V; 8 T + 4
                    N > 1: own logits; log-sum-exp, column, mask              T V e/N; 13 T

The loss is computed in fp32: 16-bit logits are copied (4 T V).  Its highest moment is in the backward: the
log-softmax and two gradients of it, 12 T V.  With N > 1 the logits stay split (Megatron-LM, arXiv 1909.08053,
section 3), and the loss has an operator of its own, which keeps the logits only.

Where head and embedding are tied, the head's gradient V h e/N waits for the embedding's; both are there when
a third, their sum, becomes the parameter's: 3 V h e/N.

The tokens themselves: those of a step's whole batch of this rank, one number more for each sample.
"""

from zprof.planner.models.units_moments import HELD, Moments, Step, play, saved_of
from zprof.planner.models.units_sizes import Sizes

SAVED = frozenset(("ids", "x", "stats", "norm", "log_softmax", "targets", "logits_kept", "lse"))
_INDEX_BYTES = 8
_FP32 = 4


def root_moments(sizes: Sizes) -> Moments:
    """The moments of the root: before the blocks and behind them, in both directions."""
    ids, stream = {"ids": _ids_bytes(sizes)}, {"x": sizes.stream_bytes}
    end, loss = _forward_end(sizes), _loss_backward(sizes)
    kept = {**ids, **stream, **saved_of(end, SAVED)}
    backward = play(loss, saved=SAVED, live=kept)
    return Moments(
        forward=play(_forward(sizes), saved=SAVED, live=ids),
        forward_end=play(end, saved=SAVED, live={**ids, **stream}),
        backward=backward,
        backward_end=play(
            _embeddings_backward(sizes),
            saved=SAVED,
            live={**ids, "g": sizes.stream_bytes, HELD: backward[-1].held_bytes},
            made=backward[-1].gradient_elements,
        ),
    )


def head_flop(sizes: Sizes) -> float:
    """Two for a multiply and an add: 2 T h V / N."""
    return 2.0 * sizes.tokens * sizes.word_elements


def _ids_bytes(sizes: Sizes) -> int:
    tokens = sizes.samples * (sizes.sequence + 1) * sizes.micro_batches
    return _INDEX_BYTES * (tokens + sizes.sequence)


def _forward(sizes: Sizes) -> tuple[Step, ...]:
    if not sizes.vocabulary:
        return (Step(operator="input", makes={"x": sizes.stream_bytes}),)
    places = sizes.sequence * sizes.hidden * sizes.element if sizes.context else 0
    made = {"words": sizes.stream_bytes, "places": places}
    return (
        Step(operator="embedding", makes=made),
        Step(operator="add", makes={"x0": sizes.stream_bytes}, drops=("words", "places")),
    )


def _forward_end(sizes: Sizes) -> tuple[Step, ...]:
    stats = 2 * sizes.tokens * sizes.element
    norm = Step(operator="final_norm", makes={"norm": sizes.stream_bytes, "stats": stats})
    if not sizes.vocabulary:
        return (norm,)
    wide = _fp32_logits(sizes)
    if sizes.ranks > 1:
        return (
            norm,
            Step(operator="head", makes={"logits_kept": _logits(sizes)}),
            Step(
                operator="logsumexp",
                makes={"copy": _copied_logits(sizes), "exp": wide, "lse": 13 * sizes.tokens},
                drops=("copy", "exp"),
            ),
        )
    return (
        norm,
        Step(operator="head", makes={"logits": _logits(sizes)}),
        Step(operator="float", makes={"copy": _copied_logits(sizes), "targets": _targets_bytes(sizes)}),
        Step(operator="log_softmax", makes={"log_softmax": wide}, drops=("copy", "logits")),
    )


def _loss_backward(sizes: Sizes) -> tuple[Step, ...]:
    norm = Step(
        operator="final_norm",
        makes={"gx": sizes.stream_bytes},
        gradient_elements=2 * sizes.hidden,
        drops=("dnorm", "x", "stats", "norm"),
    )
    if not sizes.vocabulary:
        return (norm,)
    return (*_logits_backward(sizes), _head_backward(sizes), norm)


def _logits_backward(sizes: Sizes) -> tuple[Step, ...]:
    wide, copied = _fp32_logits(sizes), _copied_logits(sizes)
    if sizes.ranks > 1:
        first = Step(operator="softmax", makes={"d": wide, "copy": copied}, drops=("copy",))
        drops: tuple[str, ...] = ("logits_kept", "lse")
        if not copied:
            return (_dropping(first, drops), Step(operator="scale", drops=drops))
        return (first, Step(operator="to", makes={"dlogits": _logits(sizes)}, drops=("d", *drops)))
    steps = (
        Step(operator="nll_loss", makes={"dlog": wide}, drops=("targets",)),
        Step(operator="log_softmax", makes={"d": wide}, drops=("dlog", "log_softmax")),
    )
    if not copied:
        return steps
    return (*steps, Step(operator="to", makes={"dlogits": _logits(sizes)}, drops=("d",)))


def _dropping(step: Step, drops: tuple[str, ...]) -> Step:
    """The step, after which other names die."""
    return Step(operator=step.operator, makes=step.makes, drops=drops)


def _head_backward(sizes: Sizes) -> Step:
    words = sizes.word_elements
    return Step(
        operator="head",
        makes={"dnorm": sizes.stream_bytes, HELD: words * sizes.element if sizes.tied else 0},
        gradient_elements=0 if sizes.tied else words,
        drops=("d", "dlogits", "norm"),
    )


def _embeddings_backward(sizes: Sizes) -> tuple[Step, ...]:
    """Where they are tied, a third is the sum of the embedding's gradient and the head's, held for that."""
    if not sizes.vocabulary:
        return (Step(operator="input", drops=("g", "ids")),)
    places = sizes.sequence * sizes.hidden * sizes.element if sizes.context else 0
    words = sizes.word_elements
    if not sizes.tied:
        last: tuple[Step, ...] = (
            Step(operator="token_embedding", gradient_elements=words, drops=("g", "ids")),
        )
    else:
        last = (
            Step(operator="token_embedding", makes={"dwords": words * sizes.element}, drops=("g",)),
            Step(operator="add", gradient_elements=words, drops=("ids", "dwords", HELD)),
        )
    return (
        Step(operator="sum", makes={"dplaces": places}),
        Step(
            operator="position_embedding",
            gradient_elements=sizes.context * sizes.hidden,
            drops=("dplaces",),
        ),
        *last,
    )


def _targets_bytes(sizes: Sizes) -> int:
    """One number a token, and how many there are."""
    return _INDEX_BYTES * sizes.tokens + _FP32


def _logits(sizes: Sizes) -> int:
    return sizes.tokens * sizes.vocabulary // sizes.ranks * sizes.element


def _fp32_logits(sizes: Sizes) -> int:
    return sizes.tokens * sizes.vocabulary // sizes.ranks * _FP32


def _copied_logits(sizes: Sizes) -> int:
    """Of a copy in fp32; none where they are fp32."""
    return 0 if sizes.element >= _FP32 else _fp32_logits(sizes)
