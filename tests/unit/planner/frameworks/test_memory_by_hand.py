"""Model states and buffers of each framework against forms from its documentation, worked out by hand.

Sources: arXiv 1910.02054, section 3; DeepSpeed's ``stage_1_and_2`` and ``stage3`` optimizers and its
configuration page; Megatron-Core, dist_optimizer.md (4 + 16/d, 6 + 12/d, 8 + 8/d bytes per parameter);
``fully_shard`` and DDP of torch.
"""

import pytest

from tests.support.planned_layouts import (
    DENSE,
    EXPERTS,
    GPT_A,
    GPT_H,
    GPT_V,
    LAYER,
    LLAMA,
    MIXTRAL,
    PSI,
    SPLIT,
    TABLES,
    E,
    F,
    H,
    L,
    V,
    estimate,
    get_bytes,
    make_degrees,
    make_layout,
)
from zprof.model.layout import (
    ComputePrecision,
    EngineBuffers,
    Framework,
    Kernels,
    Layout,
    OptimizerKind,
    PipelineSchedule,
    Recompute,
)
from zprof.model.tenants import Tenant
from zprof.model.transformer import Attention, LayerRun, Mlp, Transformer

P, G, O = Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE  # noqa: E741
A, T, C = Tenant.ACTIVATIONS, Tenant.TEMPORARY_BUFFERS, Tenant.COMMUNICATION_BUFFERS
N = 16
FUSED = EngineBuffers(foreach_optimizer=False)


def ddp(**rest: object) -> Layout:
    return make_layout(Framework.DDP, 0, make_degrees(data=N, shard=1), **rest)


def deepspeed(stage: int, **rest: object) -> Layout:
    return make_layout(Framework.DEEPSPEED, stage, make_degrees(data=N), **rest)


def fsdp2(shard: int = N, **rest: object) -> Layout:
    return make_layout(Framework.FSDP2, 3, make_degrees(data=N, shard=shard), **rest)


def megatron(stage: int = 1, **rest: object) -> Layout:
    given = {"fp32_reduce": True, **rest}
    degrees = given.pop("degrees", make_degrees(data=N))
    return make_layout(Framework.MEGATRON, stage, degrees, **given)  # type: ignore[arg-type]


def optimizer(kind: OptimizerKind, **rest: object) -> Layout:
    return fsdp2(optimizer=kind, **rest)


FP32, FP16 = ComputePrecision.FP32, ComputePrecision.FP16
STATES: dict[str, tuple[Layout, tuple[float, float, float]]] = {
    # bytes of weights, gradients and optimizer state
    "DDP": (ddp(), (4 * PSI, 4 * PSI, 8 * PSI)),
    "DDP in 16 bits": (ddp(master_weights=False), (2 * PSI, 2 * PSI, 4 * PSI)),
    "DDP in 32 bits": (ddp(precision=FP32), (4 * PSI, 4 * PSI, 8 * PSI)),
    "DDP, gradients as views": (
        ddp(buffers=EngineBuffers(gradient_as_bucket_view=True)),
        (4 * PSI, 0, 8 * PSI),
    ),
    "ZeRO-1": (deepspeed(1), (2 * PSI, 2 * PSI, 12 * PSI / N)),
    "ZeRO-2": (deepspeed(2), (2 * PSI, 2 * PSI / N, 12 * PSI / N)),
    "ZeRO-3": (deepspeed(3), (2 * PSI / N, 2 * PSI / N, 12 * PSI / N)),
    "ZeRO-2, fp16": (deepspeed(2, precision=FP16), (2 * PSI, 2 * PSI / N, 12 * PSI / N)),
    "ZeRO-2, optimizer on the host": (deepspeed(2, offload_optimizer=True), (2 * PSI, 0, 0)),
    "ZeRO-3, all on the host": (deepspeed(3, offload_optimizer=True, offload_parameters=True), (0, 0, 0)),
    "FSDP2": (fsdp2(), (4 * PSI / N, 4 * PSI / N, 8 * PSI / N)),
    "FSDP2 in 16 bits": (fsdp2(master_weights=False), (2 * PSI / N, 2 * PSI / N, 4 * PSI / N)),
    "FSDP2 in 32 bits": (fsdp2(precision=FP32), (4 * PSI / N, 4 * PSI / N, 8 * PSI / N)),
    "HSDP": (fsdp2(shard=4), (4 * PSI / 4, 4 * PSI / 4, 8 * PSI / 4)),
    "SGD": (optimizer(OptimizerKind.SGD), (4 * PSI / N, 4 * PSI / N, 0)),
    "momentum": (optimizer(OptimizerKind.MOMENTUM), (4 * PSI / N, 4 * PSI / N, 4 * PSI / N)),
    "8-bit Adam": (optimizer(OptimizerKind.ADAM_8BIT), (4 * PSI / N, 4 * PSI / N, 2 * PSI / N)),
    "8-bit Adam in 16 bits": (
        optimizer(OptimizerKind.ADAM_8BIT, master_weights=False),
        (2 * PSI / N, 2 * PSI / N, 2 * PSI / N),
    ),
    "Muon": (optimizer(OptimizerKind.MUON), (4 * PSI / N, 4 * PSI / N, (4 * PSI + 4 * TABLES) / N)),
    "Megatron, 6 + 12/d": (megatron(), (2 * PSI, 4 * PSI, 12 * PSI / N)),
    "Megatron, 4 + 16/d": (megatron(fp32_reduce=False), (2 * PSI, 2 * PSI, 12 * PSI / N)),
    "Megatron, 8 + 8/d": (megatron(precision=FP32), (4 * PSI, 4 * PSI, 8 * PSI / N)),
    "Megatron, 18": (megatron(0, degrees=make_degrees(data=N, shard=1)), (2 * PSI, 4 * PSI, 12 * PSI)),
    "FP8 weights in both orientations": (
        megatron(precision=ComputePrecision.FP8),
        (2 * PSI, 4 * PSI, 12 * PSI / N),
    ),
    "MXFP8: and a scale per 32": (
        megatron(precision=ComputePrecision.MXFP8),
        (2 * (1 + 1 / 32) * PSI, 4 * PSI, 12 * PSI / N),
    ),
    "NVFP4: 16 bits, and both orientations with a scale per 16": (
        megatron(precision=ComputePrecision.NVFP4),
        ((2 + 2 * (1 / 2 + 1 / 16)) * PSI, 4 * PSI, 12 * PSI / N),
    ),
    "Megatron, context ranks share": (
        megatron(degrees=make_degrees(data=4, context=4)),
        (2 * PSI, 4 * PSI, 12 * PSI / 16),
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_states(name: str) -> None:
    layout, (weights, gradients, state) = STATES[name]
    made = estimate(LLAMA, layout)
    assert get_bytes(made, P, "weight") == pytest.approx(weights, rel=1e-6)
    assert get_bytes(made, G, "grad") == pytest.approx(gradients, rel=1e-6)
    assert get_bytes(made, O, "state") == pytest.approx(state, rel=1e-6)


def test_one_device_keeps_gradients_without_buckets() -> None:
    """With one rank, gradients cannot be views of buckets that do not exist."""
    views = EngineBuffers(gradient_as_bucket_view=True)
    layout = make_layout(Framework.DDP, 0, make_degrees(data=1, shard=1), buffers=views)
    assert get_bytes(estimate(LLAMA, layout), G, "grad") == 4 * PSI


def test_tensor_parallel_states() -> None:
    """Matrices and tables are split; norms are on every rank."""
    t = 8
    local = L * (SPLIT / t + 2 * H) + TABLES / t
    made = estimate(LLAMA, megatron(degrees=make_degrees(data=2, tensor=t)))
    assert get_bytes(made, P, "weight") == pytest.approx(2 * local, rel=1e-4)
    assert get_bytes(made, O, "state") == pytest.approx(12 * local / 2, rel=1e-4)


def test_pipeline_states() -> None:
    """The fullest stage of four holds a quarter of the layers, and the embedding."""
    local = L / 4 * LAYER + V * H
    made = estimate(LLAMA, megatron(degrees=make_degrees(data=4, pipeline=4), micro_batches=8))
    assert made.stage == 0
    assert get_bytes(made, P, "weight") == pytest.approx(2 * local, rel=1e-6)


def test_a_tied_head_is_on_both_ends_of_a_pipeline() -> None:
    v, h = 512_000, 1024
    run = LayerRun(
        count=8, mixer=Attention(heads=8, kv_heads=8, head_width=128), feed_forward=Mlp(width=4 * h)
    )
    model = Transformer(hidden=h, layers=(run,), vocabulary=v, tied=True)
    layout = megatron(degrees=make_degrees(data=1, pipeline=2), micro_batches=2)
    made = estimate(model, layout)
    half = 4 * (4 * h * h + 3 * h * 4 * h + 2 * h)
    assert made.stage == 1  # the loss makes it the fullest
    assert get_bytes(made, P, "weight") == 2 * (half + v * h + h)


@pytest.mark.parametrize("ep", [2, 8])
@pytest.mark.parametrize("t", [1, 2])
def test_expert_parallel_states(ep: int, t: int) -> None:
    """Experts are spread over ``ep`` ranks; their optimizer over the ranks that hold the same experts."""
    data = 16
    dense = (DENSE - L * (2 * H + E * H)) / t + L * (2 * H + E * H)
    made = estimate(MIXTRAL, megatron(degrees=make_degrees(data=data, tensor=t, expert=ep)))
    assert get_bytes(made, P, "weight") == pytest.approx(2 * (dense + EXPERTS / ep), rel=1e-4)
    assert get_bytes(made, G, "grad") == pytest.approx(4 * (dense + EXPERTS / ep), rel=1e-4)
    state = 12 * (dense / data + EXPERTS / ep / (data * t / ep))
    assert get_bytes(made, O, "state") == pytest.approx(state, rel=1e-4)


BUFFERS: dict[str, tuple[Layout, Tenant, str, float]] = {
    "DDP's buckets": (ddp(), C, "buckets", 4 * PSI),
    "DDP's buckets in 16 bits": (ddp(master_weights=False), C, "buckets", 2 * PSI),
    "DDP's buckets are the gradients": (
        ddp(buffers=EngineBuffers(gradient_as_bucket_view=True)),
        C,
        "buckets",
        4 * PSI,
    ),
    "foreach update": (ddp(sequence=128), T, "update", 4 * PSI),
    "fused update": (ddp(sequence=128, buffers=FUSED), T, "update", 0),
    "autocast's copies": (ddp(buffers=FUSED, kernels=Kernels(fused_loss=False)), T, "cast", 2 * PSI),
    "ZeRO's reduce buckets": (deepspeed(2), C, "reduce_bucket", 2 * 2 * 5e8),
    "one without overlap_comm": (
        deepspeed(1, buffers=EngineBuffers(overlap_comm=False)),
        C,
        "reduce_bucket",
        2 * 5e8,
    ),
    "reduce_bucket_size": (
        deepspeed(2, buffers=EngineBuffers(reduce_bucket_elements=200_000_000)),
        C,
        "reduce_bucket",
        2 * 2 * 2e8,
    ),
    "ZeRO-3 has one": (deepspeed(3), C, "reduce_bucket", 2 * 5e8),
    "stage3_max_live_parameters": (deepspeed(3), C, "gathered_param", 2 * 1e9),
    "a small model is gathered whole": (
        deepspeed(3, buffers=EngineBuffers(max_live_elements=100_000_000_000)),
        C,
        "gathered_param",
        2 * PSI,
    ),
    "ZeRO's gradients in fp32, and a flat copy": (
        deepspeed(1, sequence=128, buffers=EngineBuffers(reduce_bucket_elements=1000)),
        T,
        "update",
        (4 + 2) * PSI / N,
    ),
    "Megatron's 16-bit gradients in fp32": (
        megatron(fp32_reduce=False, sequence=128),
        T,
        "update",
        4 * PSI / N,
    ),
    "Megatron's fp32 gradients need no copy": (megatron(sequence=128), T, "update", 0),
    "FSDP2 without resharding": (fsdp2(reshard=False), C, "gathered_param", 2 * (PSI + LAYER)),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers(name: str) -> None:
    layout, tenant, sub, expected = BUFFERS[name]
    assert get_bytes(estimate(LLAMA, layout), tenant, sub) == pytest.approx(expected, rel=1e-6)


def test_resharding_holds_a_few_layers() -> None:
    """At most the head, the embedding and three layers are unsharded, not all 32 layers."""
    gathered = get_bytes(estimate(LLAMA, fsdp2()), C, "gathered_param")
    assert 2 * LAYER <= gathered <= 2 * (V * H + H + 3 * LAYER)


@pytest.mark.parametrize("t", [1, 4])
@pytest.mark.parametrize(("fused", "logit"), [(True, 4), (False, 12)])
def test_loss(t: int, fused: bool, logit: int) -> None:
    """Logits and their gradient in 16 bits, or log-softmax and two gradients in fp32; words are split.

    The head's product needs its whole input, and returns the whole gradient of it.
    """
    s, b = 4096, 8
    run = LayerRun(
        count=1, mixer=Attention(heads=GPT_A, kv_heads=GPT_A, head_width=128), feed_forward=Mlp(width=GPT_H)
    )
    layout = megatron(
        degrees=make_degrees(data=1, tensor=t),
        micro_batch=b,
        kernels=Kernels(fused_loss=fused),
        recompute=Recompute.FULL,
    )
    made = estimate(Transformer(hidden=GPT_H, layers=(run,), vocabulary=GPT_V), layout)
    assert made.peak_at == "loss"
    assert get_bytes(made, T, "loss") == pytest.approx(s * b * (logit * GPT_V / t + 2 * 2 * GPT_H), rel=1e-6)


def test_a_reserve_for_context_and_communication() -> None:
    """One device has no communicator; both have a driver's context."""
    one = estimate(LLAMA, make_layout(Framework.MEGATRON, 0, make_degrees(data=1, shard=1)))
    two = estimate(LLAMA, make_layout(Framework.MEGATRON, 0, make_degrees(data=2, shard=1)))
    assert one.peak_bytes == two.peak_bytes
    assert 0 < one.reserve_bytes < two.reserve_bytes


@pytest.mark.parametrize("schedule", list(PipelineSchedule))
@pytest.mark.parametrize(("layers", "p"), [(32, 4), (126, 8), (61, 4), (7, 7), (13, 2)])
def test_weights_of_the_fullest_stage_are_between_the_even_split_and_one_layer_more(
    schedule: PipelineSchedule, layers: int, p: int
) -> None:
    run = LayerRun(count=layers, mixer=LLAMA.layers[0].mixer, feed_forward=Mlp(width=F))
    model = Transformer(hidden=H, layers=(run,), vocabulary=1000)
    layout = megatron(
        degrees=make_degrees(data=1, pipeline=p, virtual=1), micro_batches=8, schedule=schedule, sequence=16
    )
    weights = get_bytes(estimate(model, layout), P, "weight")
    table = 2 * (1000 * H + H)
    assert 2 * (layers // p) * LAYER <= weights <= 2 * -(-layers // p) * LAYER + table
