"""Train transformer blocks with DistributedDataParallel on gloo ranks."""

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from parts import MOMENTS, SHAPE, Truth, make_blocks
from plants import ACCUMULATION, add_plant_option, count_micro_batches, iter_batches, plant_in_blocks
from torch.nn.parallel import DistributedDataParallel
from walk import walk_torch


def main() -> None:
    """Train on random tokens, each rank on its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batches", type=int, default=1)
    add_plant_option(parser)
    options = parser.parse_args()
    micro_batches = count_micro_batches(options)
    dist.init_process_group("gloo")
    blocks = make_blocks()
    elements = sum(parameter.numel() for parameter in blocks.parameters())
    plant_in_blocks(options.plant, dist.get_rank(), blocks)
    model = DistributedDataParallel(blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    truth = Truth(dist.get_rank())
    torch.manual_seed(dist.get_rank())
    batches = iter_batches(options.plant, SHAPE)

    def run_step() -> torch.Tensor:
        for micro_batch in range(micro_batches):
            reduces = options.plant == ACCUMULATION or micro_batch == micro_batches - 1
            batch = next(batches)
            with nullcontext() if reduces else model.no_sync():
                loss = (model(batch) - batch).square().mean()
                loss.backward()
        truth.before_update(lambda: walk_torch(model, optimizer))
        optimizer.step()
        optimizer.zero_grad()
        return loss

    truth.train(run_step)
    truth.write(
        optimizer, parameters=4 * elements, gradients=4 * elements, optimizer_state=MOMENTS * elements
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
