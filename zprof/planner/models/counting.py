"""Count the elements of a transformer, exact to the tensor.

The counts follow the modules of the ``transformers`` library (modeling files of llama, qwen2_moe,
deepseek_v3, gpt_oss, nemotron_h, vit) and the papers that ``zprof.model.transformer`` names. Buffers that
are not trained, as the tables of rotary positions, are not counted.
"""

from msgspec import Struct

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


class LayerElements(Struct, frozen=True, kw_only=True):
    """Elements of one layer, by how tensor and expert parallelism divide them.

    ``split_elements``: divided over the tensor-parallel ranks. ``replicated_elements``: whole on each of
    them (norms, routers, biases of row-parallel matrices, down-projections of latent attention).
    ``expert_elements``: all routed experts; ``active_expert_elements``: the experts that one token uses.
    """

    split_elements: int = 0
    replicated_elements: int = 0
    expert_elements: int = 0
    active_expert_elements: int = 0

    @property
    def elements(self) -> int:
        """All elements."""
        return self.split_elements + self.replicated_elements + self.expert_elements

    @property
    def active_elements(self) -> int:
        """Elements that one token uses."""
        return self.split_elements + self.replicated_elements + self.active_expert_elements


def count_parameters(model: Transformer) -> int:
    """Return the parameters of a model; a head tied to the embedding is counted once."""
    layers = sum(run.count * count_run_elements(model, run).elements for run in model.layers)
    return layers + count_embedding_elements(model) + count_head_elements(model)


def count_active_parameters(model: Transformer) -> int:
    """Return the parameters that one token uses: all but the experts to which it is not routed.

    The whole embedding table counts, as in the figures of Mixtral (arXiv 2401.04088) and Qwen 3
    (arXiv 2505.09388). The figures of GPT-OSS (arXiv 2508.10925, table 1) leave the embedding out.
    """
    layers = sum(run.count * count_run_elements(model, run).active_elements for run in model.layers)
    return layers + count_embedding_elements(model) + count_head_elements(model)


def count_run_elements(model: Transformer, run: LayerRun) -> LayerElements:
    """Return the elements of one layer of a run."""
    parts = (run.mixer, run.feed_forward)
    norms = sum(part is not None for part in parts) + run.extra_norms
    counts = [
        LayerElements(replicated_elements=norms * count_norm_elements(model)),
        _count_mixer(model.hidden, run.mixer),
        _count_feed_forward(model.hidden, run.feed_forward),
    ]
    return LayerElements(
        split_elements=sum(count.split_elements for count in counts),
        replicated_elements=sum(count.replicated_elements for count in counts),
        expert_elements=sum(count.expert_elements for count in counts),
        active_expert_elements=sum(count.active_expert_elements for count in counts),
    )


def count_norm_elements(model: Transformer) -> int:
    """Return the elements of one norm over the hidden size."""
    return model.hidden * (2 if model.layer_norm else 1)


def count_embedding_elements(model: Transformer) -> int:
    """Return the elements in front of the layers: token, position and patch embeddings.

    The patch embedding has a bias, and a class token stands in front of the patches (arXiv 2010.11929).
    """
    rows = model.vocabulary + model.learned_positions
    if model.patch_elements:
        rows += model.patch_elements + 2
    return rows * model.hidden


def count_head_elements(model: Transformer) -> int:
    """Return the elements behind the layers: the final norm, and the head if it has weights of its own.

    A classifier has a bias, a language model's head has none.
    """
    head = 0 if model.tied else model.vocabulary * model.hidden
    return count_norm_elements(model) + head + model.classes * (model.hidden + 1)


def _count_mixer(hidden: int, mixer: Mixer | None) -> LayerElements:
    match mixer:
        case Attention():
            queries, keys = mixer.query_width, mixer.key_width
            split = 2 * hidden * (queries + keys)
            split += queries + 2 * keys if mixer.biased else 0
            split += mixer.heads if mixer.sinks else 0
            replicated = hidden if mixer.output_biased else 0
            replicated += 2 * mixer.head_width if mixer.head_norms else 0
            return LayerElements(split_elements=split, replicated_elements=replicated)
        case LatentAttention():
            expanded = mixer.heads * (mixer.nope_width + mixer.value_width)
            split = mixer.kv_rank * expanded + mixer.output_width * hidden
            replicated = hidden * (mixer.kv_rank + mixer.rope_width) + mixer.kv_rank
            if mixer.query_rank is None:
                split += hidden * mixer.query_width
            else:
                split += mixer.query_rank * mixer.query_width
                replicated += hidden * mixer.query_rank + mixer.query_rank
            return LayerElements(split_elements=split, replicated_elements=replicated)
        case Mamba():
            # in: gate, x, B, C and dt; A, D and dt's bias per head; gated norm; out.
            projected = mixer.inner_width + mixer.convolved_width + mixer.heads
            split = hidden * projected + mixer.convolved_width * (mixer.convolution + 1)
            split += 3 * mixer.heads + mixer.inner_width + mixer.inner_width * hidden
            return LayerElements(split_elements=split)
        case None:
            return LayerElements()


def _count_feed_forward(hidden: int, part: FeedForward | None) -> LayerElements:
    match part:
        case Mlp():
            expansions = 2 if part.gated else 1
            split = (expansions + 1) * hidden * part.width + (expansions * part.width if part.biased else 0)
            return LayerElements(split_elements=split, replicated_elements=hidden if part.biased else 0)
        case Experts():
            expansions = 2 if part.gated else 1
            inputs = part.latent_width or hidden
            expert = (expansions + 1) * inputs * part.width
            expert += expansions * part.width + inputs if part.biased else 0
            replicated = part.experts * (hidden + (1 if part.router_biased else 0))
            replicated += 2 * hidden * part.latent_width if part.latent_width else 0
            replicated += hidden if part.shared_gated_by_token else 0
            return LayerElements(
                split_elements=(expansions + 1) * hidden * part.shared_width,
                replicated_elements=replicated,
                expert_elements=part.experts * expert,
                active_expert_elements=part.active * expert,
            )
        case None:
            return LayerElements()
