"""Train transformer blocks with DistributedDataParallel on gloo ranks."""

import argparse
import contextlib

import torch
import torch.distributed as dist
from parts import MOMENTS, Truth, make_batch, make_blocks
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train on random tokens, each rank on its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batches", type=int, default=1)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    blocks = make_blocks()
    elements = sum(parameter.numel() for parameter in blocks.parameters())
    model = DistributedDataParallel(blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    truth = Truth(dist.get_rank())
    torch.manual_seed(dist.get_rank())

    def run_step() -> torch.Tensor:
        for number in range(options.micro_batches):
            is_last = number == options.micro_batches - 1
            batch = make_batch()
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = (model(batch) - batch).square().mean()
                loss.backward()
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
