"""Records itself, into the folder of the first argument."""

import sys

import torch

import zprof

model = torch.nn.Linear(16, 16)
optimizer = torch.optim.AdamW(model.parameters())
with zprof.record(
    sys.argv[1], model=model, optimizer=optimizer, steps=zprof.steps(skip=0, memory=1, time=1)
) as own:
    for step in range(6):
        model(torch.ones(4, 16)).mean().backward()
        optimizer.step()
        own.step()
        print(step)
