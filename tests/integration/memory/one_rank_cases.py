"""What one process may do: compile, recompute, step in many ways, offload, keep tensors of its own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from counted_backend import CountedBackend
from memory_cases import Case, plain, unhook
from memory_models import Transformer, mlp, token_loss, vector_loss
from torch import nn
from torch.utils.checkpoint import checkpoint


def compiled(rank: int, world_size: int, *, backend: str, make: Callable[[], nn.Module], loss: Any) -> Case:
    torch._dynamo.reset()
    counted = CountedBackend(backend)
    case = plain(torch.compile(make(), backend=counted), loss)
    case.proof = counted.proof
    case.close = torch._dynamo.reset
    return case


class Recomputed(nn.Module):
    """Each layer under its own checkpoint."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.layers, self.reentrant = mlp(), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


class Keep(torch.autograd.Function):
    """Keeps its intermediate for itself, where autograd does not look."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.kept = x.tanh()
        return ctx.kept * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2 * (1 - ctx.kept.square())


class Retaining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = Keep.apply(layer(x))
        return x


def of_optimizer(rank: int, world_size: int, *, make: Callable[[Any], torch.optim.Optimizer]) -> Case:
    model = mlp()
    return plain(model, vector_loss, optimizer=make(model.parameters()))


def autocast(rank: int, world_size: int) -> Case:
    def loss(model: nn.Module, seed: int) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return token_loss(model, seed)

    return plain(Transformer(), loss)


def save_on_cpu(rank: int, world_size: int) -> Case:
    def loss(model: nn.Module, seed: int) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return token_loss(model, seed)

    return plain(Transformer(), loss)


def step_in_backward(rank: int, world_size: int) -> Case:
    """Each parameter has its own optimizer, which steps and drops the gradient as soon as it is there."""
    model = Transformer()
    optimizers = {parameter: torch.optim.AdamW([parameter]) for parameter in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    case = Case(model, list(optimizers.values()), lambda number: token_loss(model, number).backward())
    case.close = lambda: unhook(model)
    return case


def averaged_weights(rank: int, world_size: int) -> Case:
    """An average of the weights, made before the window and updated in place: no tenant of the six."""
    case = plain(mlp(), vector_loss)
    average = [parameter.detach().clone() for parameter in case.model.parameters()]
    step = case.step

    def step_and_average(number: int) -> None:
        step(number)
        with torch.no_grad():
            for mean, parameter in zip(average, case.model.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)

    case.step = step_and_average
    return case


def accumulation(rank: int, world_size: int) -> Case:
    """Three backward passes to a step; gradients stay allocated and are zeroed."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(number: int) -> None:
        for micro in range(3):
            vector_loss(model, 10 * number + micro).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return Case(model, optimizer, step)


def convolution(rank: int, world_size: int) -> Case:
    """Buffers (batch norm), and scratch that operators allocate inside."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.Conv2d(32, 64, 3, stride=2),
        nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip

    def loss(model: nn.Module, seed: int) -> torch.Tensor:
        images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
        return model(images).square().mean()

    return plain(model, loss)


def low_rank(rank: int, world_size: int) -> Case:
    """Frozen weights, of which only small additions are trained."""
    model = Transformer().requires_grad_(False)
    for block in model.blocks:
        block.up = nn.Sequential(block.up, nn.Linear(4 * 256, 8), nn.Linear(8, 4 * 256))
    return plain(model, token_loss)


Adam, AdamW, SGD = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam_foreach": partial(Adam, foreach=True),
    "adam_single": partial(Adam, foreach=False),
    "adam_fused": partial(AdamW, fused=True),
    "sgd_momentum": partial(SGD, lr=0.01, momentum=0.9),
}

ONE_RANK_CASES: dict[str, Callable[[int, int], Case]] = {
    "compiled": partial(compiled, backend="aot_eager", make=Transformer, loss=token_loss),
    "compiled_inductor": partial(compiled, backend="inductor", make=mlp, loss=vector_loss),
    "reentrant_checkpointing": lambda *_: plain(Recomputed(reentrant=True), vector_loss),
    "other_checkpointing": lambda *_: plain(Recomputed(reentrant=False), vector_loss),
    "retaining": lambda *_: plain(Retaining(), vector_loss),
    **{name: partial(of_optimizer, make=make) for name, make in OPTIMIZERS.items()},
    "autocast": autocast,
    "save_on_cpu": save_on_cpu,
    "step_in_backward": step_in_backward,
    "averaged_weights": averaged_weights,
    "accumulation": accumulation,
    "convolution": convolution,
    "low_rank": low_rank,
}
