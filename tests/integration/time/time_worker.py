"""One rank of two small programs, recorded: ``time_worker.py FOLDER``."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import zprof

STEPS = 4
SLEEP_S = 0.02


def plain(run: Path) -> None:
    """An asynchronous all-gather with a wait, and a synchronous all-reduce; rank 1 comes late."""
    shard, full = torch.ones(1 << 16), torch.empty(2 << 16)
    left, right = torch.ones(200, 200), torch.ones(200, 200)
    with zprof.record(run, steps=zprof.steps(skip=1, memory=0, time=STEPS)) as recording:
        for _ in range(1 + STEPS):
            time.sleep(SLEEP_S * dist.get_rank())
            work = dist.all_gather_into_tensor(full, shard, async_op=True)
            torch.mm(left, right)
            work.wait()
            dist.all_reduce(torch.ones(1 << 14))
            recording.step()


def ddp(run: Path) -> None:
    """DDP waits for its collectives in C++."""
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with zprof.record(run, model=model, steps=zprof.steps(skip=2, memory=0, time=STEPS)) as recording:
        for _ in range(2 + STEPS):
            time.sleep(SLEEP_S * dist.get_rank())
            model(torch.ones(8, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for program in (plain, ddp):
        program(Path(sys.argv[1]) / f"{program.__name__}.zprof")
        dist.barrier()
    dist.destroy_process_group()
