"""The same training without an engine: one process, torch's own AdamW, all parameters in one piece."""

import torch

from zprof.reference_engine.program.data import make_global_batch, take_rank_slice
from zprof.reference_engine.program.gpt import GPT, GPTConfig


def reference_losses(gpt: GPTConfig, *, steps: int, batch: int) -> list[float]:
    """fp32, the whole batch at once."""
    torch.manual_seed(0)
    model = GPT(gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        tokens = _tokens(gpt, step, batch)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def mixed_precision_losses(gpt: GPTConfig, *, steps: int, batch: int, slices: int) -> list[float]:
    """bfloat16 weights and gradients, fp32 masters; the batch in slices, whose mean gradients are summed.

    One slice is the plain way.  N slices add up in bfloat16 what N ranks add up.
    """
    torch.manual_seed(0)
    model = GPT(gpt)
    masters = [parameter.detach().clone() for parameter in model.parameters()]
    model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(masters, lr=1e-3, weight_decay=0.01, fused=True)
    return [
        _mixed_precision_step(model, masters, optimizer, _tokens(gpt, step, batch), slices)
        for step in range(steps)
    ]


def _mixed_precision_step(
    model: GPT,
    masters: list[torch.Tensor],
    optimizer: torch.optim.Optimizer,
    tokens: torch.Tensor,
    slices: int,
) -> float:
    total = 0.0
    sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for index in range(slices):
        part = take_rank_slice(tokens, rank=index, ranks=slices)
        model.zero_grad()
        loss = model(part[:, :-1], part[:, 1:])
        loss.backward()
        total += float(loss.detach())
        for one_sum, parameter in zip(sums, model.parameters(), strict=True):
            one_sum.add_(parameter.grad / slices)
    for master, one_sum in zip(masters, sums, strict=True):
        master.grad = one_sum.float()
    optimizer.step()
    with torch.no_grad():
        for master, parameter in zip(masters, model.parameters(), strict=True):
            parameter.copy_(master)
    return total / slices


def _tokens(gpt: GPTConfig, step: int, batch: int) -> torch.Tensor:
    return make_global_batch(seed=0, step=step, batch=batch, time=gpt.context, vocabulary=gpt.vocabulary)
