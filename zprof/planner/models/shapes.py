"""Convert between the shape of the reference engine's planner and a transformer."""

from msgspec.structs import replace

from zprof.model.job import LlamaBlock, Shape
from zprof.model.transformer import Attention, Experts, FeedForward, LayerRun, Mlp, Transformer

#: Hidden elements per head, for shapes without a number of heads.
_DEFAULT_HEAD_WIDTH = 64
_GPT_EXPANSION = 4


def make_shape(model: Transformer) -> Shape | None:
    """Return the shape of a model of equal GPT or Llama blocks, or None if it has other layers.

    A shape has no windows: attention then costs as if each token saw all tokens before it.
    """
    if len(model.layers) != 1:
        return None
    run = model.layers[0]
    attention, part = run.mixer, run.feed_forward
    if not isinstance(attention, Attention) or part is None:
        return None
    experts = part if isinstance(part, Experts) else None
    block = LlamaBlock(
        kv_heads=attention.kv_heads,
        head_width=attention.head_width,
        mlp=part.width,
        biased=attention.biased,
        head_norms=attention.head_norms,
        experts=experts.experts if experts else 1,
        active_experts=experts.active if experts else 1,
    )
    shape = Shape(
        layers=run.count,
        hidden=model.hidden,
        vocabulary=model.vocabulary,
        context=model.context,
        heads=attention.heads,
        tied=model.tied,
        block=None if model.layer_norm else block,
    )
    unwindowed = replace(model, layers=(replace(run, mixer=replace(attention, window=None)),))
    return shape if make_transformer(shape) == unwindowed else None


def make_transformer(shape: Shape) -> Transformer:
    """Return the model of a shape: a GPT block has norms with biases, and biases at each matrix."""
    block = shape.block
    heads = shape.heads or max(1, shape.hidden // _DEFAULT_HEAD_WIDTH)
    if block is None:
        while shape.hidden % heads:
            heads -= 1
        attention = Attention(
            heads=heads,
            kv_heads=heads,
            head_width=shape.hidden // heads,
            biased=True,
            output_biased=True,
        )
        part: FeedForward = Mlp(width=_GPT_EXPANSION * shape.hidden, gated=False, biased=True)
    else:
        attention = Attention(
            heads=heads,
            kv_heads=block.kv_heads,
            head_width=block.head_width,
            biased=block.biased,
            head_norms=block.head_norms,
        )
        part = Mlp(width=block.mlp)
        if block.experts > 1:
            part = Experts(experts=block.experts, active=block.active_experts, width=block.mlp)
    return Transformer(
        hidden=shape.hidden,
        layers=(LayerRun(count=shape.layers, mixer=attention, feed_forward=part),),
        vocabulary=shape.vocabulary,
        context=shape.context,
        tied=shape.tied,
        learned_positions=shape.position_rows,
        layer_norm=block is None,
    )


def extend_context(model: Transformer, tokens: int) -> Transformer:
    """Return the model with a context of at least ``tokens``, and as many more learned positions."""
    more = 0 if model.patch_elements else max(0, tokens - model.context)
    positions = model.learned_positions + more if model.learned_positions else 0
    return replace(model, context=model.context + more, learned_positions=positions)
