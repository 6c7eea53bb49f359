"""Bytes that a device moves in a step, along each kind of parallelism, worked out by hand.

Counted as in the ZeRO paper (arXiv 1910.02054, section 7): an all-reduce moves its tensor twice. Sources:
Korthikanti et al. (arXiv 2205.05198, section 4.2.2), Megatron-LM (arXiv 2104.04473, section 3.2), GShard
(arXiv 2006.16668), DeepSpeed's ``stage_1_and_2`` (its default all-reduces buckets and keeps slices), ring
attention (arXiv 2310.01889).
"""

import pytest

from tests.support.planned_layouts import (
    DENSE,
    EXPERTS,
    LLAMA,
    MIXTRAL,
    PSI,
    TOP,
    D,
    H,
    K,
    L,
    estimate,
    get_traffic,
    make_degrees,
    make_layout,
)
from zprof.model.layout import Framework, Layout, PipelineSchedule, Recompute
from zprof.model.plan import Axis
from zprof.model.transformer import LatentAttention, LayerRun, Mlp, Transformer

N, M = 8, 4
DDP, FSDP2 = Framework.DDP, Framework.FSDP2
DEEPSPEED, MEGATRON = Framework.DEEPSPEED, Framework.MEGATRON
S = 4096
#: One sequence of the residual stream, in elements.
X = S * H


def job(framework: Framework, stage: int, *, shard: int = 0, **rest: object) -> Layout:
    """Return a layout of N data-parallel ranks with M micro-batches of one sequence."""
    axes = {
        axis: rest.pop(axis)
        for axis in ("tensor", "pipeline", "context", "expert", "virtual")
        if axis in rest
    }
    data = rest.pop("data", N)
    own = {"shard": shard} if shard else {}
    degrees = make_degrees(data=data, **axes, **own)  # type: ignore[arg-type]
    return make_layout(framework, stage, degrees, **{"micro_batches": M, "sequence": S, **rest})


DATA: dict[str, tuple[Layout, float]] = {
    "DDP: 2 psi of fp32, once": (job(DDP, 0, shard=1), 4 * 2 * PSI),
    "DDP in 16 bits": (job(DDP, 0, shard=1, master_weights=False), 2 * 2 * PSI),
    "ZeRO-1: all-reduce once, gather once": (job(DEEPSPEED, 1), 2 * 3 * PSI),
    "ZeRO-2: all-reduce in each micro-batch, gather once": (job(DEEPSPEED, 2), 2 * (2 * M + 1) * PSI),
    "ZeRO-3: 3 psi in each micro-batch": (job(DEEPSPEED, 3), 2 * 3 * M * PSI),
    "FSDP2: 3 psi in each micro-batch": (job(FSDP2, 3), 2 * 3 * M * PSI),
    "FSDP2 reduces in fp32": (job(FSDP2, 3, fp32_reduce=True), (2 * 2 + 4) * M * PSI),
    "FSDP2 without resharding: 2 psi": (job(FSDP2, 3, reshard=False), 2 * 2 * M * PSI),
    "Megatron: reduce-scatter and all-gather once": (job(MEGATRON, 1), 2 * 2 * PSI),
    "Megatron reduces in fp32": (job(MEGATRON, 1, fp32_reduce=True), (2 + 4) * PSI),
    "Megatron without a distributed optimizer": (job(MEGATRON, 0, shard=1, fp32_reduce=True), 4 * 2 * PSI),
}


@pytest.mark.parametrize("name", DATA)
def test_data_parallel(name: str) -> None:
    layout, expected = DATA[name]
    (link,) = get_traffic(estimate(LLAMA, layout), Axis.DATA)
    assert link.bytes == pytest.approx(expected, rel=1e-6)
    assert link.ring_bytes == pytest.approx(expected * (N - 1) / N, rel=1e-6)
    assert link.link == "intra"


def test_fsdp2_in_a_pipeline_gathers_and_reduces_once() -> None:
    """Torch's pipeline stages gather before the first micro-batch, and reduce after the last."""
    (link,) = get_traffic(estimate(LLAMA, job(FSDP2, 3, pipeline=2)), Axis.DATA)
    assert link.bytes < 2 * 2 * PSI


def test_replicas_of_hybrid_sharding_all_reduce_their_shards() -> None:
    """Shards of a node: 3 psi within it, and an all-reduce of psi / 8 between 4 nodes."""
    made = get_traffic(estimate(LLAMA, job(FSDP2, 3, data=32, shard=8)), Axis.DATA)
    links = {link.link: link for link in made}
    assert links["intra"].bytes == pytest.approx(2 * 3 * M * PSI, rel=1e-6)
    assert links["inter"].bytes == pytest.approx(2 * 2 * M * PSI / 8, rel=1e-6)
    assert links["inter"].ring_bytes == pytest.approx(2 * 2 * M * PSI / 8 * 3 / 4, rel=1e-6)


def test_data_parallel_experts_travel_too() -> None:
    """DDP reduces all experts; their time counts as well as their bytes."""
    (link,) = get_traffic(estimate(MIXTRAL, job(DDP, 0, shard=1)), Axis.DATA)
    assert link.bytes == pytest.approx(4 * 2 * (DENSE + EXPERTS), rel=1e-6)
    assert link.time_ns is not None
    assert link.time_ns >= 4 * 2 * (DENSE + EXPERTS) * (N - 1) / N / 360e9 * 1e9 * 0.99


MESSAGES: dict[str, tuple[Layout, float]] = {
    # messages of one sequence of the stream, per layer and micro-batch
    "all-reduces: two in each pass": (job(MEGATRON, 1, tensor=4, sequence_parallel=False), 2 * 4),
    "Megatron's sequence parallelism gathers two inputs again": (job(MEGATRON, 1, tensor=4), 4 + 4 + 2),
    "torch saves the gathered inputs": (job(FSDP2, 3, tensor=4), 4 + 4),
    "full recomputation: one more forward pass": (
        job(MEGATRON, 1, tensor=4, sequence_parallel=False, recompute=Recompute.FULL),
        3 * 4,
    ),
    "two context ranks: half": (job(MEGATRON, 1, tensor=4, context=2, sequence_parallel=False), 4),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_tensor_parallel(name: str) -> None:
    layout, messages = MESSAGES[name]
    (link,) = get_traffic(estimate(LLAMA, layout), Axis.MODEL)
    assert link.elements == pytest.approx(L * M * messages * X, rel=1e-6)
    assert link.ring_bytes == pytest.approx(2 * L * M * messages * X * 3 / 4, rel=1e-6)


def test_routed_experts_need_no_tensor_parallel_messages() -> None:
    """Megatron's experts take each rank's tokens: only attention has messages, 2 + 2 + 1."""
    (link,) = get_traffic(estimate(MIXTRAL, job(MEGATRON, 1, tensor=2, expert=8)), Axis.MODEL)
    assert link.elements == pytest.approx(L * M * (2 + 2 + 1) * X, rel=1e-6)


@pytest.mark.parametrize(("recompute", "messages"), [(Recompute.NONE, 4), (Recompute.FULL, 6)])
@pytest.mark.parametrize("t", [1, 2])
def test_expert_parallel(recompute: Recompute, messages: int, t: int) -> None:
    """Each token goes to TOP experts and back, in each pass; tensor-parallel ranks send their own tokens."""
    layout = job(MEGATRON, 1, tensor=t, expert=8, recompute=recompute)
    (link,) = get_traffic(estimate(MIXTRAL, layout), Axis.EXPERT)
    assert link.elements == pytest.approx(L * M * messages * TOP * X / t, rel=1e-6)
    assert link.ring_bytes == pytest.approx(2 * L * M * messages * TOP * X / t * 7 / 8, rel=1e-6)


@pytest.mark.parametrize(("recompute", "rounds"), [(Recompute.NONE, 3), (Recompute.FULL, 4)])
def test_context_parallel(recompute: Recompute, rounds: int) -> None:
    """Keys and values go around in both passes, their gradients in the backward pass."""
    layout = job(MEGATRON, 1, data=2, context=4, recompute=recompute)
    (link,) = get_traffic(estimate(LLAMA, layout), Axis.CONTEXT)
    assert link.elements == pytest.approx(L * M * rounds * S * 2 * K * D, rel=1e-6)
    assert link.ring_bytes == pytest.approx(2 * L * M * rounds * S * 2 * K * D * 3 / 4, rel=1e-6)


def test_latent_attention_sends_keys_and_values_of_all_heads() -> None:
    """The ring runs inside the kernel, behind the expansion of the latent."""
    heads, nope, rope, value = 16, 128, 64, 128
    mixer = LatentAttention(
        heads=heads, query_rank=None, kv_rank=512, nope_width=nope, rope_width=rope, value_width=value
    )
    run = LayerRun(count=2, mixer=mixer, feed_forward=Mlp(width=4096))
    model = Transformer(hidden=2048, layers=(run,), vocabulary=1000)
    (link,) = get_traffic(estimate(model, job(MEGATRON, 1, data=2, context=4)), Axis.CONTEXT)
    assert link.elements == pytest.approx(2 * M * 3 * S * heads * (nope + rope + value), rel=1e-6)


BOUNDARIES: dict[str, tuple[Layout, float]] = {
    # sequences of the stream that a stage sends: forward and backward in each micro-batch and chunk
    "1F1B": (job(MEGATRON, 1, pipeline=4), 2 * M),
    "interleaved": (
        job(MEGATRON, 1, pipeline=4, virtual=2, schedule=PipelineSchedule.INTERLEAVED),
        2 * M * 2,
    ),
    "sequence parallel": (job(MEGATRON, 1, pipeline=4, tensor=8), 2 * M / 8),
    "tensor parallel alone": (job(MEGATRON, 1, pipeline=4, tensor=8, sequence_parallel=False), 2 * M),
    "context parallel": (job(MEGATRON, 1, pipeline=4, context=2), 2 * M / 2),
}


@pytest.mark.parametrize("name", BOUNDARIES)
def test_pipeline(name: str) -> None:
    layout, sequences = BOUNDARIES[name]
    (link,) = get_traffic(estimate(LLAMA, layout), Axis.PIPELINE)
    assert link.elements == pytest.approx(sequences * X, rel=1e-6)
    assert link.ring_bytes == link.bytes


def test_one_device_moves_nothing() -> None:
    layout = make_layout(FSDP2, 3, make_degrees(data=1))
    assert estimate(LLAMA, layout).links == ()
