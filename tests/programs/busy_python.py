"""Train with DistributedDataParallel and run Python between the layers, as hooks for logging do."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, TOKENS, HIDDEN, ROUNDS = 14, 8, 64, 256, 200_000


def main() -> None:
    """Train on random tokens, each rank on its own."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(HIDDEN, 4, 4 * HIDDEN, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    for block in encoder.layers:
        block.register_forward_hook(run_python)
    model = DistributedDataParallel(encoder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(dist.get_rank())
    for _ in range(STEPS):
        batch = torch.randn(BATCH, TOKENS, HIDDEN)
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def run_python(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    """Compute what no operator does."""
    checksum = 0
    for number in range(ROUNDS):
        checksum = (checksum * 31 + number) % 1_000_003


if __name__ == "__main__":
    main()
