"""A transformer sharded with FSDP2, with a known fault, unaware of profilers.  Arguments: fault, steps.

Faults: none, straggler_rank, rotating_straggler, data_loader, accumulation_syncs, accumulation_regathers,
needless_reshard_after_forward, checkpoint_regathers, units_too_small, single_unit.
"""

import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

WIDTH, LAYERS, HEADS, VOCABULARY, LENGTH, BATCH = 256, 4, 4, 256, 64, 8
LATE_S, LOADING_S = 0.060, 0.080
MICRO_BATCHES = 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Recomputed(nn.Module):
    """A block that is checkpointed outside of its sharding, so that recomputation gathers it again."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=True)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Tokens(Dataset):
    def __init__(self, count: int, loading_s: float) -> None:
        self.count, self.loading_s = count, loading_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.loading_s)
        generator = torch.Generator().manual_seed(index * 100 + dist.get_rank())
        return torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)


def sharded(fault: str) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Transformer()
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
        model.blocks = nn.ModuleList(Recomputed(block) for block in model.blocks)
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
    model = sharded(fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accumulates = fault.startswith("accumulation")
    micro_batches = MICRO_BATCHES if accumulates else 1
    tokens = Tokens(steps * micro_batches, LOADING_S if fault == "data_loader" else 0.0)
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
