"""Small programs drawn at random: operators, views, in-place changes, checkpoints, hidden tensors."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

SIDE = 16
SGD, AdamW = torch.optim.SGD, torch.optim.AdamW
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": partial(SGD, lr=0.01),
    "momentum": partial(SGD, lr=0.01, momentum=0.9),
    "foreach": partial(AdamW, foreach=True),
    "single": partial(AdamW, foreach=False),
    "fused": partial(AdamW, fused=True),
}


class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.kept = x * 3
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.kept


class Program:
    """Runs a plan: steps of (operation, number). ``held`` is what it keeps beside the model."""

    def __init__(self, plan: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.plan = plan
        self.model = nn.ModuleList([nn.Linear(SIDE, SIDE), nn.Linear(SIDE, SIDE), nn.BatchNorm1d(SIDE)])
        self.optimizer = OPTIMIZERS[plan["optimizer"]](self.model.parameters())
        self.held: list[Any] = [torch.ones(SIDE, SIDE, requires_grad=True)]
        self.pool: list[torch.Tensor] = []
        if plan["warm"]:
            self.step(plan["steps"][0])

    def run(self) -> None:
        for step in self.plan["steps"]:
            self.step(step)

    def step(self, operations: list[tuple[str, int]]) -> None:
        for _ in range(self.plan["micro_batches"]):
            self.pool = [self.model[0](torch.randn(SIDE, SIDE))]
            for name, number in operations:
                made = OPERATIONS[name](self, self.pool[number % len(self.pool)], number)
                self.pool += [made] if made is not None else []
            torch.stack([tensor.float().square().mean() for tensor in self.pool]).sum().backward()
            self.pool.clear()
        if self.plan["keep_gradients"]:
            self.held.append([parameter.grad for parameter in self.model.parameters()])
        self.optimizer.step()
        if self.plan["clear"] != "never":
            self.optimizer.zero_grad(set_to_none=self.plan["clear"] == "none")


def _free(program: Program, x: torch.Tensor, number: int) -> None:
    if len(program.pool) > 1:
        program.pool.pop(number % len(program.pool))


def _resize(program: Program, x: torch.Tensor, number: int) -> None:
    tensor = x.detach().clone()
    for size in (2 * SIDE, 4, (number + 1) * SIDE * SIDE):
        tensor.resize_(size)
    program.held.append(tensor)


def _resize_storage(program: Program, x: torch.Tensor, number: int) -> None:
    tensor = x.detach().clone()
    storage = tensor.untyped_storage()
    for size in (0, storage.nbytes() * (1 + number % 2), 0, storage.nbytes() or 64):
        storage.resize_(size)
    program.held.append(tensor)


def _collect(program: Program, x: torch.Tensor, number: int) -> None:
    gc.collect(0)


def _checkpointed(program: Program, x: torch.Tensor, number: int) -> torch.Tensor:
    layers = nn.Sequential(program.model[number % 2], nn.ReLU())
    return checkpoint(layers, x, use_reentrant=number % 3 == 0)


#: Each gets the program, a tensor of its pool, and a number; what it returns is added to the pool.
OPERATIONS: dict[str, Callable[[Program, torch.Tensor, int], torch.Tensor | None]] = {
    "linear": lambda program, x, number: program.model[number % 2](x),
    "norm": lambda program, x, number: program.model[2](x),
    "view": lambda program, x, number: x.t(),
    "in_place": lambda program, x, number: (x * 2).add_(1).sigmoid_(),
    "split": lambda program, x, number: torch.cat(x.split(SIDE // 4), dim=0),
    "sort": lambda program, x, number: x.sort(dim=1).values,
    "half": lambda program, x, number: x.bfloat16().float(),
    "retain": lambda program, x, number: Keep.apply(x),
    "checkpoint": _checkpointed,
    "free": _free,
    "hold": lambda program, x, number: program.held.append(x.detach()),
    "let_go": lambda program, x, number: program.held.__delitem__(slice(1, None)),
    "hide": lambda program, x, number: program.held.append(torch.zeros(100 * (number + 1))),
    "foreign": lambda program, x, number: program.held.append(torch.from_numpy(np.zeros(SIDE))),
    "resize": _resize,
    "resize_storage": _resize_storage,
    "set": lambda program, x, number: program.held.append(torch.empty(SIDE).set_(x.detach())),
    "collect": _collect,
}
PLANS = st.fixed_dictionaries(
    {
        "steps": st.lists(
            st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 5)), max_size=12),
            min_size=1,
            max_size=3,
        ),
        "optimizer": st.sampled_from(sorted(OPTIMIZERS)),
        "warm": st.booleans(),
        "micro_batches": st.integers(1, 2),
        "clear": st.sampled_from(["none", "zero", "never"]),
        "keep_gradients": st.booleans(),
    }
)
