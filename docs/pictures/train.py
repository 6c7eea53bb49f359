"""A small transformer, sharded with FSDP2 on gloo ranks. Its data set takes 20 ms to decode a sample."""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH, TOKENS, HIDDEN = 14, 8, 64, 256


class SlowDataset(Dataset[Tensor]):
    """Random tokens that are slow to decode."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.02)
        return torch.randn(TOKENS, HIDDEN)


def main() -> None:
    """Train for one pass over the data."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(HIDDEN, 4, 4 * HIDDEN, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    for block in model.layers:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in DataLoader(SlowDataset(), batch_size=BATCH):
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
