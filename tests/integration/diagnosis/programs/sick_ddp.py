"""A data-parallel network on gloo, with a known fault, unaware of profilers.  Arguments: fault, steps.

Faults: none, straggler_rank, rotating_straggler, data_loader, accumulation_syncs.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH, LAYERS, BATCH = 768, 6, 64
LATE_S, LOADING_S = 0.250, 0.150
MICRO_BATCHES = 4


class Samples(Dataset):
    def __init__(self, count: int, loading_s: float) -> None:
        self.count, self.loading_s = count, loading_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.loading_s)
        generator = torch.Generator().manual_seed(index * 100 + dist.get_rank())
        return torch.randn(BATCH, WIDTH, generator=generator)


def late(fault: str, step: int) -> bool:
    rank = dist.get_rank()
    turn = step % dist.get_world_size() == rank
    return (fault == "straggler_rank" and rank == 1) or (fault == "rotating_straggler" and turn)


def main() -> None:
    fault, steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    micro_batches = MICRO_BATCHES if fault == "accumulation_syncs" else 1
    samples = Samples(steps * micro_batches, LOADING_S if fault == "data_loader" else 0.0)
    batches = iter(DataLoader(samples, batch_size=None))
    for step in range(steps):
        for _ in range(micro_batches):
            batch = next(batches)
            if late(fault, step):
                time.sleep(LATE_S)
            model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
