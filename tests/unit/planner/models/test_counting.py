"""Elements of layers against sums of their tensors, written out by shape."""

from math import prod

import pytest

from zprof.model.transformer import (
    Attention,
    Experts,
    LatentAttention,
    LayerRun,
    Mamba,
    Mlp,
    Transformer,
)
from zprof.planner.models.counting import (
    count_active_parameters,
    count_embedding_elements,
    count_head_elements,
    count_parameters,
    count_run_elements,
)

H, FF, HEADS, KV, D = 96, 224, 6, 2, 20
Q, K = HEADS * D, KV * D
GQA = Attention(heads=HEADS, kv_heads=KV, head_width=D)
GQA_TENSORS = [(Q, H), (K, H), (K, H), (H, Q)]
MLA = {"heads": 6, "kv_rank": 32, "nope_width": 12, "rope_width": 8, "value_width": 10}
#: kv_a with the rope key, its norm, kv_b, output.
MLA_TENSORS = [(32 + 8, H), (32,), (6 * (12 + 10), 32), (H, 60)]
#: in_proj (z, x, B, C, dt), conv weight and bias, A_log, D, dt_bias, norm, out_proj.
MAMBA_TENSORS = [
    (2 * 128 + 2 * 2 * 16 + 8, H),
    (128 + 64, 4),
    (128 + 64,),
    (8,),
    (8,),
    (8,),
    (128,),
    (H, 128),
]
EXPERT = [(40, H), (40, H), (H, 40)]

#: Layer parts, and the shapes of their tensors; each part also has a norm of the hidden size.
PARTS = {
    "gqa": (GQA, GQA_TENSORS),
    "mha": (Attention(heads=6, kv_heads=6, head_width=16), [(96, H)] * 3 + [(H, 96)]),
    "mqa": (Attention(heads=6, kv_heads=1, head_width=16), [(96, H), (16, H), (16, H), (H, 96)]),
    "qkv_biases": (
        Attention(heads=HEADS, kv_heads=KV, head_width=D, biased=True),
        [*GQA_TENSORS, (Q,), (K,), (K,)],
    ),
    "all_biases": (
        Attention(heads=HEADS, kv_heads=KV, head_width=D, biased=True, output_biased=True),
        [*GQA_TENSORS, (Q,), (K,), (K,), (H,)],
    ),
    "head_norms": (
        Attention(heads=HEADS, kv_heads=KV, head_width=D, head_norms=True),
        [*GQA_TENSORS, (D,), (D,)],
    ),
    "sinks": (Attention(heads=HEADS, kv_heads=KV, head_width=D, sinks=True), [*GQA_TENSORS, (HEADS,)]),
    "window": (Attention(heads=HEADS, kv_heads=KV, head_width=D, window=64), GQA_TENSORS),
    "mla": (
        LatentAttention(query_rank=48, **MLA),
        [(48, H), (48,), (6 * 20, 48), *MLA_TENSORS],
    ),
    "mla_without_query_rank": (LatentAttention(query_rank=None, **MLA), [(6 * 20, H), *MLA_TENSORS]),
    "mamba": (Mamba(heads=8, head_width=16, groups=2, state=16), MAMBA_TENSORS),
    "swiglu": (Mlp(width=FF), [(FF, H), (FF, H), (H, FF)]),
    "gelu": (Mlp(width=FF, gated=False), [(FF, H), (H, FF)]),
    "gelu_biased": (Mlp(width=FF, gated=False, biased=True), [(FF, H), (FF,), (H, FF), (H,)]),
    "swiglu_biased": (Mlp(width=FF, biased=True), [(FF, H), (FF,), (FF, H), (FF,), (H, FF), (H,)]),
    "experts": (Experts(experts=5, active=2, width=40), [(5, H), *EXPERT * 5]),
    "experts_not_gated": (
        Experts(experts=5, active=2, width=40, gated=False),
        [(5, H), *[(40, H), (H, 40)] * 5],
    ),
    "experts_biased": (
        Experts(experts=5, active=2, width=40, biased=True, router_biased=True),
        [(5, H), (5,), *[*EXPERT, (40,), (40,), (H,)] * 5],
    ),
    "shared_expert": (
        Experts(experts=5, active=2, width=40, shared_width=80),
        [(5, H), *EXPERT * 5, (80, H), (80, H), (H, 80)],
    ),
    "shared_expert_with_gate": (
        Experts(experts=5, active=2, width=40, shared_width=80, shared_gated_by_token=True),
        [(5, H), *EXPERT * 5, (80, H), (80, H), (H, 80), (1, H)],
    ),
    "latent_experts": (
        Experts(experts=5, active=2, width=40, gated=False, latent_width=24, shared_width=80),
        [(5, H), (24, H), (H, 24), *[(40, 24), (24, 40)] * 5, (80, H), (H, 80)],
    ),
}


def sum_elements(shapes: list[tuple[int, ...]]) -> int:
    return sum(map(prod, shapes))


def make_model(part: object, **changes: object) -> Transformer:
    is_mixer = isinstance(part, Attention | LatentAttention | Mamba)
    run = LayerRun(count=3, mixer=part if is_mixer else None, feed_forward=None if is_mixer else part)
    return Transformer(hidden=H, layers=(run,), **changes)


@pytest.mark.parametrize("name", PARTS)
def test_a_layer_has_the_elements_of_its_tensors(name: str) -> None:
    part, shapes = PARTS[name]
    model = make_model(part)
    elements = count_run_elements(model, model.layers[0])
    assert elements.elements == sum_elements([*shapes, (H,)])
    assert count_parameters(model) == 3 * elements.elements + H, "layers and the final norm"


#: Elements that are whole on each tensor-parallel rank, without the norm in front: biases of row-parallel
#: matrices, norms of heads and latents, routers, projections to and from a latent.
REPLICATED = {
    "gqa": [],
    "qkv_biases": [],
    "all_biases": [(H,)],
    "head_norms": [(D,), (D,)],
    "sinks": [],
    "mla": [(48, H), (48,), (32 + 8, H), (32,)],
    "mamba": [],
    "gelu_biased": [(H,)],
    "experts": [(5, H)],
    "experts_biased": [(5, H), (5,)],
    "shared_expert_with_gate": [(5, H), (1, H)],
    "latent_experts": [(5, H), (24, H), (H, 24)],
}


@pytest.mark.parametrize("name", REPLICATED)
def test_what_tensor_parallelism_leaves_whole(name: str) -> None:
    model = make_model(PARTS[name][0])
    elements = count_run_elements(model, model.layers[0])
    assert elements.replicated_elements == sum_elements([*REPLICATED[name], (H,)])


def test_a_token_uses_its_experts_only() -> None:
    model = make_model(PARTS["experts_biased"][0], vocabulary=50)
    expert = sum_elements([*EXPERT, (40,), (40,), (H,)])
    elements = count_run_elements(model, model.layers[0])
    assert (elements.expert_elements, elements.active_expert_elements) == (5 * expert, 2 * expert)
    assert count_parameters(model) - count_active_parameters(model) == 3 * 3 * expert


def test_tables_and_head() -> None:
    model = make_model(GQA, vocabulary=50, learned_positions=30)
    assert count_embedding_elements(model) == 50 * H + 30 * H
    assert count_head_elements(model) == H + 50 * H
    assert count_head_elements(make_model(GQA, vocabulary=50, tied=True)) == H
    layer_norm = make_model(GQA, vocabulary=50, tied=True, layer_norm=True)
    assert count_head_elements(layer_norm) == 2 * H


def test_a_vision_model_has_patches_a_class_token_and_a_classifier() -> None:
    model = make_model(GQA, classes=10, patch_elements=3 * 8 * 8, learned_positions=17)
    # patch weight and bias, class token, positions; final norm, classifier with a bias.
    assert count_embedding_elements(model) == sum_elements([(H, 192), (H,), (H,), (17, H)])
    assert count_head_elements(model) == sum_elements([(H,), (10, H), (10,)])


def test_norms_of_a_layer() -> None:
    run = LayerRun(count=1, mixer=GQA, feed_forward=Mlp(width=FF), extra_norms=2)
    bare = sum_elements([*GQA_TENSORS, (FF, H), (FF, H), (H, FF)])
    model = Transformer(hidden=H, layers=(run,))
    assert count_run_elements(model, run).elements == bare + 4 * H
    model = Transformer(hidden=H, layers=(run,), layer_norm=True)
    assert count_run_elements(model, run).elements == bare + 8 * H
