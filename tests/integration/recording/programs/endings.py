"""Trains, then ends as the first argument says: exit3, raise, kill, or after that many steps."""

import os
import signal
import sys

import torch

torch.manual_seed(0)
ending = sys.argv[1]
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(int(ending) if ending.isdecimal() else 8):
    loss = model(torch.randn(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{step} {loss.item():.6f}", flush=True)
if ending == "exit3":
    sys.exit(3)
if ending == "raise":
    raise LookupError("of the program's own")
if ending == "kill":
    os.kill(os.getpid(), signal.SIGTERM)
