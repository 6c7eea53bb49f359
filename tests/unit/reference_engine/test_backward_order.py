"""When a unit's backward is over: not too early where leaves are handed on, nor late where graphs live on."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fake_comm import FakeComm
from pitfall_models import WIDTH, Layers
from thread_comm import Launched, ThreadComm, on_ranks
from torch import nn

from zprof.reference_engine import ZeroConfig, ZeroModel, zero


class Detached(nn.Linear):
    """Its backward needs its weight after the weight's own gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(x, self.weight.detach()), self.weight, self.bias)


def chain() -> Layers:
    return Layers(lambda _: Detached(WIDTH, WIDTH), count=6)


def data() -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))


def most_units_in_a_backward(model: ZeroModel, loss: torch.Tensor) -> int:
    counts: list[int] = []

    def count(_: Any) -> None:
        counts.append(sum(unit.full.untyped_storage().nbytes() > 0 for unit in model.units))

    hooks = [p.register_post_accumulate_grad_hook(count) for p in model.module.layers.parameters()]
    loss.backward()
    for hook in hooks:
        hook.remove()
    return max(counts)


def test_a_graph_that_somebody_keeps_holds_no_units() -> None:
    model, optimizer = zero(chain(), ZeroConfig(stage=3), FakeComm(4))
    for _ in range(2):  # the first pass learns the order
        optimizer.zero_grad()
        alone = most_units_in_a_backward(model, model(data()))
    optimizer.zero_grad()
    kept = model(data())
    assert most_units_in_a_backward(model, model(data())) == alone < len(model.units) - 2
    assert kept.grad_fn is not None


class Tower(nn.Module):
    """Its input is data: nothing says when its backward is over."""

    def __init__(self, _: int) -> None:
        super().__init__()
        self.always = nn.Linear(WIDTH, WIDTH)
        self.sometimes = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, use: bool) -> torch.Tensor:
        return self.always(data()) + x + self.sometimes(data()) if use else self.always(data()) + x


def launches(comm: ThreadComm, *, uses: bool, keeps: bool) -> list[Launched]:
    use = True
    model, optimizer = zero(Layers(Tower, call=lambda layer, x: layer(x, use)), ZeroConfig(stage=3), comm)
    kept = []
    for _ in range(3):
        optimizer.zero_grad()
        use = uses
        model(data()).backward()
        optimizer.step()
        use = True
        validation = model(data())
        kept += [validation] if keeps else []
    return list(comm.launched)


@pytest.mark.parametrize("differs", ["uses", "keeps"])
def test_ranks_launch_in_one_order_whatever_they_use_or_keep(differs: str) -> None:
    choices = {"uses": True, "keeps": False}
    first, second = on_ranks(2, lambda comm: launches(comm, **choices | {differs: comm.rank == 0}))
    assert first == second
