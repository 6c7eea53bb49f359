"""Two ranks train over gloo, and rank 1 ends in a way after six steps: ending_ranks.py WAY [PORT].

With a port the ranks are spawned, without one a launcher has started them.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import multiprocessing, nn

STEPS, STEP = 14, 5


def end(way: str, rank: int) -> None:
    if way == "sizes":
        dist.all_reduce(torch.ones(10 if rank == 0 else 100_000))
    elif way == "skipped" and rank == 0:
        dist.all_reduce(torch.ones(1))
    elif rank == 0 or way == "healthy":
        return
    elif way == "exit":
        sys.exit(3)
    elif way == "os_exit":
        os._exit(3)
    elif way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "abort":
        os.abort()
    elif way == "error":
        raise ValueError("no such batch")
    elif way == "full":
        with open("/dev/full", "w") as file:
            file.write("checkpoint")


def train(rank: int, way: str, port: str = "") -> None:
    if port:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        dist.init_process_group("gloo", rank=rank, world_size=2)
    else:
        dist.init_process_group("gloo")
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        model(torch.randn(4, 8)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if step == STEP:
            end(way, dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        multiprocessing.spawn(train, (sys.argv[1], sys.argv[2]), 2)
    else:
        train(0, sys.argv[1])
