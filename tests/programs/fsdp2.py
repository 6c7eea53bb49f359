"""Train transformer blocks with fully_shard (FSDP2), one unit per block, on gloo ranks."""

import argparse

import torch
import torch.distributed as dist
from parts import MOMENTS, SHAPE, Truth, count_shards, make_blocks
from plants import ACCUMULATION, add_plant_option, count_micro_batches, iter_batches, plant_in_blocks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from walk import walk_torch

RESHARD = {"true": True, "false": False}


def main() -> None:
    """Train on random tokens, each rank on its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", default="flat", choices=["flat", "hsdp"])
    parser.add_argument("--reshard", default="true", help="true, false or a number of ranks")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--micro-batches", type=int, default=1)
    add_plant_option(parser)
    options = parser.parse_args()
    micro_batches = count_micro_batches(options)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    shape = (ranks,) if options.mesh == "flat" else (ranks // 2, 2)
    names = ("shard",) if options.mesh == "flat" else ("replica", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    reshard = RESHARD[options.reshard] if options.reshard in RESHARD else int(options.reshard)
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = make_blocks()
    plant_in_blocks(options.plant, dist.get_rank(), model)
    # FSDP2 shards the first dimension of each parameter.
    rows = [(parameter.shape[0], parameter.numel() // parameter.shape[0]) for parameter in model.parameters()]
    for unit in (*model, model):
        fully_shard(
            unit,
            mesh=mesh,
            reshard_after_forward=reshard,
            mp_policy=half if options.mixed else MixedPrecisionPolicy(),
            offload_policy=CPUOffloadPolicy(pin_memory=False) if options.offload else OffloadPolicy(),
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    truth = Truth(dist.get_rank())
    torch.manual_seed(dist.get_rank())
    batches = iter_batches(options.plant, SHAPE)

    def run_step() -> torch.Tensor:
        for micro_batch in range(micro_batches):
            reduces = options.plant == ACCUMULATION or micro_batch == micro_batches - 1
            model.set_requires_gradient_sync(reduces)
            batch = next(batches)
            loss = (model(batch).float() - batch).square().mean()
            loss.backward()
        truth.before_update(lambda: walk_torch(model, optimizer))
        optimizer.step()
        optimizer.zero_grad()
        return loss

    truth.train(run_step)
    own = sum(count_shards([length], shape[-1]) * width for length, width in rows)
    truth.write(optimizer, parameters=4 * own, gradients=4 * own, optimizer_state=MOMENTS * own)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
