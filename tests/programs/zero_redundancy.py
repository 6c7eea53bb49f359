"""Train transformer blocks with DDP and ZeroRedundancyOptimizer on gloo ranks."""

import torch
import torch.distributed as dist
from parts import Truth, make_batch, make_blocks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train on random tokens, each rank on its own."""
    dist.init_process_group("gloo")
    blocks = make_blocks()
    elements = sum(parameter.numel() for parameter in blocks.parameters())
    model = DistributedDataParallel(blocks)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-4)
    truth = Truth(dist.get_rank())
    torch.manual_seed(dist.get_rank())

    def run_step() -> torch.Tensor:
        batch = make_batch()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
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
