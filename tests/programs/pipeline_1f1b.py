"""Train a pipeline of two stages, one forward and one backward at a time (1F1B), on gloo ranks."""

import torch
import torch.distributed as dist
from step_truth import start_step
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

STEPS, MICRO_BATCHES, BATCH, TOKENS, HIDDEN = 14, 4, 16, 64, 256


def main() -> None:
    """Train half of the layers on each of two ranks."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(HIDDEN, 4, 4 * HIDDEN, dropout=0.0, batch_first=True)
    half = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    stage = PipelineStage(half, rank, dist.get_world_size(), torch.device("cpu"))
    schedule = Schedule1F1B(
        stage, MICRO_BATCHES, loss_fn=lambda output, target: (output - target).square().mean()
    )
    optimizer = torch.optim.AdamW(half.parameters(), lr=1e-4)
    for _ in range(STEPS):
        start_step()
        batch = torch.randn(BATCH, TOKENS, HIDDEN)
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
