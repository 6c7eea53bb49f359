"""Bubbles, tokens per second, model flop and exposed messages of a step, worked out by hand.

Sources: arXiv 2104.04473, section 2.2 and appendix; arXiv 2401.10241, section 2.3; PaLM (arXiv 2204.02311,
appendix B) for model flop utilization. The machine has one rate for everything that the form is about.
"""

import pytest
from msgspec.structs import replace

from tests.support.planned_layouts import (
    GPT,
    GPT_H,
    GPT_L,
    GPT_V,
    LLAMA,
    MIXTRAL,
    MIXTRAL_V,
    PSI,
    TOP,
    A,
    D,
    E,
    F,
    H,
    K,
    L,
    V,
    estimate,
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
from zprof.model.machines import H100
from zprof.model.plan import Bound
from zprof.model.transformer import Attention, LayerRun, Mlp, Transformer

MEGATRON, FSDP2, DDP = Framework.MEGATRON, Framework.FSDP2, Framework.DDP
S, B = 4096, 4
#: Links so fast that messages take no time.
FAST = replace(
    H100,
    intra_bytes_per_s=1e18,
    node_bytes_per_s=1e18,
    intra_latency_ns=0,
    inter_latency_ns=0,
    host_bytes_per_s=1e18,
)


def one(framework: Framework = MEGATRON, *, m: int = 1, **rest: object) -> Layout:
    degrees = make_degrees(data=1)
    return make_layout(framework, 0, degrees, **{"micro_batch": B, "micro_batches": m, "sequence": S, **rest})


def pipeline(schedule: PipelineSchedule, p: int, v: int, m: int) -> Layout:
    degrees = make_degrees(data=1, pipeline=p, virtual=v)
    return make_layout(MEGATRON, 0, degrees, micro_batch=B, micro_batches=m, sequence=S, schedule=schedule)


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m", "share"),
    [
        (PipelineSchedule.GPIPE, 4, 1, 8, 3 / 8),
        (PipelineSchedule.ONE_F_ONE_B, 4, 1, 8, 3 / 8),
        (PipelineSchedule.ONE_F_ONE_B, 8, 1, 64, 7 / 64),
        (PipelineSchedule.INTERLEAVED, 4, 2, 8, 3 / (2 * 8)),
        (PipelineSchedule.INTERLEAVED, 8, 4, 16, 7 / (4 * 16)),
        (PipelineSchedule.ZERO_BUBBLE, 4, 1, 8, 3 / (3 * 8)),
    ],
)
def test_bubble(schedule: PipelineSchedule, p: int, v: int, m: int, share: float) -> None:
    """(p-1)/m of the time of m micro-batches, by v chunks, and a third with split backward passes.

    The time of a micro-batch is what one more adds to the step.
    """
    made = estimate(LLAMA, pipeline(schedule, p, v, m), FAST)
    longer = estimate(LLAMA, pipeline(schedule, p, v, 2 * m), FAST)
    ideal = longer.step.wall_ns - made.step.wall_ns
    assert made.step.idle_ns == pytest.approx(share * ideal, rel=1e-3)
    assert longer.step.idle_ns == pytest.approx(made.step.idle_ns, rel=1e-6)


def test_the_bubble_has_no_data_parallel_messages() -> None:
    """A stage waits for passes of others, not for reductions, which come once per step."""
    alone = estimate(LLAMA, pipeline(PipelineSchedule.ONE_F_ONE_B, 4, 1, 8))
    degrees = make_degrees(data=8, pipeline=4)
    shared = estimate(LLAMA, make_layout(MEGATRON, 1, degrees, micro_batch=B, micro_batches=8, sequence=S))
    assert shared.step.exposed_transfer_ns > alone.step.exposed_transfer_ns
    assert shared.step.idle_ns == pytest.approx(alone.step.idle_ns, rel=1e-6)


def test_pipeline_fills_and_drains_over_the_links() -> None:
    """2 (p-1) boundaries of b s h in 16 bits, between nodes on the rank's share of the cards."""
    p, layout = 16, pipeline(PipelineSchedule.ONE_F_ONE_B, 16, 1, 32)
    added = estimate(LLAMA, layout).step.wall_ns - estimate(LLAMA, layout, FAST).step.wall_ns
    one_ns = 10_000 + 2 * B * S * H / (400e9 / 8) * 1e9
    assert added == pytest.approx(2 * (p - 1) * one_ns, rel=1e-3)


ATTENTION = 2 * H * A * D + 2 * H * K * D
FLOP: dict[str, tuple[Transformer, Layout, float]] = {
    # flop of the model per token: 6 per weight that multiplies, 6 s q of causal attention, 12 s q of all
    "GPT": (GPT, one(), 6 * (12 * GPT_H**2 * GPT_L + GPT_V * GPT_H) + 6 * GPT_L * S * GPT_H),
    "Llama": (LLAMA, one(), 6 * (L * (ATTENTION + 3 * H * F) + V * H) + 6 * L * S * A * D),
    "recomputation is no work of the model": (
        LLAMA,
        one(recompute=Recompute.FULL),
        6 * (L * (ATTENTION + 3 * H * F) + V * H) + 6 * L * S * A * D,
    ),
    "without flash attention": (
        LLAMA,
        one(kernels=Kernels(flash_attention=False)),
        6 * (L * (ATTENTION + 3 * H * F) + V * H) + 6 * L * S * A * D,
    ),
    "experts: those a token uses, and the router": (
        MIXTRAL,
        one(),
        6 * (L * (ATTENTION + TOP * 3 * H * F + E * H) + MIXTRAL_V * H) + 6 * L * S * A * D,
    ),
}


@pytest.mark.parametrize("name", FLOP)
def test_model_flops(name: str) -> None:
    """MFU x peak x time is the model's flop, and tokens per second are tokens by time."""
    model, layout, per_token = FLOP[name]
    made = estimate(model, layout)
    wall_s = made.step.wall_ns / 1e9
    assert made.model_flops_ratio * 989e12 * wall_s == pytest.approx(per_token * B * S, rel=1e-5)
    assert made.tokens_per_s == pytest.approx(B * S / wall_s, rel=1e-9)
    assert made.step.exposed_transfer_ns == 0
    assert made.step.idle_ns == 0


@pytest.mark.parametrize(
    ("degrees", "m"),
    [
        ({"data": 8}, 2),
        ({"data": 2, "tensor": 4}, 2),
        ({"data": 1, "pipeline": 4}, 8),
        ({"data": 2, "context": 4}, 2),
    ],
)
def test_devices_share_the_flop(degrees: dict[str, int], m: int) -> None:
    """Each device has 1/n of the job's flop; tokens per second are per device."""
    layout = make_layout(MEGATRON, 1, make_degrees(**degrees), micro_batch=B, micro_batches=m, sequence=S)
    made = estimate(LLAMA, layout)
    devices = layout.degrees.devices
    tokens = B * S * m * degrees["data"]
    flop = (6 * (L * (ATTENTION + 3 * H * F) + V * H) + 6 * L * S * A * D) * tokens
    wall_s = made.step.wall_ns / 1e9
    assert made.model_flops_ratio * 989e12 * wall_s * devices == pytest.approx(flop, rel=1e-5)
    assert made.tokens_per_s * wall_s * devices == pytest.approx(tokens, rel=1e-9)


def test_flop_of_a_model_with_two_kinds_of_layers_in_a_pipeline() -> None:
    """Three wide layers in front of 61 narrow ones count as three, on whichever stage they are."""
    attention = Attention(heads=32, kv_heads=8, head_width=128)
    wide = LayerRun(count=3, mixer=attention, feed_forward=Mlp(width=18432))
    narrow = LayerRun(count=61, mixer=attention, feed_forward=Mlp(width=2048))
    model = Transformer(hidden=H, layers=(wide, narrow), vocabulary=V)
    made = estimate(model, pipeline(PipelineSchedule.ONE_F_ONE_B, 4, 1, 8))
    weights = 64 * ATTENTION + 3 * H * (3 * 18432 + 61 * 2048) + V * H
    flop = (6 * weights + 6 * 64 * S * A * D) * B * S * 8
    assert made.model_flops_ratio * 989e12 * made.step.wall_ns / 1e9 * 4 == pytest.approx(flop, rel=1e-5)


def test_a_window_limits_attention() -> None:
    """A token sees w tokens but at the start of a sequence: s w - w^2 / 2 pairs of s^2 / 2."""
    w = 1024
    attention = Attention(heads=A, kv_heads=K, head_width=D, window=w)
    run = LayerRun(count=L, mixer=attention, feed_forward=Mlp(width=F))
    made = estimate(replace(LLAMA, layers=(run,)), one())
    pairs = S * w - w * w / 2
    flop = 6 * (L * (ATTENTION + 3 * H * F) + V * H) * B * S + 12 * L * B * pairs * A * D
    assert made.model_flops_ratio * 989e12 * made.step.wall_ns / 1e9 == pytest.approx(flop, rel=1e-5)


def test_fp8_counts_by_its_own_peak() -> None:
    made = estimate(LLAMA, one(precision=ComputePrecision.FP8))
    flop = (6 * (L * (ATTENTION + 3 * H * F) + V * H) + 6 * L * S * A * D) * B * S
    assert made.model_flops_ratio * 1979e12 * made.step.wall_ns / 1e9 == pytest.approx(flop, rel=1e-5)


def test_large_products_take_flop_by_rate() -> None:
    """A model of nothing but one giant MLP computes 16 times as long with 16 times the width."""

    def measure(width: int) -> int:
        run = LayerRun(count=64, mixer=None, feed_forward=Mlp(width=width, gated=False))
        return estimate(Transformer(hidden=16384, layers=(run,)), one(DDP)).step.compute_ns

    assert measure(16 * 65536) / measure(65536) == pytest.approx(16, rel=0.02)


SLOW = replace(H100, intra_bytes_per_s=1e6, node_bytes_per_s=1e6, intra_latency_ns=0, inter_latency_ns=0)


@pytest.mark.parametrize(
    ("framework", "stage", "reshard", "m", "moved"),
    [
        (DDP, 0, True, 3, 4 * 2),  # all-reduce of fp32 gradients, once
        (Framework.DEEPSPEED, 1, True, 3, 2 * 3),
        (Framework.DEEPSPEED, 2, True, 3, 2 * (2 * 3 + 1)),
        (FSDP2, 3, False, 3, 2 * 2 * 3),  # one gather and one reduction per micro-batch
        (MEGATRON, 1, True, 3, 2 * 2),
    ],
)
def test_a_slow_link_takes_what_it_moves(
    framework: Framework, stage: int, reshard: bool, m: int, moved: float
) -> None:
    """With a link that hides nothing, the exposed time is (N-1)/N of the bytes by the bandwidth."""
    n = 8
    degrees = make_degrees(data=n) if stage else make_degrees(data=n, shard=1)
    layout = make_layout(framework, stage, degrees, micro_batches=m, reshard=reshard)
    made = estimate(LLAMA, layout, SLOW)
    assert made.bound is Bound.NETWORK
    expected = moved * PSI * (n - 1) / n / 1e6 * 1e9
    assert made.step.collective_ns == pytest.approx(expected, rel=0.01)
    assert made.step.exposed_transfer_ns == pytest.approx(expected, rel=0.01)


def test_resharding_gathers_twice_except_what_stays() -> None:
    """3 psi per micro-batch; the root stays gathered between the passes."""
    n, m = 8, 2
    made = estimate(LLAMA, make_layout(FSDP2, 3, make_degrees(data=n), micro_batches=m), SLOW)
    root = 2 * V * H + H
    low, high = (2 * m * (3 * PSI - root), 2 * m * 3 * PSI)
    unit = (n - 1) / n / 1e6 * 1e9
    assert low * unit * 0.99 <= made.step.collective_ns <= high * unit * 1.01


def test_an_offloaded_optimizer_moves_gradients_out_and_weights_in() -> None:
    """2 + 2 bytes per element of the shard over the host link (ZeRO-Offload, arXiv 2101.06840)."""
    n = 8
    layout = make_layout(Framework.DEEPSPEED, 2, make_degrees(data=n), offload_optimizer=True)
    made = estimate(LLAMA, layout)
    assert made.step.exposed_memcpy_ns == pytest.approx(4 * PSI / n / 55e9 * 1e9, rel=1e-5)


def test_the_update_reads_and_writes_the_moments() -> None:
    """Adam moves 16 bytes per element more than SGD, momentum 8, at no more than the memory's bandwidth."""
    kinds = (OptimizerKind.ADAM, OptimizerKind.MOMENTUM, OptimizerKind.SGD)
    fused = EngineBuffers(foreach_optimizer=False)
    adam, momentum, sgd = (
        estimate(LLAMA, one(DDP, optimizer=kind, buffers=fused)).step.compute_ns for kind in kinds
    )
    assert adam - sgd == pytest.approx(2 * (momentum - sgd), rel=1e-6)
    at_peak_ns = 16 * PSI / 3.35e12 * 1e9
    assert at_peak_ns <= adam - sgd <= 2 * at_peak_ns
