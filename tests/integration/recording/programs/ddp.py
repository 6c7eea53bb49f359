"""Data parallel on gloo, a compiled model inside of the wrapper; accumulates two micro-batches."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
rank = dist.get_rank()
model = DistributedDataParallel(
    torch.compile(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)),
        backend="aot_eager",
    )
)
optimizer = torch.optim.AdamW(model.parameters())
apart = dist.new_group([rank for rank in range(dist.get_world_size())])
for step in range(13):
    generator = torch.Generator().manual_seed(100 * step + rank)
    with model.no_sync():
        model(torch.randn(16, 64, generator=generator)).square().mean().backward()
    loss = model(torch.randn(16, 64, generator=generator)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss.detach(), group=apart)
    if rank == 0:
        print(f"{step} {loss.item():.6f}", flush=True)
dist.destroy_process_group()
