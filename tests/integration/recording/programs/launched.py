"""Trains with DDP on as many ranks as its launcher starts, or starts them itself: notebook, spawn, fork."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

RANKS, STEPS = 2, 12


def train(index=None, port=None):
    if port is not None:  # its own launcher sets no environment
        os.environ |= {"RANK": str(index), "WORLD_SIZE": str(RANKS)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)))
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(dist.get_rank())
    for _ in range(STEPS):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        print(f"{total.item():.9f}", flush=True)
        if sys.argv[1] == "fails":
            sys.exit(3)


if __name__ == "__main__":
    launcher = sys.argv[1]
    if launcher == "notebook":
        from accelerate import notebook_launcher

        notebook_launcher(train, (), num_processes=RANKS, use_port=sys.argv[2])
    elif launcher in ("spawn", "fork"):
        torch.multiprocessing.start_processes(train, (sys.argv[2],), nprocs=RANKS, start_method=launcher)
    else:
        train()
