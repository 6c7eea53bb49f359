"""Edits through ``.data`` on a GPU, where the comparison's result is read at the end of the step."""

import pytest
import torch
from torch import nn

from zprof.reference_engine import ZeroConfig, zero

pytestmark = pytest.mark.gpu


class OneRank:
    """A group of one rank: collectives have nothing to do."""

    rank, world_size = 0, 1

    def wait(self) -> None:
        """Nothing is in flight."""

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor, unit: str) -> "OneRank":
        out.copy_(shard.clone())
        return self

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> "OneRank":
        out.copy_(full)
        return self

    def all_reduce(self, tensor: torch.Tensor, unit: str) -> "OneRank":
        return self

    def broadcast(self, tensor: torch.Tensor, unit: str) -> "OneRank":
        return self

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("stage", range(3))
def test_an_edit_through_data_is_trained(stage: int) -> None:
    config = ZeroConfig(stage=stage, dtype=torch.bfloat16, learning_rate=0.0, weight_decay=0.0)
    model, optimizer = zero(nn.Linear(64, 64, device="cuda"), config, OneRank())
    before = model.state_dict(fp32=True)
    model.module.weight.data.fill_(3.0)
    for _ in range(3):
        model(torch.ones(2, 64, device="cuda", dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    after = model.state_dict(fp32=True)
    assert bool((after["weight"] == 3.0).all())
    assert torch.equal(after["bias"], before["bias"])  # unedited weights keep their fp32 values
