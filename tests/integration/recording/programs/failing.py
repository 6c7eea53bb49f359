"""Train a small model and end badly in a step: failing.py STEP oom|error|kill."""

import os
import signal
import sys

import torch
from torch import nn

STEP, ENDING = int(sys.argv[1]), sys.argv[2]
HUGE = 1 << 50


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if ENDING != "oom" else torch.empty(HUGE, dtype=torch.uint8)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
failing = Failing()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(STEP + 1):
    output = model(torch.randn(64, 256))
    if step == STEP:
        output = failing(output)
        if ENDING == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("no such batch")
    output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
