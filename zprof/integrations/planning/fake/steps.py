"""Runs two steps of a rank, as the engine's own training loop does, and counts the second."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from zprof.integrations.planning.fake.engine import Rank
from zprof.integrations.planning.fake.ledger import Ledger, Peak, tensors_of
from zprof.integrations.planning.fake.owners import Owners
from zprof.integrations.planning.fake.tap import tapped
from zprof.model.tenants import Tenant

#: Pass 1 tells the engine the order of its units, pass 2 is as all that follow.
STEPS = 2
Loss = Callable[[nn.Module], torch.Tensor]


def counted_step(
    make: Callable[[], Rank], loss: Loss, *, micro_batches: int
) -> tuple[Peak, Mapping[Tenant, int]]:
    """The peak of a step after the first, and whose bytes were live then.

    ``loss`` runs the forward on a new micro-batch.
    """
    ledger = Ledger()
    with tapped(ledger):
        rank = make()
        owners = Owners(ledger, rank)
        with _places(ledger, rank):
            for _ in range(STEPS):
                owners.at_boundary()
                ledger.begin()
                _step(rank, loss, micro_batches, ledger, owners)
        peak = ledger.peak
        return peak, ledger.tenants_at(peak.time)


def _step(rank: Rank, loss: Loss, micro_batches: int, ledger: Ledger, owners: Owners) -> None:
    ledger.place = "zero_grad"
    rank.optimizer.zero_grad()
    losses = []
    for _ in range(micro_batches):
        ledger.place = "forward of root"
        made = loss(rank.model)
        ledger.place = "backward of root"
        made.backward()  # type: ignore[no-untyped-call]
        losses.append(made.detach())
    ledger.place = "optimizer"
    owners.before_optimizer()
    rank.optimizer.step()
    torch.stack(losses).mean()


@contextmanager
def _places(ledger: Ledger, rank: Rank) -> Iterator[None]:
    """Within, the ledger knows the phase and the unit."""
    handles = []
    for name, module in rank.units.items():
        handles.append(module.register_forward_pre_hook(partial(_enter, ledger, name), prepend=True))
        handles.append(module.register_forward_hook(partial(_leave, ledger, name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _enter(ledger: Ledger, name: str, module: nn.Module, arguments: Any) -> None:
    ledger.place = f"recompute of {name}" if _in_backward() else f"forward of {name}"


def _leave(ledger: Ledger, name: str, module: nn.Module, arguments: Any, output: Any) -> None:
    if _in_backward():
        ledger.place = f"backward of {name}"
        return
    ledger.place = "forward of root"
    for tensor in tensors_of(output):
        if tensor.grad_fn is not None:
            tensor.grad_fn.register_prehook(partial(_backward, ledger, name))


def _backward(ledger: Ledger, name: str, gradients: object) -> None:
    ledger.place = f"backward of {name}"
