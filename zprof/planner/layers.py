"""Count what one layer costs on one rank: matrix products, bytes moved and saved, messages.

Symbols: T tokens of a micro-batch on one context rank, h hidden size, q query width, k key width, m width of
the feed-forward network, a heads, N tensor-parallel ranks, e bytes of an activation, w bytes of a saved input
of a matrix product (1 in FP8, else e), A experts per token. S = T h e, divided by N with sequence
parallelism.

Saved for the backward pass, per layer, with flash attention and fused norms:

    attention    2 S (input, norm) + T (q + 2 k) e/N + T q e/N (output) + 4 T a/N (log-sum-exp)
                 head norms add T (q + k) e/N; without flash attention 5 T s a/N (arXiv 2205.05198, section
                 4.1)
    MLP          2 S + gated: 4 T m e/N in eager mode, 3 if the activation is fused with the product
                 (Megatron), 2 if a compiler recomputes the product; not gated: 2 T m e/N, compiled 1
    experts      2 S + T A/N rows: their input h, the MLP on them, their output h; 4 T E/N for the router

Under tensor parallelism, torch's products save their gathered input: one of the 2 S is T h e. Under autocast
(DDP with fp32 weights) the residual is in fp32, and each product that reads a norm's output saves its own
cast: three of attention, unless one matrix makes queries, keys and values, as in models with layer norms; two
of a gated MLP.

In FP8, Megatron's attention saves its output in 16 bits, and the projection saves no copy of it.

Selective recomputation under FSDP2 keeps a layer's input, the outputs of every second matrix product (query,
value; of a gated MLP the first and the last) and the attention's output, as torchtitan does by default; under
Megatron it recomputes scores, norms, and activations of MLPs (``--recompute-modules core_attn layernorm mlp
moe_act``).
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from zprof.model.layout import ComputePrecision, Framework, Layout, Recompute
from zprof.model.transformer import (
    Attention,
    Experts,
    FeedForward,
    LatentAttention,
    LayerRun,
    Mamba,
    Mixer,
    Mlp,
    Transformer,
)
from zprof.planner.models.counting import count_run_elements

_FP32 = 4
_INDEX_BYTES = 8
_LOW_PRECISION = frozenset({ComputePrecision.FP8, ComputePrecision.MXFP8, ComputePrecision.NVFP4})
#: Bytes of attention scores per head and pair of tokens, unfused: softmax, dropout mask and result.
_SCORE_BYTES = 5
#: Tokens per chunk of the Mamba-2 scan, and the state that it keeps for each (fp32).
_MAMBA_CHUNK = 256
#: Kernels of a forward pass in eager mode and fused, by part.
_KERNELS = {"mixer": (30, 12), "mlp": (8, 5), "experts": (50, 25)}


class Product(Struct, frozen=True, kw_only=True):
    """``count`` matrix products of rows x inner by inner x columns on one rank.

    ``is_grouped``: products of experts, with as many rows for each as tokens are routed to it.
    """

    rows: float
    inner: float
    columns: float
    count: float = 1
    is_grouped: bool = False

    @property
    def flop(self) -> float:
        """Floating-point operations; a multiply-add is 2."""
        return 2.0 * self.rows * self.inner * self.columns * self.count


class PartCost(Struct, frozen=True, kw_only=True):
    """Forward cost of a mixer or a feed-forward network on one rank, and the bytes for its backward pass.

    ``saved``, ``selective``: bytes saved with no and with selective recomputation, with the part's input.
    ``work``: temporary bytes of its backward pass. ``moved``: bytes that elementwise operators read and
    write. ``attention_flop``: products of queries, keys and values. ``routed``: bytes that one all-to-all
    sends.
    """

    products: tuple[Product, ...]
    attention_flop: float = 0.0
    attention_width: int = 0
    scan_flop: float = 0.0
    saved: float
    selective: float
    work: float
    moved: float
    kernels: int
    routed: float = 0.0
    active: int = 1
    has_shared: bool = False


class LayerCost(Struct, frozen=True, kw_only=True):
    """Cost of one layer on one rank and micro-batch; ``input``: bytes of its input on the rank.

    ``boundaries``: entries and exits of tensor-parallel regions per pass, each ``stream`` bytes of full
    tensors. ``regathers``: inputs of regions that are gathered once more in the backward pass. Elements are
    those of one rank.
    """

    parts: tuple[PartCost, ...]
    input: float
    stream: float
    boundaries: int
    regathers: int = 0
    split_elements: float
    replicated_elements: float
    expert_elements: float

    @property
    def elements(self) -> float:
        """Elements of the layer on one rank."""
        return self.split_elements + self.replicated_elements + self.expert_elements

    @property
    def dense_elements(self) -> float:
        """Elements outside the routed experts."""
        return self.split_elements + self.replicated_elements

    def sum(self, field: str) -> float:
        """Sum a field over the parts."""
        return sum(getattr(part, field) for part in self.parts)

    @property
    def products(self) -> Iterator[Product]:
        """Matrix products of the forward pass."""
        for part in self.parts:
            yield from part.products

    def kept_bytes(self, recompute: Recompute) -> float:
        """Return the bytes saved for the backward pass."""
        if recompute is Recompute.FULL:
            return self.input
        return self.sum("selective" if recompute is Recompute.SELECTIVE else "saved")


class _Sizes(Struct, frozen=True, kw_only=True):
    tokens: float
    sequence: float
    stream: float
    residual: float
    is_autocast: bool
    has_joint_projection: bool
    ranks: int
    element: int
    saved_input: int
    hidden: int
    layout: Layout


def compute_layer_cost(model: Transformer, run: LayerRun, layout: Layout) -> LayerCost:
    """Return the cost of one layer of the run on one rank."""
    sizes = _make_sizes(model, layout)
    parts = tuple(_cost_part(part, sizes) for part in (run.mixer, run.feed_forward) if part is not None)
    elements = count_run_elements(model, run)
    regions = sum(_is_tensor_region(part, layout) for part in (run.mixer, run.feed_forward))
    gathers_again = layout.framework is Framework.MEGATRON and layout.sequence_parallel
    return LayerCost(
        parts=parts,
        input=sizes.residual,
        stream=sizes.tokens * model.hidden * sizes.element,
        boundaries=2 * regions,
        regathers=regions if gathers_again else 0,
        split_elements=elements.split_elements / sizes.ranks,
        replicated_elements=elements.replicated_elements,
        expert_elements=elements.expert_elements / (layout.degrees.expert * layout.degrees.expert_tensor),
    )


def _is_tensor_region(part: Mixer | FeedForward | None, layout: Layout) -> bool:
    """Return whether the part's tokens are gathered over the tensor-parallel ranks.

    Megatron's routed experts take the tokens of each rank as they are, unless the ranks split each expert.
    """
    if part is None or layout.degrees.tensor == 1:
        return False
    is_routed = isinstance(part, Experts) and not part.shared_width and layout.degrees.expert_tensor == 1
    return not (is_routed and layout.framework is Framework.MEGATRON)


def get_element_bytes(layout: Layout) -> int:
    """Return the bytes of an activation."""
    return _FP32 if layout.precision is ComputePrecision.FP32 else 2


def is_low_precision(layout: Layout) -> bool:
    """Return whether matrices are multiplied in FP8 or FP4."""
    return layout.precision in _LOW_PRECISION


def _make_sizes(model: Transformer, layout: Layout) -> _Sizes:
    tokens, element = layout.tokens / layout.degrees.context, get_element_bytes(layout)
    ranks = layout.degrees.tensor
    keeps_low = is_low_precision(layout) and layout.framework is Framework.MEGATRON
    stream = tokens * model.hidden * element / (ranks if layout.sequence_parallel else 1)
    is_autocast = layout.framework is Framework.DDP and layout.master_weights and element < _FP32
    return _Sizes(
        tokens=tokens,
        sequence=layout.sequence,
        stream=stream,
        residual=stream * (_FP32 / element if is_autocast else 1),
        is_autocast=is_autocast,
        has_joint_projection=model.layer_norm,
        ranks=ranks,
        element=element,
        saved_input=1 if keeps_low else element,
        hidden=model.hidden,
        layout=layout,
    )


def _cost_part(part: Mixer | FeedForward, sizes: _Sizes) -> PartCost:
    match part:
        case Attention():
            return _cost_attention(part, sizes)
        case LatentAttention():
            return _cost_latent_attention(part, sizes)
        case Mamba():
            return _cost_mamba(part, sizes)
        case Mlp():
            return _cost_mlp(part, sizes)
        case Experts():
            return _cost_experts(part, sizes)


def _cost_attention(part: Attention, sizes: _Sizes) -> PartCost:
    t, n, e, h = sizes.tokens, sizes.ranks, sizes.element, sizes.hidden
    queries, keys = part.query_width / n, part.key_width / max(1, min(n, part.kv_heads))
    heads = part.heads / n
    output = t * queries * e
    saved = _norm_bytes(sizes) + 2 * t * (queries + keys) * e
    saved += _FP32 * t * heads + (t * (queries + keys) * e if part.head_norms else 0)
    scores = _score_bytes(sizes, heads)
    half = sizes.residual + t * (queries + keys) * e + output + _FP32 * t * heads
    if sizes.is_autocast and not sizes.has_joint_projection:  # queries, keys, values: a cast for each
        saved += 2 * _norm_output_bytes(sizes)
    selective = half if _keeps_half(sizes.layout) else saved - _norm_output_bytes(sizes)
    return PartCost(
        products=(
            Product(rows=t, inner=h, columns=queries + 2 * keys),
            Product(rows=t, inner=queries, columns=h),
        ),
        attention_flop=_attention_flop(part, sizes, 2 * queries),
        attention_width=part.head_width,
        saved=saved + scores,
        selective=selective,
        work=2 * t * (queries + 2 * keys) * e + 2 * sizes.stream + 2 * scores,
        moved=_norm_moved(sizes) + 4 * t * (queries + keys) * e + 4 * scores,
        kernels=_count_kernels("mixer", sizes.layout),
    )


def _cost_latent_attention(part: LatentAttention, sizes: _Sizes) -> PartCost:
    """Return the cost of latent attention; latents are replicated over the tensor-parallel ranks."""
    t, n, e, h = sizes.tokens, sizes.ranks, sizes.element, sizes.hidden
    queries, values = part.query_width / n, part.output_width / n
    expanded = part.heads * (part.nope_width + part.value_width) / n
    latents = (part.query_rank or 0) + part.kv_rank
    saved = _norm_bytes(sizes) + 2 * t * latents * e + t * (2 * queries + values) * e
    saved += t * values * e + _FP32 * t * part.heads / n
    scores = _score_bytes(sizes, part.heads / n)
    down = Product(rows=t, inner=h, columns=latents + part.rope_width)
    query = Product(rows=t, inner=part.query_rank or h, columns=queries)
    half = sizes.stream + t * (latents + queries + values) * e
    return PartCost(
        products=(
            down,
            query,
            Product(rows=t, inner=part.kv_rank, columns=expanded),
            Product(rows=t, inner=values, columns=h),
        ),
        attention_flop=_attention_flop(part, sizes, queries + values),
        attention_width=part.value_width,
        saved=saved + scores,
        selective=half if _keeps_half(sizes.layout) else saved - _norm_output_bytes(sizes),
        work=2 * t * (2 * queries + values) * e + 2 * sizes.stream + 2 * scores,
        moved=_norm_moved(sizes) + t * (4 * latents + 6 * queries + 2 * values) * e + 4 * scores,
        kernels=_count_kernels("mixer", sizes.layout) + 6,
    )


def _score_bytes(sizes: _Sizes, heads: float) -> float:
    """Return the saved scores of attention that is not fused."""
    if sizes.layout.kernels.flash_attention:
        return 0.0
    return _SCORE_BYTES * sizes.tokens * sizes.sequence * heads


def _attention_flop(part: Attention | LatentAttention, sizes: _Sizes, widths: float) -> float:
    """Return 2 T s' (widths of the two products), with s' the tokens that a token sees on average."""
    seen = sizes.sequence / 2 if part.causal else sizes.sequence
    window = part.window if isinstance(part, Attention) else None
    if window is not None and window < sizes.sequence:
        seen = window * (1 - window / (2 * sizes.sequence)) if part.causal else window
    return 2.0 * sizes.tokens * seen * widths


def _cost_mamba(part: Mamba, sizes: _Sizes) -> PartCost:
    t, n, e, h = sizes.tokens, sizes.ranks, sizes.element, sizes.hidden
    inner, convolved = part.inner_width / n, part.convolved_width / n
    projected = inner + convolved + part.heads / n
    states = _FP32 * inner * part.state * t / _MAMBA_CHUNK
    saved = _norm_bytes(sizes) + t * (projected + convolved + 3 * inner) * e + states
    return PartCost(
        products=(
            Product(rows=t, inner=h, columns=projected),
            Product(rows=t, inner=inner, columns=h),
        ),
        scan_flop=2.0 * t * inner * (2 * part.state + _MAMBA_CHUNK),
        saved=saved,
        selective=saved - _norm_output_bytes(sizes),
        work=t * (projected + 2 * inner) * e + 2 * sizes.stream,
        moved=_norm_moved(sizes) + t * (2 * projected + 2 * convolved + 6 * inner) * e,
        kernels=_count_kernels("mixer", sizes.layout) + 4,
    )


def _cost_mlp(part: Mlp, sizes: _Sizes) -> PartCost:
    t, e, width = sizes.tokens, sizes.element, part.width / sizes.ranks
    inner = t * width * (_count_inner_tensors(part.gated, sizes.layout) * e - (e - sizes.saved_input))
    saved = _norm_bytes(sizes) + inner
    saved += _norm_output_bytes(sizes) if sizes.is_autocast and part.gated else 0
    half = t * width * e + (sizes.stream if part.gated else 0.0)
    again = _norm_output_bytes(sizes) + t * width * sizes.saved_input
    return PartCost(
        products=_mlp_products(t, sizes.hidden, width, gated=part.gated),
        saved=saved,
        selective=half if _keeps_half(sizes.layout) else saved - again,
        work=t * width * e * (3 if part.gated else 2) + 2 * sizes.stream,
        moved=_norm_moved(sizes) + t * width * e * _count_activation_passes(part.gated, sizes.layout),
        kernels=_count_kernels("mlp", sizes.layout),
    )


def _cost_experts(part: Experts, sizes: _Sizes) -> PartCost:
    """Return the cost of the experts on one rank, with tokens spread evenly over them."""
    t, e = sizes.tokens, sizes.element
    split = sizes.layout.degrees.expert_tensor
    rows, width = t * part.active * split / sizes.ranks, part.width / split
    wide = part.latent_width or sizes.hidden
    shared = part.shared_width / sizes.ranks
    tensors = _count_inner_tensors(part.gated, sizes.layout)
    routed = rows * wide * e
    saved = _norm_bytes(sizes) + rows * (wide * (sizes.saved_input + e) + width * tensors * e)
    own = t / (sizes.ranks if sizes.layout.sequence_parallel else 1)
    saved += t * shared * tensors * e + own * part.experts * _FP32 + rows * (_FP32 + _INDEX_BYTES)
    local = max(1.0, part.experts / sizes.layout.degrees.expert)
    grouped = tuple(
        replace(product, is_grouped=True)
        for product in _mlp_products(rows / local, wide, width, gated=part.gated, count=local)
    )
    products = (*grouped, Product(rows=own, inner=sizes.hidden, columns=part.experts))
    if shared:
        products += _mlp_products(t, sizes.hidden, shared, gated=part.gated)
    if part.latent_width:
        products += (Product(rows=t, inner=sizes.hidden, columns=wide, count=2),)
    passes = _count_activation_passes(part.gated, sizes.layout)
    again = _norm_output_bytes(sizes) + (rows * width + t * shared) * e
    return PartCost(
        products=products,
        saved=saved,
        selective=saved - again,
        work=rows * e * (3 * width + wide) + 2 * sizes.stream,
        moved=_norm_moved(sizes) + 6 * routed + (rows * width + t * shared) * e * passes,
        kernels=_count_kernels("experts", sizes.layout),
        routed=routed,
        active=part.active,
        has_shared=part.shared_width > 0,
    )


def _mlp_products(
    rows: float, hidden: float, width: float, *, gated: bool, count: float = 1
) -> tuple[Product, ...]:
    into = Product(rows=rows, inner=hidden, columns=(2 if gated else 1) * width, count=count)
    return into, Product(rows=rows, inner=width, columns=hidden, count=count)


def _keeps_half(layout: Layout) -> bool:
    return layout.framework is not Framework.MEGATRON


def _is_fused(layout: Layout) -> bool:
    return layout.kernels.compiled or layout.framework is Framework.MEGATRON


def _count_inner_tensors(gated: bool, layout: Layout) -> int:
    """Return how many tensors of the MLP's width are saved."""
    if not gated:
        return 1 if layout.kernels.compiled else 2
    return 2 if layout.kernels.compiled else 3 if _is_fused(layout) else 4


def _count_activation_passes(gated: bool, layout: Layout) -> int:
    """Return how many tensors of the MLP's width the activation reads and writes in the forward pass."""
    if not gated:
        return 2
    return 3 if _is_fused(layout) else 5


def _count_kernels(part: str, layout: Layout) -> int:
    return _KERNELS[part][_is_fused(layout)]


def _norm_bytes(sizes: _Sizes) -> float:
    """Return the input of a norm, which is the residual, and its output; unfused norms save fp32 copies."""
    copies = 0 if sizes.layout.kernels.fused_norms else 2
    return sizes.residual + sizes.stream * copies * _FP32 / sizes.element + _norm_output_bytes(sizes)


def _norm_output_bytes(sizes: _Sizes) -> float:
    """Return the output of a norm, as the input of the next product.

    Under tensor parallelism, torch's products save it gathered; Megatron's save the rank's slice.
    """
    if sizes.layout.framework is Framework.MEGATRON:
        return sizes.stream * sizes.saved_input / sizes.element
    return sizes.tokens * sizes.hidden * sizes.element


def _norm_moved(sizes: _Sizes) -> float:
    """Return the bytes that a norm and the residual's addition read and write."""
    return sizes.stream * (5 if sizes.layout.kernels.fused_norms else 15)
