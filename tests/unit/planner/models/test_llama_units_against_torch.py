"""Units of Llama blocks against a block in torch: its elements, its flop, and what autograd saves."""

from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from tests.support.saved_bytes import saved_bytes
from zprof.model.job import Batch, Degrees, ElementBytes, Job, LlamaBlock, Shape
from zprof.planner.gpt_units import moments_by_unit, with_units

SAMPLES, SEQUENCE, HIDDEN, HEADS = 3, 10, 32, 4
PLAIN = LlamaBlock(kv_heads=2, head_width=8, mlp=44)
BLOCKS = {
    "grouped": PLAIN,
    "biased": replace(PLAIN, biased=True),
    "wide heads with norms": replace(PLAIN, head_width=16, head_norms=True),
    "experts": replace(PLAIN, experts=5, active_experts=2),
}


class FusedNorm(torch.autograd.Function):
    """RMS norm as one kernel: it saves its input and 1/RMS in fp32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        inverse = x.float().square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse * weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.zeros_like(x), torch.zeros_like(weight)


class GroupedAttention(torch.autograd.Function):
    """Flash attention as one kernel: grouped keys and values are read without repeating them."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        output = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        output = output.transpose(1, 2).contiguous().transpose(1, 2)  # the layout of the flash kernels
        sums = torch.zeros(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros_like(tensor) for tensor in ctx.saved_tensors[:3])


class Rotation(torch.autograd.Function):
    """Rotary positions: linear, so nothing of the input is saved."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return -x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return -gradients[0]


class TorchBlock(nn.Module):
    """A block with the operators that the planner models."""

    def __init__(self, block: LlamaBlock) -> None:
        super().__init__()
        self.block, width = block, block.head_width
        self.norms = nn.ParameterList([nn.Parameter(torch.ones(HIDDEN)) for _ in range(2)])
        self.query = nn.Linear(HIDDEN, HEADS * width, bias=block.biased)
        self.key = nn.Linear(HIDDEN, block.kv_heads * width, bias=block.biased)
        self.value = nn.Linear(HIDDEN, block.kv_heads * width, bias=block.biased)
        self.projection = nn.Linear(HEADS * width, HIDDEN, bias=False)
        if block.head_norms:
            self.head_norms = nn.ParameterList([nn.Parameter(torch.ones(width)) for _ in range(2)])
        if block.experts > 1:
            self.router = nn.Linear(HIDDEN, block.experts, bias=False)
        for name, inner, outer in (("gate", HIDDEN, block.mlp), ("up", HIDDEN, block.mlp)):
            setattr(self, name, nn.Parameter(torch.randn(block.experts, inner, outer)))
        self.down = nn.Parameter(torch.randn(block.experts, block.mlp, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = FusedNorm.apply(x, self.norms[0])
        query, key, value = (
            linear(normed).view(SAMPLES, SEQUENCE, -1, self.block.head_width)
            for linear in (self.query, self.key, self.value)
        )
        if self.block.head_norms:
            query, key = (FusedNorm.apply(x, w) for x, w in zip((query, key), self.head_norms, strict=True))
        heads = (each.transpose(1, 2) for each in (Rotation.apply(query), Rotation.apply(key), value))
        attended = GroupedAttention.apply(*heads)
        x = x + self.projection(attended.transpose(1, 2).reshape(SAMPLES, SEQUENCE, -1))
        normed = FusedNorm.apply(x, self.norms[1]).view(SAMPLES * SEQUENCE, HIDDEN)
        return x + (self.experts(normed) if self.block.experts > 1 else self.mlp(normed[None])[0]).view_as(x)

    def mlp(self, rows: torch.Tensor) -> torch.Tensor:
        """Run all experts, each on its rows: experts x rows x hidden."""
        return (functional.silu(rows @ self.gate) * (rows @ self.up)) @ self.down

    def experts(self, normed: torch.Tensor) -> torch.Tensor:
        """Send each token to its experts; every expert gets equally many rows here."""
        count, active = self.block.experts, self.block.active_experts
        probabilities = self.router(normed).float().softmax(-1)
        weights, _ = probabilities.topk(active)
        tokens = torch.arange(len(normed)).repeat(active)
        rows = normed[tokens]
        outputs = self.mlp(rows.view(count, -1, HIDDEN)).view_as(rows)
        weighted = outputs * weights.t().reshape(-1, 1).to(outputs.dtype)
        return torch.zeros_like(normed).scatter_add(0, tokens[:, None].expand_as(rows), weighted)


def plan_job(block: LlamaBlock, dtype: torch.dtype = torch.float32, mp: int = 1) -> Job:
    return with_units(
        Job(
            parameters=1,
            shape=Shape(layers=2, hidden=HIDDEN, heads=HEADS, vocabulary=40, context=16, block=block),
            batch=Batch(samples=SAMPLES, sequence=SEQUENCE),
            degrees=Degrees(mp=mp),
            element_bytes=ElementBytes(parameter=dtype.itemsize, gradient=dtype.itemsize),
        )
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_has_the_elements_and_keeps_what_autograd_saves(name: str, dtype: torch.dtype) -> None:
    unit = plan_job(BLOCKS[name], dtype).units[1]
    block = TorchBlock(BLOCKS[name]).to(dtype)
    assert unit.elements == sum(parameter.numel() for parameter in block.parameters())
    x = torch.randn(SAMPLES, SEQUENCE, HIDDEN, dtype=dtype, requires_grad=True)
    saved = saved_bytes(block, lambda: block(x))
    if BLOCKS[name].experts > 1:  # indices are kept once per reader, a few bytes per row
        assert unit.saved_bytes == pytest.approx(saved, rel=0.03)
    else:
        assert unit.saved_bytes == saved


@pytest.mark.parametrize("name", BLOCKS)
def test_the_matrices_of_a_block_take_the_flop_that_torch_counts(name: str) -> None:
    block, counter = BLOCKS[name], FlopCounterMode(display=False)
    module = TorchBlock(block).to("meta")
    with counter, torch.device("meta"):
        module(torch.randn(SAMPLES, SEQUENCE, HIDDEN))
    assert plan_job(block).units[1].forward_flop == counter.get_total_flops()


@pytest.mark.parametrize("mp", [1, 2])
@pytest.mark.parametrize("name", BLOCKS)
def test_the_backward_makes_each_gradient_once_and_leaves_nothing(name: str, mp: int) -> None:
    job = plan_job(BLOCKS[name], mp=mp)
    for unit in job.units:
        moments = moments_by_unit(job)(unit)
        assert moments is not None
        last = (moments.backward_end or moments.backward)[-1]
        assert (last.gradient_elements, last.saved_bytes) == (unit.elements, 0)
    block = moments_by_unit(job)(job.units[1])
    assert block is not None
    stream = SAMPLES * SEQUENCE * HIDDEN * 4
    assert block.backward[-1].work_bytes == stream, "the gradient of its input"
    assert [moments[-1].work_bytes for moments in (block.forward, block.checkpointed)] == [stream, stream]
