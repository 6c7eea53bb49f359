"""Runs two steps of a rank, as the engine's own training loop does, and counts the second."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
        ledger.place, begun = "forward of root", ledger.time
        made = loss(rank.model)
        ledger.keep_since(begun)
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
        unit = _Unit(ledger, name)
        handles.append(module.register_forward_pre_hook(unit.enter, prepend=True))
        handles.append(module.register_forward_hook(unit.leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


class _Unit:
    """Tells the ledger when a unit runs, and that what its recomputation leaves behind is an activation."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger = ledger
        self._name = name
        self._begun = 0

    def enter(self, module: nn.Module, arguments: Any) -> None:
        """Its forward begins, or its recomputation."""
        self._begun = self._ledger.time
        self._ledger.place = f"{'recompute' if _in_backward() else 'forward'} of {self._name}"

    def leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        """It is over; in the forward, whoever gives the output its gradient begins the backward."""
        if _in_backward():
            self._ledger.keep_since(self._begun)
            self._ledger.place = f"backward of {self._name}"
            return
        self._ledger.place = "forward of root"
        for tensor in tensors_of(output):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(self._backward)

    def _backward(self, gradients: object) -> None:
        self._ledger.place = f"backward of {self._name}"
