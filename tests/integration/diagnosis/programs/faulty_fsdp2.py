"""A transformer sharded with FSDP2, with a known fault, unaware of profilers.  Arguments: fault, steps.

Faults: none, straggler_rank, rotating_straggler, data_loader, accumulation_syncs, accumulation_regathers,
needless_reshard_after_forward, checkpoint_regathers, units_too_small, single_unit.
"""

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

HEADS, VOCABULARY = 4, 256
LATE_S, LOADING_S = 0.250, 0.150
MICRO_BATCHES = 4


@dataclass(frozen=True)
class Size:
    """Of a model and its batches."""

    width: int = 256
    layers: int = 4
    batch: int = 4
    length: int = 64


#: Where messages are the fault, the model is such that they weigh: many small ones, or large ones.
SIZES = {
    "units_too_small": Size(width=128, layers=8, batch=2, length=32),
    "single_unit": Size(width=512, batch=2, length=32),
}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Segment(nn.Module):
    """Blocks that are recomputed as one, each dropped at once so that not all of them are in memory.

    FSDP2 would keep what a recomputation gathers until its backward.  Dropped by hand, each block is gathered
    for the forward, for the recomputation and for the backward.
    """

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
            block.reshard()
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.run, x, use_reentrant=True)


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Tokens(Dataset):
    def __init__(self, count: int, loading_s: float, size: Size) -> None:
        self.count, self.loading_s, self.shape = count, loading_s, (size.batch, size.length + 1)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.loading_s)
        generator = torch.Generator().manual_seed(index * 100 + dist.get_rank())
        return torch.randint(VOCABULARY, self.shape, generator=generator)


def sharded(fault: str, size: Size) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Transformer(size.width, size.layers)
    reshard = fault in ("accumulation_regathers", "needless_reshard_after_forward", "checkpoint_regathers")
    if fault == "units_too_small":
        for module in model.blocks.modules():
            if isinstance(module, nn.Linear | nn.LayerNorm):
                fully_shard(module, mesh=mesh, reshard_after_forward=False)
    elif fault != "single_unit":
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    if fault == "checkpoint_regathers":
        model.blocks = nn.ModuleList(Segment(pair) for pair in zip(*[iter(model.blocks)] * 2, strict=True))
    return model


def late(fault: str, step: int) -> bool:
    rank = dist.get_rank()
    turn = step % dist.get_world_size() == rank
    return (fault == "straggler_rank" and rank == 1) or (fault == "rotating_straggler" and turn)


def main() -> None:
    fault, steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    size = SIZES.get(fault, Size())
    model = sharded(fault, size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accumulates = fault.startswith("accumulation")
    micro_batches = MICRO_BATCHES if accumulates else 1
    tokens = Tokens(steps * micro_batches, LOADING_S if fault == "data_loader" else 0.0, size)
    batches = iter(DataLoader(tokens, batch_size=None))
    for step in range(steps):
        for micro_batch in range(micro_batches):
            batch = next(batches)
            last = micro_batch == micro_batches - 1
            model.set_requires_gradient_sync(last or fault == "accumulation_syncs")
            model.set_reshard_after_backward(last or fault == "accumulation_regathers")
            if late(fault, step):
                time.sleep(LATE_S)
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            (loss / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
