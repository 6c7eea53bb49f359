"""A model with parameter groups and parameters that steps leave out: on ranks, and by torch alone."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.checkpoints import load_checkpoint, save_checkpoint

WIDTH, LAYERS, SLICES = 5, 3, 4
#: The layer whose scale is left out, by step and slice of the batch; ``LAYERS`` leaves out none.  By all
#: slices in steps 1 and 4, by one rank of two (and by two or three of four) in steps 2 and 3.
LEFT_OUT = ((0, 1, 2, 3), (1, 1, 1, 1), (2, 2, 3, 3), (0, 0, 0, 1), (0, 0, 0, 0), (3, 3, 1, 2))
STEPS = len(LEFT_OUT)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scaled: bool) -> torch.Tensor:
        return x + torch.tanh(self.linear(x * self.scale if scaled else x))


class Grouped(nn.Module):
    """Its ``never`` has no gradient at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.never = nn.Parameter(torch.rand(7))

    def forward(self, x: torch.Tensor, left_out: int) -> torch.Tensor:
        x = self.first(x)
        for index, layer in enumerate(self.layers):
            x = layer(x, index != left_out)
        return x.square().mean()


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Decayed weights, biases, and scales with numbers of their own; a layer has parameters of all three."""
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if name.endswith("weight") or name == "never"]},
        {"params": [p for name, p in named if name.endswith("bias")], "weight_decay": 0.0, "eps": 1e-6},
        {"params": [p for name, p in named if name.endswith("scale")], "lr": 3e-2, "betas": (0.8, 0.95)},
    ]


def schedules() -> list[Callable[[int], float]]:
    return [lambda step: 1.0 / (1 + step), lambda step: 1.0, lambda step: 0.9**step]


def loss_of_slice(
    model: nn.Module, step: int, index: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(10 * step + index))
    return model(x.to(dtype), LEFT_OUT[step][index])


def trained_by_torch(steps: int) -> tuple[Grouped, torch.optim.Optimizer]:
    """On the whole batch: the mean over all slices."""
    model = Grouped()
    optimizer = torch.optim.AdamW(groups_of(model), lr=1e-2, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedules())
    for step in range(steps):
        optimizer.zero_grad()
        torch.stack([loss_of_slice(model, step, index) for index in range(SLICES)]).mean().backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Train steps [first, last); each rank takes its slices of the batch as micro-batches."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    each = SLICES // ranks
    first, last = case["steps"]
    module = Grouped()
    dtypes = {
        name: getattr(torch, case["zero"][name]) for name in ("dtype", "reduce_dtype") if name in case["zero"]
    }
    settings = {**case["zero"], **dtypes, "micro_batches": each}
    config = ZeroConfig(**settings, learning_rate=1e-2, weight_decay=0.1)
    model, optimizer = zero(module, config, groups=groups_of(module))
    moved = [sum(model.comm.moved.values())]
    if case.get("load"):
        load_checkpoint(case["load"], model, optimizer)
        moved = [sum(model.comm.moved.values())]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedules(), last_epoch=first - 1)
    for step in range(first, last):
        optimizer.zero_grad()
        for index in range(rank * each, (rank + 1) * each):
            loss_of_slice(model, step, index, config.dtype).backward()
        optimizer.step()
        model.synchronize()
        scheduler.step()
        moved.append(sum(model.comm.moved.values()))
    if case.get("save"):
        save_checkpoint(case["save"], model, optimizer)
    return {
        "weights": {name: value.flatten().tolist() for name, value in model.state_dict().items()},
        "rates": [group["lr"] for group in optimizer.param_groups],
        "steps": optimizer.scalar_state()["steps"],
        "moved": [after - before for before, after in pairwise(moved)],
        "psi": model.facts.parameters + model.facts.padding_elements,
    }
