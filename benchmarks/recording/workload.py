"""The training step that is watched: the transformer of the memory tests, at two sizes of its batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.integration.memory.memory_models import BATCH, LENGTH, VOCABULARY, Transformer

#: Name to (sequences, tokens in each): a tiny batch shows the cost of an operator, the other its share.
BATCHES = {"tiny": (1, 8), "normal": (BATCH, LENGTH)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model in training and its step."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[], None]


def workload(sequences: int, length: int) -> Workload:
    """AdamW, one fixed batch, gradients dropped at the end of the step."""
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(VOCABULARY, (sequences, length + 1))

    def step() -> None:
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Workload(model=model, optimizer=optimizer, step=step)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators_of(step: Callable[[], None]) -> int:
    """How many operators one step dispatches."""
    with _Counter() as counter:
        step()
    return counter.count
