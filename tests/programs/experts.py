"""Train layers of experts, one expert per gloo rank: tokens travel by all_to_all.

An expert takes the tokens that prefer it most, the same number as every other. ``--plant hot``: the last
expert takes nine of ten tokens.
"""

import argparse

import torch
import torch.distributed as dist
from step_truth import start_step
from torch import nn
from torch.distributed.nn.functional import all_to_all_single

STEPS, LAYERS, TOKENS, HIDDEN, HOT_RATIO = 16, 3, 512, 192, 0.9


class Experts(nn.Module):
    """Attention, and an expert on each of two ranks."""

    def __init__(self, group: dist.ProcessGroup, last_ratio: float) -> None:
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(HIDDEN, 2 * HIDDEN), nn.GELU(), nn.Linear(2 * HIDDEN, HIDDEN))
        self.gate = nn.Linear(HIDDEN, 1)
        self.expert = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN))
        self._group, self._first = group, TOKENS - round(last_ratio * TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.dense(tokens)
        score = self.gate(tokens).squeeze(1)
        order = score.argsort()
        sent = [self._first, TOKENS - self._first]
        # Each rank routes as many tokens to an expert as every other rank.
        received = [sent[dist.get_rank()]] * dist.get_world_size()
        inputs = self._exchange(tokens[order], sent, received)
        results = self._exchange(self.expert(inputs), received, sent)
        return tokens + torch.sigmoid(score).unsqueeze(1) * results[order.argsort()]

    def _exchange(self, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        output = rows.new_empty(sum(received), HIDDEN)
        return all_to_all_single(output, rows.contiguous(), received, sent, group=self._group)


def main() -> None:
    """Train on random tokens, and reduce the gradients of what all ranks share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plant", choices=["none", "hot"], default="none")
    is_hot = parser.parse_args().plant == "hot"
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    group = dist.new_group(list(range(dist.get_world_size())))
    model = nn.Sequential(*(Experts(group, HOT_RATIO if is_hot else 0.5) for _ in range(LAYERS)))
    shared = [each for name, each in model.named_parameters() if ".expert." not in name]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        start_step()
        batch = torch.randn(TOKENS, HIDDEN)
        (model(batch) - batch).square().mean().backward()
        for parameter in shared:
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
