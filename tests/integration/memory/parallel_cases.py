"""What two ranks may do beside plain DDP and FSDP2: tensor parallelism, accumulation, compiled code."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from counted_backend import CountedBackend
from memory_cases import Case, plain
from memory_models import WIDTH, Transformer, token_loss
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES = 2


class FeedForward(nn.Module):
    """Two layers that are split by columns, then by rows; each rank holds half of both."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


def tensor_parallel(rank: int, world_size: int) -> Case:
    mesh = init_device_mesh("cpu", (world_size,))
    model = nn.Sequential(*(FeedForward() for _ in range(3)))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    def loss(model: nn.Module, seed: int) -> torch.Tensor:
        x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(seed))
        return model(x).square().mean()

    return plain(model, loss)  # the same batch on all ranks


def sharded(rank: int, world_size: int, **options: Any) -> Transformer:
    mesh = init_device_mesh("cpu", (world_size,))
    model = Transformer()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def fsdp2(rank: int, world_size: int, **options: Any) -> Case:
    return plain(sharded(rank, world_size, **options), token_loss, rank)


def fsdp2_accumulation(rank: int, world_size: int) -> Case:
    """Gradients are reduced after the last micro-batch only; until then they are whole."""
    model = sharded(rank, world_size)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(number: int) -> None:
        for micro in range(MICRO_BATCHES):
            model.set_requires_gradient_sync(micro == MICRO_BATCHES - 1)
            token_loss(model, 1000 * number + 10 * micro + rank).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, optimizer, step)


def fsdp2_compiled(rank: int, world_size: int) -> Case:
    """Blocks are compiled, and what shards them is not."""
    torch._dynamo.reset()
    model, counted = Transformer(), CountedBackend("aot_eager")
    for block in model.blocks:
        block.compile(backend=counted)
    mesh = init_device_mesh("cpu", (world_size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    case = plain(model, token_loss, rank)
    case.proof, case.close = counted.proof, torch._dynamo.reset
    return case


def ddp(rank: int, world_size: int, **options: Any) -> Case:
    return plain(DistributedDataParallel(Transformer(), **options), token_loss, rank)


def ddp_accumulation(rank: int, world_size: int) -> Case:
    model = DistributedDataParallel(Transformer())
    optimizer = torch.optim.AdamW(model.parameters())

    def step(number: int) -> None:
        for micro in range(MICRO_BATCHES):
            last = micro == MICRO_BATCHES - 1
            with nullcontext() if last else model.no_sync():
                token_loss(model, 1000 * number + 10 * micro + rank).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, optimizer, step)


def ddp_compiled(rank: int, world_size: int) -> Case:
    torch._dynamo.reset()
    counted = CountedBackend("aot_eager")
    case = plain(torch.compile(DistributedDataParallel(Transformer()), backend=counted), token_loss, rank)
    case.proof, case.close = counted.proof, torch._dynamo.reset
    return case


def redundancy_free(rank: int, world_size: int) -> Case:
    """torch's own ZeRO stage 1 on top of DDP."""
    model = DistributedDataParallel(Transformer())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    return plain(model, token_loss, rank, optimizer)


PARALLEL_CASES: dict[str, Callable[[int, int], Case]] = {
    "tensor_parallel": tensor_parallel,
    "fsdp2_kept": partial(fsdp2, reshard_after_forward=False),
    "fsdp2_accumulation": fsdp2_accumulation,
    "fsdp2_offload": partial(fsdp2, offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "fsdp2_compiled": fsdp2_compiled,
    "ddp_static": partial(ddp, static_graph=True),
    "ddp_unused": partial(ddp, find_unused_parameters=True),
    "ddp_accumulation": ddp_accumulation,
    "ddp_compiled": ddp_compiled,
    "redundancy_free": redundancy_free,
}
