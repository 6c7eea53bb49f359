"""The random state that a checkpointed block keeps is an activation, not unknown."""

import torch
from memory_window import record
from torch import nn
from torch.utils.checkpoint import checkpoint

from zprof.analysis.memory.roles import tenant_name
from zprof.model.tenants import Tenant


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def test_the_states_of_all_blocks_are_activations_when_the_backward_begins() -> None:
    model, original = Checkpointed(), torch.get_rng_state
    size = original().untyped_storage().nbytes()
    window = record(lambda: model(torch.randn(4, 16)).sum().backward(), model)
    lives = window.lives
    begins = next(time_ns for time_ns, phase in lives.timeline.phases if phase == "backward")
    parts = lives.segments
    alive = (parts.begin_ns <= begins) & (parts.end_ns > begins) & (parts.bytes == size)
    assert (parts.sub[alive] == "retained").sum() == 3
    assert "untagged" not in {tenant_name(code) for code in parts.tenant[alive]}
    assert lives.peak().tenants[Tenant.ACTIVATIONS] >= 3 * size
    assert torch.get_rng_state is original
