"""Train with the tensors of a layer (tensor), or the tokens of a batch (context), split between gloo ranks.

With context parallelism the root scatters the tokens of each batch, and the gradients are summed by hand.
"""

import argparse

import torch
import torch.distributed as dist
from parts import BATCH, HIDDEN, STEPS, TOKENS, make_blocks
from step_truth import start_step
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

LAYERS = 4


def main() -> None:
    """Train on random tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--split", choices=["tensor", "context"], required=True)
    split = parser.parse_args().split
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train_tensor_parallel() if split == "tensor" else train_context_parallel()
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


def train_context_parallel() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = make_blocks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        start_step()
        own = torch.empty(BATCH, TOKENS, HIDDEN)
        parts = [torch.randn(BATCH, TOKENS, HIDDEN) for _ in range(ranks)] if rank == 0 else None
        dist.scatter(own, parts, src=0)
        (model(own) - own).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
