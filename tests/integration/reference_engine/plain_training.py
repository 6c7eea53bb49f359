"""The same training without an engine: one process, plain torch.

The batch goes through in the slices that ranks and micro-batches take; their mean gradients are added up in
float32, clipped by torch, and handed to torch's AdamW, which updates float32 masters.
"""

from dataclasses import dataclass

import torch

from zprof.reference_engine.program.gpt import GPT, GPTConfig
from zprof.reference_engine.train import make_global_batch, take_rank_slice


@dataclass(frozen=True, kw_only=True)
class PlainTraining:
    """What is trained; ``scale`` multiplies the loss, for float16."""

    gpt: GPTConfig
    steps: int
    batch: int
    dtype: torch.dtype = torch.float32
    slices: int = 1
    clip_norm: float | None = None
    learning_rate: float = 1e-3
    eps: float = 1e-8
    scale: float = 1.0

    def losses(self) -> list[float]:
        return [loss for loss, _ in self.steps_taken()]

    def steps_taken(self) -> list[tuple[float, float]]:
        """Loss and norm of the gradients of each step."""
        torch.manual_seed(0)
        model = GPT(self.gpt)
        masters = [parameter.detach().clone() for parameter in model.parameters()]
        model = model.to(self.dtype)
        optimizer = torch.optim.AdamW(masters, lr=self.learning_rate, eps=self.eps, weight_decay=0.01)
        return [self._step(step, model, masters, optimizer) for step in range(self.steps)]

    def _step(
        self, step: int, model: GPT, masters: list[torch.Tensor], optimizer: torch.optim.Optimizer
    ) -> tuple[float, float]:
        losses = []
        for master in masters:
            master.grad = torch.zeros_like(master)
        for index in range(self.slices):
            losses.append(self._backward(step, index, model))
            for master, parameter in zip(masters, model.parameters(), strict=True):
                master.grad.add_(parameter.grad.float(), alpha=1 / (self.slices * self.scale))
        norm = torch.nn.utils.clip_grad_norm_(masters, self.clip_norm or torch.inf)
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
        return sum(losses) / len(losses), float(norm)

    def _backward(self, step: int, index: int, model: GPT) -> float:
        gpt = self.gpt
        tokens = make_global_batch(
            seed=0, step=step, batch=self.batch, time=gpt.context, vocabulary=gpt.vocabulary
        )
        part = take_rank_slice(tokens, rank=index, ranks=self.slices)
        model.zero_grad()
        loss = model(part[:, :-1], part[:, 1:])
        (loss * self.scale).backward()
        return float(loss.detach())
