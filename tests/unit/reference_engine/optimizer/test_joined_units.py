"""Units that one call of the CUDA kernel updates: how many launches a step has, and torch's weights."""

from typing import Any

import pytest
import torch
from fake_comm import FakeComm
from torch import nn

from tests.support.adamw_kernel.shim import ShimRuntime
from zprof.reference_engine import ZeroConfig, engine, zero
from zprof.reference_engine.optimizer.cuda import CudaAdamW
from zprof.reference_engine.optimizer.zero_optimizer import BATCH_ELEMENTS

LAYERS = 20


class Layers(nn.Module):
    """Many small layers, of which a call leaves one out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, left_out: int | None) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            if index != left_out:
                x = x + torch.tanh(layer(x))
        return x.square().mean()


def biases_apart(model: nn.Module) -> list[dict[str, Any]]:
    weights = [layer.weight for layer in model.layers]
    biases = [layer.bias for layer in model.layers]
    return [{"params": weights}, {"params": biases, "lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.0}]


@pytest.fixture
def runtime(shim_library, monkeypatch) -> ShimRuntime:
    """The engine's GPU from now on."""
    runtime = ShimRuntime(shim_library, threads=4, resident=3)
    update = CudaAdamW(torch.device("cpu"), runtime)
    monkeypatch.setattr(engine, "choose_update", lambda *_: update)
    return runtime


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, left_out: int | None) -> None:
    optimizer.zero_grad()
    model(torch.randn(2, 3, generator=torch.Generator().manual_seed(step)), left_out).backward()
    optimizer.step()


@pytest.mark.parametrize(("stage", "clip_norm"), [(0, 0.05), (1, None), (2, 0.05), (3, None)])
def test_weights_are_those_of_torch_with_groups_and_counts_of_their_own(runtime, stage, clip_norm):
    reference, module = Layers(), Layers()
    expected = torch.optim.AdamW(biases_apart(reference), lr=1e-2, weight_decay=0.1)
    config = ZeroConfig(stage=stage, learning_rate=1e-2, weight_decay=0.1, clip_norm=clip_norm)
    model, optimizer = zero(module, config, FakeComm(1), groups=biases_apart(module))

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(reference.parameters(), clip_norm)

    if clip_norm is not None:
        expected.register_step_pre_hook(clip)
    for step, left_out in enumerate((None, 7, 3, 7, None, None)):
        for own in (expected, optimizer):
            own.param_groups[0]["lr"] = 1e-2 * 0.5**step
        train_step(reference, expected, step, left_out)
        train_step(model, optimizer, step, left_out)
    found = model.state_dict()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
    steps = optimizer.scalar_state()["steps"]
    assert {name.split(".")[1]: count for name, count in steps.items()} == {"3": 5, "7": 4}


class Sizes(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1, size, bias=False) for size in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(layer(x).mean() for layer in self.layers)


@pytest.mark.parametrize("stage", [1, 3])
def test_units_are_joined_until_their_gathers_are_worth_a_launch(runtime, stage):
    half, whole = BATCH_ELEMENTS // 2, BATCH_ELEMENTS
    comm = FakeComm(1)
    events: list[str] = []
    launch, gather = runtime.launch, comm.all_gather
    runtime.launch = lambda kernel, *rest: (events.append("update"), launch(kernel, *rest))  # type: ignore[method-assign]
    comm.all_gather = lambda *rest: (events.append(rest[-1]), gather(*rest))[1]  # type: ignore[method-assign]
    config = ZeroConfig(stage=stage, alignment=1)
    model, optimizer = zero(Sizes([1, half, half, 3, whole, 4, 5]), config, comm)
    model(torch.ones(1, 1)).backward()
    events.clear()
    optimizer.step()
    gathers = [f"layers.{index}" for index in range(7)]
    joined = ["update", *gathers[:3], "update", *gathers[3:5], "update", *gathers[5:]]
    assert events == (joined if stage == 1 else ["update"])
