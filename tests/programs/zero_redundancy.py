"""Train transformer blocks with DDP and ZeroRedundancyOptimizer on gloo ranks."""

import argparse

import torch
import torch.distributed as dist
from parts import SHAPE, Truth, make_blocks
from plants import add_plant_option, iter_batches, plant_in_blocks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from walk import walk_torch


def main() -> None:
    """Train on random tokens, each rank on its own."""
    parser = argparse.ArgumentParser()
    add_plant_option(parser)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    blocks = make_blocks()
    elements = sum(parameter.numel() for parameter in blocks.parameters())
    plant_in_blocks(options.plant, dist.get_rank(), blocks)
    model = DistributedDataParallel(blocks)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-4)
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
    truth.write(
        optimizer, parameters=4 * elements, gradients=4 * elements
    )  # the state is dealt out by whole parameters
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
