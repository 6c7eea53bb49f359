"""Train transformer blocks with FullyShardedDataParallel (FSDP1), one unit per block, on gloo ranks."""

import argparse
import functools

import torch
import torch.distributed as dist
from parts import MOMENTS, SHAPE, Truth, make_blocks
from plants import add_plant_option, iter_batches, plant_in_blocks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from walk import walk_torch

STRATEGIES = {
    "full": ShardingStrategy.FULL_SHARD,
    "grad_op": ShardingStrategy.SHARD_GRAD_OP,
    "hybrid": ShardingStrategy.HYBRID_SHARD,
    "no_shard": ShardingStrategy.NO_SHARD,
}


def main() -> None:
    """Train on random tokens, each rank on its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="full", choices=STRATEGIES)
    parser.add_argument("--use-orig-params", type=int, default=0)
    parser.add_argument("--offload", action="store_true")
    add_plant_option(parser)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    is_hybrid = options.strategy == "hybrid"
    blocks = make_blocks()
    elements = sum(parameter.numel() for parameter in blocks.parameters())
    plant_in_blocks(options.plant, dist.get_rank(), blocks)
    model = FullyShardedDataParallel(
        blocks,
        auto_wrap_policy=functools.partial(
            transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer}
        ),
        sharding_strategy=STRATEGIES[options.strategy],
        device_mesh=init_device_mesh("cpu", (dist.get_world_size() // 2, 2)) if is_hybrid else None,
        use_orig_params=bool(options.use_orig_params),
        cpu_offload=CPUOffload(offload_params=options.offload),
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    truth = Truth(dist.get_rank())
    torch.manual_seed(dist.get_rank())
    batches = iter_batches(options.plant, SHAPE)

    def run_step() -> torch.Tensor:
        batch = next(batches)
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        truth.before_update(lambda: walk_torch(model, optimizer))
        optimizer.step()
        optimizer.zero_grad()
        return loss

    truth.train(run_step)
    own = (
        elements
        if options.strategy == "no_shard"
        else elements // (2 if is_hybrid else dist.get_world_size())
    )
    truth.write(optimizer, parameters=4 * own, gradients=4 * own, optimizer_state=MOMENTS * own)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
