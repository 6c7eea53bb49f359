"""Activations: the bytes that autograd saves, wherever a hook or a function of the program keeps them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from memory_window import Window, record, small_model
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from zprof.analysis.memory.roles import tenant_name
from zprof.collectors.record.memory.collector import MemoryCollector
from zprof.collectors.record.schedule import MemoryMode
from zprof.model.tenants import Tenant

modes = pytest.mark.parametrize("mode", list(MemoryMode))


def saved_bytes(model: nn.Module, x: torch.Tensor) -> int:
    """Return the bytes of the storages that autograd keeps for the backward, without the parameters' own."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage
        return tensor.detach()

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(x).square().mean()
        assert loss.requires_grad
    return sum(storage.nbytes() for key, storage in storages.items() if key not in own)


def test_activations_are_what_autograd_saved() -> None:
    model, x = small_model(), torch.randn(512, 64)
    expected = saved_bytes(model, x)
    window = record(lambda: model(x).square().mean().backward(), model)
    assert expected <= window.lives.peak().tenants[Tenant.ACTIVATIONS] <= expected + 64


def owners_at_the_backward(window: Window, offset_ns: int = 0) -> list[tuple[int, str, str]]:
    """Return bytes, tenant and sub of what lives when the backward begins."""
    segments, timeline = window.lives.segments, window.lives.timeline
    begin_ns = next(time_ns for time_ns, phase in timeline.phases if phase == "backward") + offset_ns
    live = (segments.begin_ns <= begin_ns) & (segments.end_ns > begin_ns)
    rows = zip(segments.bytes[live], segments.tenant[live], segments.sub[live], strict=True)
    return [(int(size), tenant_name(int(code)), str(sub)) for size, code, sub in rows]


class Box:
    """Keeps a tensor where nobody looks for one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def into_a_box(tensor: torch.Tensor) -> Box:
    return Box(tensor.detach().clone())


def into_a_chunk(tensor: torch.Tensor) -> Box:
    place = torch.empty(3 * tensor.numel())[: tensor.numel()].view_as(tensor)
    place.copy_(tensor)
    return Box(place)


@pytest.mark.parametrize(
    ("pack", "factor"),
    [(into_a_box, 1), (into_a_chunk, 3), (torch.Tensor.detach, 1)],
    ids=["box", "chunk", "tensor"],
)
def test_what_a_pack_hook_keeps_is_activations(pack: Callable[[torch.Tensor], Any], factor: int) -> None:
    block = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 96))

    def body() -> None:
        x = torch.randn(40, 64).exp()
        with saved_tensors_hooks(pack, lambda packed: getattr(packed, "tensor", packed)):
            y = checkpoint(block, x, use_reentrant=False)
        del x
        y.sum().backward()

    window = record(body, block)
    assert not window.gaps
    assert (factor * 40 * 64 * 4, "activations", "saved") in owners_at_the_backward(window, -1)
    assert "recomputed" in set(window.lives.segments.sub)


class Checkpointed(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def test_the_random_states_of_checkpointed_blocks_are_activations() -> None:
    model, original = Checkpointed(*(nn.Linear(16, 16) for _ in range(3))), torch.get_rng_state
    size = original().untyped_storage().nbytes()
    window = record(lambda: model(torch.randn(4, 16)).sum().backward(), model)
    assert owners_at_the_backward(window).count((size, "activations", "retained")) == 3
    assert torch.get_rng_state is original


class Kind(nn.Parameter):
    """As libraries for quantized weights have one."""


class Fused(torch.autograd.Function):
    """Adds to a gradient that the program keeps on the parameter itself, as fused kernels do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, None, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, nothing, weight = ctx.saved_tensors
        assert nothing is None
        weight.main_grad += gradient.t() @ x
        return gradient @ weight, None


@modes
@pytest.mark.parametrize("kind", [nn.Parameter, Kind])
def test_a_function_finds_the_programs_own_parameter(mode: MemoryMode, kind: type[nn.Parameter]) -> None:
    model: Any = nn.Linear(8, 8, bias=False)
    model.weight = kind(torch.ones(8, 8))
    model.weight.main_grad = torch.zeros(8, 8)
    x = torch.randn(4, 8)

    def body() -> None:
        Fused.apply((x * 2).requires_grad_(), model.weight).sum().backward()

    record(body, model, collector=MemoryCollector(model, None, mode))
    assert torch.equal(model.weight.main_grad, torch.ones(4, 8).t() @ (x * 2))
