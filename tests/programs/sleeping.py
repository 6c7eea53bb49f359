"""Train with DistributedDataParallel and sleep in each step: a loop that polls, or is throttled."""

import time

import torch
import torch.distributed as dist
from step_truth import start_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, TOKENS, HIDDEN, SLEEP_S = 14, 8, 64, 256, 0.06


def main() -> None:
    """Train on random tokens, each rank on its own."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(HIDDEN, 4, 4 * HIDDEN, dropout=0.0, batch_first=True)
    model = DistributedDataParallel(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(dist.get_rank())
    for _ in range(STEPS):
        start_step()
        time.sleep(SLEEP_S)
        batch = torch.randn(BATCH, TOKENS, HIDDEN)
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
