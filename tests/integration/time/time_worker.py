"""One rank of a small program that communicates in one of several ways, recorded.

python time_worker.py CASE RANK WORLD_SIZE STORE RUN
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import zprof

STEPS = 4
SLEEP_S = 0.02


def plain(rank: int, run: Path) -> None:
    """An asynchronous all-gather with a wait, and a synchronous all-reduce; rank 1 comes late."""
    shard, full = torch.ones(1 << 16), torch.empty(2 << 16)
    left, right = torch.ones(200, 200), torch.ones(200, 200)
    with zprof.record(run, steps=zprof.steps(skip=1, memory=0, time=STEPS)) as recording:
        for _ in range(1 + STEPS):
            if rank == 1:
                time.sleep(SLEEP_S)
            work = dist.all_gather_into_tensor(full, shard, async_op=True)
            torch.mm(left, right)
            work.wait()
            dist.all_reduce(torch.ones(1 << 14))
            recording.step()


def ddp(rank: int, run: Path) -> None:
    """DDP waits for its collectives in C++."""
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with zprof.record(run, model=model, steps=zprof.steps(skip=2, memory=0, time=STEPS)) as recording:
        for _ in range(2 + STEPS):
            if rank == 1:
                time.sleep(SLEEP_S)
            model(torch.ones(8, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.step()


CASES = {"plain": plain, "ddp": ddp}


def main() -> None:
    case, rank, world_size, store, run = sys.argv[1:]
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, int(world_size)), rank=int(rank), world_size=int(world_size)
    )
    CASES[case](int(rank), Path(run))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
