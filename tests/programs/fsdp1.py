"""Train a small transformer with FullyShardedDataParallel (FSDP1), one unit per layer, on gloo ranks."""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

STEPS, BATCH, TOKENS, HIDDEN = 14, 8, 64, 256


def main() -> None:
    """Train on random tokens, each rank on its own."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(HIDDEN, 4, 4 * HIDDEN, dropout=0.0, batch_first=True)
    model = FullyShardedDataParallel(
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        auto_wrap_policy=functools.partial(
            transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer}
        ),
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(dist.get_rank())
    for _ in range(STEPS):
        batch = torch.randn(BATCH, TOKENS, HIDDEN)
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
