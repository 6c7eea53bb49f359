"""Saved activations against the forms of Korthikanti et al. (arXiv 2205.05198, equations 1 to 6), without the
paper's dropout (34 sbh - 2 sbh of masks), with flash attention, grouped queries and SwiGLU, and against what
torch really keeps.

Symbols: s tokens of a sequence, b sequences, h hidden size, a heads, t tensor-parallel ranks, L layers.
"""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.support.planned_layouts import (
    GPT,
    GPT_A,
    GPT_H,
    GPT_L,
    LLAMA,
    MIXTRAL,
    TOP,
    A,
    D,
    E,
    F,
    H,
    K,
    L,
    estimate,
    get_bytes,
    make_degrees,
    make_layout,
)
from zprof.model.layout import ComputePrecision, Framework, Kernels, Layout, PipelineSchedule, Recompute
from zprof.model.tenants import Tenant
from zprof.model.transformer import Attention, LayerRun, Mlp, Transformer
from zprof.planner.layers import compute_layer_cost

S, B = 4096, 8
MEGATRON, FSDP2, DDP = Framework.MEGATRON, Framework.FSDP2, Framework.DDP
FULL = Recompute.FULL
UNFUSED_ATTENTION = Kernels(flash_attention=False)


def one(framework: Framework = MEGATRON, *, t: int = 1, cp: int = 1, ep: int = 1, **rest: object) -> Layout:
    """Return a layout with one micro-batch of B sequences and no data-parallel ranks."""
    degrees = make_degrees(data=1, tensor=t, context=cp, expert=ep)
    given = {"micro_batch": B, "micro_batches": 1, "sequence": S, **rest}
    return make_layout(framework, 0, degrees, **given)


SBH, LSE = S * B * GPT_H, 4 * S * B * GPT_A
#: Llama: the inputs of two norms and their outputs; queries, output, keys, values; log-sum-exp.
SB = S * B
LLAMA_ATTENTION = SB * (8 * H + 2 * (2 * A * D + 2 * K * D) + 4 * A)
MOE = SB * (8 * H + 2 * (2 * A * D + 2 * K * D) + 4 * A + 4 * E)
ROWS = SB * TOP

SAVED: dict[str, tuple[Transformer, Layout, float]] = {
    # per layer
    "flash attention: 32 sbh": (GPT, one(), 32 * SBH + LSE),
    "unfused attention adds 5 a s^2 b": (
        GPT,
        one(kernels=UNFUSED_ATTENTION),
        32 * SBH + LSE + 5 * GPT_A * S * S * B,
    ),
    "tensor and sequence parallel: / t": (GPT, one(t=4), (32 * SBH + LSE) / 4),
    "sequence parallel, unfused: / t": (
        GPT,
        one(t=8, kernels=UNFUSED_ATTENTION),
        (32 * SBH + LSE + 5 * GPT_A * S * S * B) / 8,
    ),
    "without sequence parallelism: 8 + 24/t": (
        GPT,
        one(t=4, sequence_parallel=False),
        8 * SBH + (24 * SBH + LSE) / 4,
    ),
    "full recomputation: 2 sbh": (GPT, one(recompute=FULL), 2 * SBH),
    "full recomputation, sequence parallel: 2 sbh/t": (GPT, one(t=4, recompute=FULL), 2 * SBH / 4),
    "full recomputation alone: 2 sbh": (
        GPT,
        one(t=4, recompute=FULL, sequence_parallel=False),
        2 * SBH,
    ),
    "full recomputation of two context ranks": (GPT, one(cp=2, recompute=FULL), 2 * SBH / 2),
    "context parallel: / c": (GPT, one(cp=4), (32 * SBH + LSE) / 4),
    "context parallel, unfused: each rank sees all keys": (
        GPT,
        one(cp=4, kernels=UNFUSED_ATTENTION),
        (32 * SBH + LSE + 5 * GPT_A * S * S * B) / 4,
    ),
    "fp32: all but the log-sum-exp twice": (
        GPT,
        one(DDP, precision=ComputePrecision.FP32),
        64 * SBH + LSE,
    ),
    "unfused norms: fp32 input and result, twice": (
        GPT,
        one(kernels=Kernels(fused_norms=False)),
        (32 + 2 * 8) * SBH + LSE,
    ),
    "a compiler recomputes GELU": (GPT, one(FSDP2, kernels=Kernels(compiled=True)), (32 - 8) * SBH + LSE),
    "grouped queries, SwiGLU of Megatron: 3 inner tensors": (LLAMA, one(), LLAMA_ATTENTION + 6 * SB * F),
    "SwiGLU in eager mode: 4 inner tensors": (LLAMA, one(FSDP2), LLAMA_ATTENTION + 8 * SB * F),
    "SwiGLU compiled: 2 inner tensors": (
        LLAMA,
        one(FSDP2, kernels=Kernels(compiled=True)),
        LLAMA_ATTENTION + 4 * SB * F,
    ),
    "grouped queries over as many ranks": (LLAMA, one(t=8), (LLAMA_ATTENTION + 6 * SB * F) / 8),
    "one head of keys is copied to two ranks": (
        LLAMA,
        one(t=16),
        (SB * (8 * H + 4 * A * D + 4 * A) + 6 * SB * F) / 16 + SB * 4 * D,
    ),
    "torch saves gathered inputs of both products": (
        LLAMA,
        one(FSDP2, t=8),
        SB * 4 * H + (LLAMA_ATTENTION - SB * 4 * H + 8 * SB * F) / 8,
    ),
    "FP8 inputs are saved in 8 bits, but not the attention's": (
        LLAMA,
        one(precision=ComputePrecision.FP8),
        LLAMA_ATTENTION - 2 * SB * H + 5 * SB * F,
    ),
    "experts: 2 rows per token, in and out, and their indices": (
        MIXTRAL,
        one(),
        MOE + ROWS * (4 * H + 6 * F + 12),
    ),
    "experts on other ranks: as many rows": (
        MIXTRAL,
        one(t=2, ep=2),
        (MOE + ROWS * (4 * H + 6 * F + 12)) / 2,
    ),
    "torchtitan's policy: input, query, value, output, two products": (
        LLAMA,
        one(FSDP2, recompute=Recompute.SELECTIVE),
        SB * (2 * (H + A * D + K * D + A * D + F + H) + 4 * A),
    ),
}


@pytest.mark.parametrize("name", SAVED)
def test_saved_per_layer(name: str) -> None:
    model, layout, expected = SAVED[name]
    cost = compute_layer_cost(model, model.layers[0], layout)
    assert cost.kept_bytes(layout.recompute) == pytest.approx(expected, rel=1e-6)


def test_the_peak_has_the_activations_of_all_layers() -> None:
    made = estimate(GPT, one())
    assert made.peak_at in ("loss", "backward, last layer")
    assert get_bytes(made, Tenant.ACTIVATIONS, "saved") == pytest.approx(GPT_L * (32 * SBH + LSE), rel=1e-6)


def test_full_recomputation_adds_one_layer() -> None:
    made = estimate(replace(GPT, vocabulary=0), one(recompute=FULL))
    assert get_bytes(made, Tenant.ACTIVATIONS, "saved") == pytest.approx(GPT_L * 2 * SBH, rel=1e-6)
    assert get_bytes(made, Tenant.ACTIVATIONS, "recomputed") == pytest.approx(30 * SBH + LSE, rel=1e-6)


ONE_F_ONE_B, GPIPE = PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.GPIPE
INTERLEAVED, ZERO_BUBBLE = PipelineSchedule.INTERLEAVED, PipelineSchedule.ZERO_BUBBLE


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m", "in_flight"),
    [
        (GPIPE, 4, 1, 12, 12),
        (GPIPE, 4, 1, 2, 2),
        (ONE_F_ONE_B, 4, 1, 12, 4),
        (ONE_F_ONE_B, 8, 1, 12, 8),
        (ONE_F_ONE_B, 8, 1, 3, 3),
        (INTERLEAVED, 4, 2, 12, 4 * (1 + 3 / (4 * 2))),
        (INTERLEAVED, 4, 6, 12, 4 * (1 + 3 / (4 * 6))),
        (INTERLEAVED, 8, 3, 16, 8 * (1 + 7 / (8 * 3))),
        (ZERO_BUBBLE, 4, 1, 12, 4),
    ],
)
def test_micro_batches_in_flight(
    schedule: PipelineSchedule, p: int, v: int, m: int, in_flight: float
) -> None:
    """GPipe keeps all; 1F1B p on the first stage; interleaved 1 + (p-1)/(p v) times as much (equation 5)."""
    degrees = make_degrees(data=1, pipeline=p, virtual=v)
    layout = make_layout(MEGATRON, 0, degrees, micro_batch=B, micro_batches=m, sequence=S, schedule=schedule)
    made = estimate(replace(GPT, vocabulary=0), layout)
    assert schedule is GPIPE or made.stage == 0
    expected = GPT_L / p * (32 * SBH + LSE) * in_flight
    assert get_bytes(made, Tenant.ACTIVATIONS, "saved") == pytest.approx(expected, rel=1e-6)


# What torch keeps: storages that are alive after the forward pass, without parameters and the result.


class _Allocations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._storages: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in tree_iter(made):
            if isinstance(each, torch.Tensor):
                self._storages.append(weakref.ref(each.untyped_storage()))
        return made

    def count_alive(self, without: list[torch.Tensor]) -> int:
        gc.collect()
        skipped = {each.untyped_storage().data_ptr() for each in without}
        alive = [storage for each in self._storages if (storage := each()) is not None]
        sizes = {storage.data_ptr(): storage.nbytes() for storage in alive}
        return sum(size for pointer, size in sizes.items() if pointer not in skipped)


class _Block(nn.Module):
    """A GPT block (GELU, layer norms) or a Llama block (SwiGLU, grouped queries)."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, width: int, *, gated: bool) -> None:
        super().__init__()
        self.head_width = hidden // heads
        keys = kv_heads * self.head_width
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key, self.value = nn.Linear(hidden, keys, bias=False), nn.Linear(hidden, keys, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate = nn.Linear(hidden, width, bias=False) if gated else None
        self.up, self.down = nn.Linear(hidden, width, bias=False), nn.Linear(width, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        y = self.norm2(x)
        if self.gate is None:
            return x + self.down(functional.gelu(self.up(y)))
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def _make_policy() -> Any:
    """Return torchtitan's policy: keep attention and every second matrix product."""
    products = {True: 0, False: 0}

    def decide(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        keeps = "scaled_dot_product" in str(operator)
        if operator is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            keeps = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(decide)


def _run_plain(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return block(x)


def _run_full(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x, use_reentrant=False)


def _run_selective(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x, use_reentrant=False, context_fn=_make_policy)


@pytest.mark.parametrize(
    ("run", "recompute"),
    [(_run_plain, Recompute.NONE), (_run_full, Recompute.FULL), (_run_selective, Recompute.SELECTIVE)],
)
@pytest.mark.parametrize(("kv_heads", "width", "gated"), [(8, 1024, False), (2, 896, True), (8, 640, True)])
@pytest.mark.parametrize("precision", [ComputePrecision.BF16, ComputePrecision.FP32])
def test_what_torch_keeps(
    run: Callable[[nn.Module, torch.Tensor], torch.Tensor],
    recompute: Recompute,
    kv_heads: int,
    width: int,
    gated: bool,
    precision: ComputePrecision,
) -> None:
    hidden, heads, batch, tokens = 256, 8, 2, 128
    dtype = torch.bfloat16 if precision is ComputePrecision.BF16 else torch.float32
    block = _Block(hidden, heads, kv_heads, width, gated=gated).to(dtype)
    x = torch.randn(batch, tokens, hidden, dtype=dtype, requires_grad=True)
    with _Allocations() as allocations:
        result = run(block, x)
    kept = allocations.count_alive(without=[result, *block.parameters()]) + x.nbytes
    layer = LayerRun(
        count=1,
        mixer=Attention(heads=heads, kv_heads=kv_heads, head_width=hidden // heads),
        feed_forward=Mlp(width=width, gated=gated),
    )
    model = Transformer(hidden=hidden, layers=(layer,), layer_norm=True)
    layout = one(FSDP2, micro_batch=batch, sequence=tokens, recompute=recompute, precision=precision)
    assert compute_layer_cost(model, layer, layout).kept_bytes(recompute) == pytest.approx(kept, rel=0.10)


@pytest.mark.parametrize(("kv_heads", "width", "gated"), [(2, 896, True), (8, 640, True)])
def test_what_torch_keeps_under_autocast(kv_heads: int, width: int, gated: bool) -> None:
    """The residual stays in fp32, and each product casts its input; casts of weights are another term."""
    hidden, heads, batch, tokens = 256, 8, 2, 128
    block = _Block(hidden, heads, kv_heads, width, gated=gated)
    x = torch.randn(batch, tokens, hidden, requires_grad=True)
    with _Allocations() as allocations, torch.autocast("cpu", dtype=torch.bfloat16):
        result = block(x)
    casts = sum(2 * each.numel() for each in block.parameters() if each.ndim == 2)
    kept = allocations.count_alive(without=[result, *block.parameters()]) + x.nbytes - casts
    layer = LayerRun(
        count=1,
        mixer=Attention(heads=heads, kv_heads=kv_heads, head_width=hidden // heads),
        feed_forward=Mlp(width=width, gated=gated),
    )
    layout = one(DDP, micro_batch=batch, sequence=tokens)
    cost = compute_layer_cost(Transformer(hidden=hidden, layers=(layer,)), layer, layout)
    assert cost.kept_bytes(Recompute.NONE) == pytest.approx(kept, rel=0.05)


def test_blocks_keep_more_without_a_norms_kernel() -> None:
    """The comparison can fail: a composite norm keeps fp32 copies."""
    norm, x = nn.RMSNorm(64).to(torch.bfloat16), torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    with _Allocations() as allocations:
        result = norm(x)
    assert allocations.count_alive(without=[result, *norm.parameters()]) >= 2 * 4 * 32 * 64


def test_layers_are_counted_once_each() -> None:
    """32 layers save 32 times what one does."""
    made = estimate(replace(LLAMA, vocabulary=0), one())
    cost = LLAMA_ATTENTION + 6 * SB * F
    assert get_bytes(made, Tenant.ACTIVATIONS, "saved") == pytest.approx(L * cost, rel=1e-6)
