"""Small programs drawn at random: operators, views, in-place changes, checkpoints, hidden tensors."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Plan:
    """What to run: ``steps`` of (operation, which layer or tensor), and how each step ends."""

    steps: list[list[tuple[str, int]]]
    optimizer: str
    warm: bool
    micro_batches: int
    clear: str
    keep_gradients: bool


@dataclass
class Program:
    """A plan's state: the model, and what the program holds beside it."""

    plan: Plan
    model: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    held: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        layers = [*(nn.Linear(SIDE, SIDE) for _ in range(2)), nn.BatchNorm1d(SIDE)]
        self.model = nn.ModuleList(layers)
        self.optimizer = OPTIMIZERS[self.plan.optimizer](self.model.parameters())
        self.held.append(torch.ones(SIDE, SIDE, requires_grad=True))
        if self.plan.warm:
            self.step(self.plan.steps[0])

    def run(self) -> None:
        for step in self.plan.steps:
            self.step(step)

    def step(self, operations: list[tuple[str, int]]) -> None:
        for _ in range(self.plan.micro_batches):
            pool = [self.model[0](torch.randn(SIDE, SIDE))]
            for name, which in operations:
                OPERATIONS[name](self, pool, which)
            torch.stack([tensor.float().square().mean() for tensor in pool]).sum().backward()
            pool.clear()
        if self.plan.keep_gradients:
            self.held.append([parameter.grad for parameter in self.model.parameters()])
        self.optimizer.step()
        if self.plan.clear != "never":
            self.optimizer.zero_grad(set_to_none=self.plan.clear == "none")


Pool = list[torch.Tensor]


def _apply(change: Callable[[Program, torch.Tensor, int], torch.Tensor]) -> Callable[..., None]:
    """The operation takes a tensor of the pool, and adds what it makes of it."""

    def operation(program: Program, pool: Pool, which: int) -> None:
        pool.append(change(program, pool[which % len(pool)], which))

    return operation


def _free(program: Program, pool: Pool, which: int) -> None:
    if len(pool) > 1:
        pool.pop(which % len(pool))


def _hold(program: Program, pool: Pool, which: int) -> None:
    program.held.append(pool[which % len(pool)].detach())


def _let_go(program: Program, pool: Pool, which: int) -> None:
    if len(program.held) > 1:
        program.held.pop()


def _hide(program: Program, pool: Pool, which: int) -> None:
    program.held.append(torch.zeros(100 * (which + 1)))


def _foreign(program: Program, pool: Pool, which: int) -> None:
    program.held.append(torch.from_numpy(np.zeros(SIDE)))


def _resize(program: Program, pool: Pool, which: int) -> None:
    tensor = pool[0].detach().clone()
    for size in (2 * SIDE, 4, (which + 1) * SIDE * SIDE):
        tensor.resize_(size)
    program.held.append(tensor)


def _resize_storage(program: Program, pool: Pool, which: int) -> None:
    tensor = pool[0].detach().clone()
    storage = tensor.untyped_storage()
    for size in (0, storage.nbytes() * (1 + which % 2), 0, storage.nbytes() or 64):
        storage.resize_(size)
    program.held.append(tensor)


def _set(program: Program, pool: Pool, which: int) -> None:
    tensor = torch.empty(SIDE)
    tensor.set_(pool[which % len(pool)].detach())
    program.held.append(tensor)


def _split(_: Program, x: torch.Tensor, which: int) -> torch.Tensor:
    return torch.cat(x.split(SIDE // 4), dim=0)


def _checkpointed(program: Program, x: torch.Tensor, which: int) -> torch.Tensor:
    layers = nn.Sequential(program.model[which % 2], nn.ReLU())
    return checkpoint(layers, x, use_reentrant=which % 3 == 0)


OPERATIONS: dict[str, Callable[..., None]] = {
    "linear": _apply(lambda program, x, which: program.model[which % 2](x)),
    "norm": _apply(lambda program, x, which: program.model[2](x)),
    "relu": _apply(lambda program, x, which: x.relu()),
    "view": _apply(lambda program, x, which: x.t()),
    "in_place": _apply(lambda program, x, which: (x * 2).add_(1).sigmoid_()),
    "split": _apply(_split),
    "sort": _apply(lambda program, x, which: x.sort(dim=1).values),
    "half": _apply(lambda program, x, which: x.bfloat16().float()),
    "retain": _apply(lambda program, x, which: Keep.apply(x)),
    "checkpoint": _apply(_checkpointed),
    "free": _free,
    "hold": _hold,
    "let_go": _let_go,
    "hide": _hide,
    "foreign": _foreign,
    "resize": _resize,
    "resize_storage": _resize_storage,
    "set": _set,
    "collect": lambda program, pool, which: gc.collect(0),
}

_operations = st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 5)), max_size=12)
plans = st.builds(
    Plan,
    steps=st.lists(_operations, min_size=1, max_size=3),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    warm=st.booleans(),
    micro_batches=st.integers(1, 2),
    clear=st.sampled_from(["none", "zero", "never"]),
    keep_gradients=st.booleans(),
)
