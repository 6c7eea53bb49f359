"""Train a small model of odd sizes on gloo ranks with the engine and the options that the argument names."""

import functools
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, HIDDEN, ODD = 9, 16, 128, 77
AdamW = torch.optim.AdamW
Prepared = tuple[nn.Module, torch.optim.Optimizer]


class Block(nn.Module):
    """A layer whose second size no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, ODD), nn.Linear(ODD, HIDDEN)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch + self.down(self.up(batch).relu())


def make_model() -> nn.Sequential:
    """Return the model, equal on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), Block(), nn.Linear(HIDDEN, HIDDEN))


def train_ddp(zero: bool) -> Prepared:
    model = DistributedDataParallel(make_model(), gradient_as_bucket_view=True)
    if zero:
        return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=AdamW, lr=1e-3)
    return model, AdamW(model.parameters())


def train_fsdp1(strategy: ShardingStrategy, **options: Any) -> Prepared:
    if strategy in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2):
        options["device_mesh"] = init_device_mesh("cpu", (2, dist.get_world_size() // 2))
    model = FullyShardedDataParallel(
        make_model(),
        sharding_strategy=strategy,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        **options,
    )
    return model, AdamW(model.parameters())


def train_fsdp2(hybrid: bool = False, **options: Any) -> Prepared:
    ranks = dist.get_world_size()
    shape, names = ((2, ranks // 2), ("replicate", "shard")) if hybrid else ((ranks,), ("shard",))
    options["mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = make_model()
    for block in model[:3]:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model, AdamW(model.parameters())


FULL, HYBRID = ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD
BF16 = torch.bfloat16
VARIANTS = {
    "ddp": functools.partial(train_ddp, zero=False),
    "zero1": functools.partial(train_ddp, zero=True),
    "fsdp1_full": functools.partial(train_fsdp1, FULL),
    "fsdp1_full_orig": functools.partial(train_fsdp1, FULL, use_orig_params=True, forward_prefetch=True),
    "fsdp1_grad": functools.partial(train_fsdp1, ShardingStrategy.SHARD_GRAD_OP),
    "fsdp1_none": functools.partial(train_fsdp1, ShardingStrategy.NO_SHARD),
    "fsdp1_hybrid": functools.partial(train_fsdp1, HYBRID),
    "fsdp1_hybrid_orig": functools.partial(train_fsdp1, HYBRID, use_orig_params=True),
    "fsdp1_hybrid_zero2": functools.partial(train_fsdp1, ShardingStrategy._HYBRID_SHARD_ZERO2),
    "fsdp1_mixed": functools.partial(
        train_fsdp1, FULL, mixed_precision=MixedPrecision(param_dtype=BF16, reduce_dtype=torch.float32)
    ),
    "fsdp2": train_fsdp2,
    "fsdp2_kept": functools.partial(train_fsdp2, reshard_after_forward=False),
    "fsdp2_int": functools.partial(train_fsdp2, reshard_after_forward=2),
    "fsdp2_hybrid": functools.partial(train_fsdp2, hybrid=True),
    "fsdp2_mixed": functools.partial(
        train_fsdp2, mp_policy=MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32)
    ),
    "fsdp2_offload": functools.partial(train_fsdp2, offload_policy=CPUOffloadPolicy(pin_memory=False)),
}


def main() -> None:
    """Train on random numbers, each rank on its own."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model, optimizer = VARIANTS[sys.argv[1]]()
    torch.manual_seed(dist.get_rank())
    for _ in range(STEPS):
        batch = torch.randn(BATCH, HIDDEN)
        loss = (model(batch).float() - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
