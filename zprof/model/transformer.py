"""Describe a transformer layer by layer: what mixes tokens, what transforms each of them, and the tables.

Counts are in elements of the full model. The layers are runs of equal layers in forward order, so that a
model of alternating layers has one run per change.
"""

from msgspec import Struct


class Attention(Struct, frozen=True, kw_only=True, tag="attention"):
    """Softmax attention with grouped keys and values.

    ``window``: tokens that a token sees; None: all. ``biased``: query, key and value have biases;
    ``output_biased``: so has the projection. ``head_norms``: queries and keys are normalized per head.
    ``sinks``: one learned logit per head (GPT-OSS). ``causal``: False for an encoder.
    """

    heads: int
    kv_heads: int
    head_width: int
    window: int | None = None
    biased: bool = False
    output_biased: bool = False
    head_norms: bool = False
    sinks: bool = False
    causal: bool = True

    @property
    def query_width(self) -> int:
        """Elements of all queries of a token, and of the attention's output."""
        return self.heads * self.head_width

    @property
    def key_width(self) -> int:
        """Elements of all keys of a token; the values have as many."""
        return self.kv_heads * self.head_width


class LatentAttention(Struct, frozen=True, kw_only=True, tag="latent_attention"):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

    Keys and values are expanded from a latent of ``kv_rank`` elements, queries from ``query_rank`` (None:
    directly from the hidden state). A query head has ``nope_width + rope_width`` elements, a value head
    ``value_width``.
    """

    heads: int
    query_rank: int | None
    kv_rank: int
    nope_width: int
    rope_width: int
    value_width: int
    causal: bool = True

    @property
    def query_width(self) -> int:
        """Elements of all queries of a token."""
        return self.heads * (self.nope_width + self.rope_width)

    @property
    def output_width(self) -> int:
        """Elements of the attention's output for a token."""
        return self.heads * self.value_width


class Mamba(Struct, frozen=True, kw_only=True, tag="mamba"):
    """Mamba-2 mixer (arXiv 2405.21060): ``heads`` of ``head_width``, a state of ``state`` elements in
    ``groups``.

    ``convolution``: width of the causal convolution.
    """

    heads: int
    head_width: int
    groups: int
    state: int
    convolution: int = 4

    @property
    def inner_width(self) -> int:
        """Elements of a token inside the mixer."""
        return self.heads * self.head_width

    @property
    def convolved_width(self) -> int:
        """Channels of the convolution: the inner width, and B and C of each group."""
        return self.inner_width + 2 * self.groups * self.state


class Mlp(Struct, frozen=True, kw_only=True, tag="mlp"):
    """Feed-forward network of ``width``; ``gated``: SwiGLU or GeGLU, with a third matrix."""

    width: int
    gated: bool = True
    biased: bool = False


class Experts(Struct, frozen=True, kw_only=True, tag="experts"):
    """Mixture of experts: a router sends each token to ``active`` of ``experts`` networks of ``width``.

    ``shared_width``: total width of the experts that every token uses. ``latent_width``: elements of a token
    inside the routed experts, if they work on a projection of it. ``router_biased``: one bias per expert.
    ``shared_gated_by_token``: a gate of one element per token on the shared experts (Qwen 2 MoE).
    """

    experts: int
    active: int
    width: int
    gated: bool = True
    biased: bool = False
    shared_width: int = 0
    latent_width: int | None = None
    router_biased: bool = False
    shared_gated_by_token: bool = False


Mixer = Attention | LatentAttention | Mamba
FeedForward = Mlp | Experts


class LayerRun(Struct, frozen=True, kw_only=True):
    """``count`` equal consecutive layers; a layer may lack a mixer or a feed-forward network (hybrids).

    Each part has its own norm in front of it; ``extra_norms``: further norms of the hidden size per layer;
    -1 if both parts share a norm (Falcon 7B).
    """

    count: int
    mixer: Mixer | None
    feed_forward: FeedForward | None
    extra_norms: int = 0


class Transformer(Struct, frozen=True, kw_only=True):
    """A model; ``layers`` in forward order.

    ``vocabulary``: rows of the token embedding and of the head, 0 without either. ``classes``: rows of a
    classifier in place of the head (ViT). ``learned_positions``: rows of a position table.
    ``patch_elements``: inputs of the patch embedding (ViT). ``layer_norm``: norms have a bias; otherwise RMS
    norms. ``context``: tokens of the longest sequence that the model was made for; 0 if unknown.
    """

    hidden: int
    layers: tuple[LayerRun, ...]
    vocabulary: int = 0
    classes: int = 0
    context: int = 0
    tied: bool = False
    learned_positions: int = 0
    patch_elements: int = 0
    layer_norm: bool = False

    @property
    def layer_count(self) -> int:
        """Layers of all runs."""
        return sum(run.count for run in self.layers)
