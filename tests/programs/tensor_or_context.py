"""Train with the tensors of a layer, or the tokens of each sequence, split between gloo ranks.

With context parallelism keys and values of all ranks are gathered (context), or go around a ring (ring), and
gradients are summed by hand.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from parts import BATCH, HIDDEN, STEPS, TOKENS
from step_truth import start_step
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn.functional import all_gather
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

LAYERS, HEADS = 4, 4


def main() -> None:
    """Train on random tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--split", choices=["tensor", *EXCHANGES], required=True)
    split = parser.parse_args().split
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train_tensor_parallel() if split == "tensor" else train_context_parallel(EXCHANGES[split])
    dist.destroy_process_group()


def train_tensor_parallel() -> None:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(
        *(
            nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN))
            for _ in range(LAYERS)
        )
    )
    for block in model:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    for _ in range(STEPS):
        start_step()
        batch = torch.randn(BATCH * TOKENS, HIDDEN)
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Layer(nn.Module):
    """Attention of this rank's tokens over those of all ranks, and a network of one hidden layer."""

    def __init__(self, exchange: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inputs, self.output = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.wide, self.narrow = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self._exchange = exchange

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        queries, keys_values = self.inputs(tokens).split([HIDDEN, 2 * HIDDEN], dim=-1)
        keys, values = self._exchange(keys_values.contiguous()).chunk(2, dim=-1)
        heads = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (queries, keys, values))
        attended = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        tokens = tokens + self.output(attended)
        return tokens + self.narrow(nn.functional.gelu(self.wide(tokens)))


def gather(own: torch.Tensor) -> torch.Tensor:
    """Return the keys and values of all ranks."""
    return torch.cat(all_gather(own), dim=1)


class Ring(torch.autograd.Function):
    """Sends keys and values to the next rank, and receives those of the previous one."""

    @staticmethod
    def forward(context: Any, own: torch.Tensor) -> torch.Tensor:
        return pass_on(own, 1)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return pass_on(gradient.contiguous(), -1)


def pass_on(own: torch.Tensor, by: int) -> torch.Tensor:
    rank, ranks, received = dist.get_rank(), dist.get_world_size(), torch.empty_like(own)
    sent = dist.P2POp(dist.isend, own, (rank + by) % ranks)
    for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, received, (rank - by) % ranks)]):
        work.wait()
    return received


def pass_around(own: torch.Tensor) -> torch.Tensor:
    """Return the keys and values of all ranks, which go around a ring."""
    parts = [own]
    for _ in range(dist.get_world_size() - 1):
        parts.append(Ring.apply(parts[-1]))
    return torch.cat(parts, dim=1)


def train_context_parallel(exchange: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(exchange) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        start_step()
        own = torch.randn(BATCH, TOKENS, HIDDEN)
        (model(own) - own).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


EXCHANGES = {"context": gather, "ring": pass_around}


if __name__ == "__main__":
    main()
