"""Train a pipeline of two stages on gloo ranks, by the GPipe or the 1F1B schedule.

``--plant slow``: the operators of the last stage take half as long again, as on a slower device.
``--plant layers``: the last stage has twice the layers.
"""

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from plants import SlowDevice
from step_truth import start_step
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

STEPS, MICRO_BATCHES, TOKENS, HIDDEN, LAYERS = 16, 8, 256, 192, 2
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Layer(nn.Module):
    """Adds what a network of one hidden layer makes of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens + self.narrow(torch.nn.functional.gelu(self.wide(tokens)))


def main() -> None:
    """Train half of the layers on each of two ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--plant", choices=["none", "slow", "layers"], default="none")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    is_planted = rank == ranks - 1 and options.plant != "none"
    torch.manual_seed(0)
    layers = 2 * LAYERS if is_planted and options.plant == "layers" else LAYERS
    own = nn.Sequential(*(Layer() for _ in range(layers)))
    stage = PipelineStage(own, rank, ranks, torch.device("cpu"))
    schedule = SCHEDULES[options.schedule](
        stage, MICRO_BATCHES, loss_fn=lambda output, target: (output - target).square().mean()
    )
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-4)
    device = SlowDevice() if is_planted and options.plant == "slow" else nullcontext()
    for _ in range(STEPS):
        start_step()
        # As in the middle of a model, the first stage's inputs have gradients, too.
        batch = torch.randn(MICRO_BATCHES * TOKENS, HIDDEN, requires_grad=rank == 0)
        with device:
            if rank == 0:
                schedule.step(batch)
            else:
                schedule.step(target=batch)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
