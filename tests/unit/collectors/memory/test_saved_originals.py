"""A custom autograd function finds its program's own parameters in ``ctx.saved_tensors``, watched or not."""

from typing import Any

import pytest
import torch
from memory_window import record
from torch import nn

from zprof.collectors.memory.collector import MemoryCollector
from zprof.collectors.schedule import MemoryMode


class Kind(nn.Parameter):
    """As libraries for quantized weights have one."""


class Fused(torch.autograd.Function):
    """Adds to a gradient that the program keeps on the parameter itself, as fused kernels do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, None, weight, table)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, nothing, weight, table = ctx.saved_tensors
        assert nothing is None
        assert table.label == "table"
        weight.main_grad += gradient.t() @ x
        return gradient @ weight, None, None


def model_of(kind: type[nn.Parameter]) -> nn.Linear:
    model: Any = nn.Linear(8, 8, bias=False)
    model.weight = kind(torch.ones(8, 8))
    model.weight.main_grad = torch.zeros(8, 8)
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", list(MemoryMode))
@pytest.mark.parametrize("kind", [nn.Parameter, Kind])
def test_what_is_kept_on_a_parameter_is_found(mode: MemoryMode, kind: type[nn.Parameter]) -> None:
    model = model_of(kind)
    table: Any = torch.ones(3)
    table.label = "table"
    x = torch.randn(4, 8)

    def body() -> None:
        Fused.apply((x * 2).requires_grad_(), model.weight, table).sum().backward()

    window = record(body, model, collector=MemoryCollector(model, None, mode))
    assert [gap.what for gap in window.gaps if gap.what.startswith("memory of")] == []
    assert torch.equal(model.weight.main_grad, torch.ones(4, 8).t() @ (x * 2))


def test_the_programs_own_hooks_decide_what_a_function_gets() -> None:
    model, kept = model_of(nn.Parameter), []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(weight)
            return weight * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            kept.extend(ctx.saved_tensors)
            return gradient

    def body() -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor + 1, lambda tensor: tensor):
            loss = Keeps.apply(model.weight).sum()
        loss.backward()

    record(body, model)
    assert torch.equal(kept[0], torch.full((8, 8), 2.0))
