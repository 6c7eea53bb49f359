"""What the programs share: the model, the batches, and what each rank writes down about itself.

No program knows zprof. If ``EXACT_TRUTH`` names a folder, and the exact counter was preloaded, each rank
writes there what it knows without zprof: the exact maximum of live bytes in two steps, its losses, its steps,
and the closed forms of its states.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from step_truth import start_step
from torch import nn

STEPS, BATCH, TOKENS, HIDDEN, BLOCKS = int(os.environ.get("STEPS", "10")), 4, 64, 256, 4
SHAPE = (BATCH, TOKENS, HIDDEN)
#: Steps whose memory is counted, as a recording with default options does.
FIRST_COUNTED, LAST_COUNTED = 2, 3
#: Bytes per element: fp32 master weights and two moments of Adam.
MASTER, MOMENTS = 4, 8


def make_blocks() -> nn.Sequential:
    """Return equal transformer blocks, the same on each rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return nn.Sequential(
        *(
            nn.TransformerEncoderLayer(HIDDEN, 4, 4 * HIDDEN, dropout=0.0, batch_first=True)
            for _ in range(BLOCKS)
        )
    )


def split_groups(model: nn.Module, groups: int) -> list[dict[str, object]]:
    """Return the parameters in one group, or in two: with weight decay, and biases and norms without."""
    parameters = list(model.parameters())
    if groups == 1:
        return [{"params": parameters}]
    return [
        {"params": [each for each in parameters if each.ndim > 1], "weight_decay": 0.1},
        {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
    ]


def count_shards(sizes: Sequence[int], ranks: int) -> int:
    """Return the elements of one rank if each tensor is cut into equal shards, the last one padded."""
    return sum(-(-size // ranks) for size in sizes)


def count_counter_bytes(optimizer: Any) -> int:
    """Return the bytes of the step counters of the innermost optimizer: tensors in torch's Adam."""
    while (inner := getattr(optimizer, "optimizer", None)) is not None:
        optimizer = inner
    counters = [state.get("step") for state in optimizer.state.values()]
    return sum(each.nbytes for each in counters if isinstance(each, torch.Tensor))


class Truth:
    """Counts and writes what this rank knows of itself."""

    def __init__(self, rank: int) -> None:
        self._rank, self._losses, self._peak = rank, [], 0
        self._walked: Mapping[str, int] = {}
        self._folder = os.environ.get("EXACT_TRUTH", "")
        self._counter = None
        if self._folder:
            from tests.support.exact_counter import ExactCounter

            self._counter = ExactCounter()
        start_step()

    def train(self, run_step: Callable[[], torch.Tensor], steps: int = STEPS) -> None:
        """Run the steps; ``run_step`` returns the loss after the model was updated."""
        for _ in range(steps):
            self.step_done(run_step())

    def before_update(self, walk: Callable[[], Mapping[str, int]]) -> None:
        """Walk through the live states once, between the last counted step's backward and its update."""
        if self._folder and len(self._losses) == LAST_COUNTED:
            self._walked = walk()

    def step_done(self, loss: torch.Tensor | float) -> None:
        """Count a step."""
        self._losses.append(float(loss).hex())
        done = len(self._losses)
        if self._counter is not None and done == FIRST_COUNTED:
            self._counter.begin()
        if self._counter is not None and done == LAST_COUNTED + 1:
            self._peak = self._counter.max_bytes()
        start_step()

    def write(self, optimizer: Any, *, skipped: int = 0, **states: int) -> None:
        """Write the counts, and the closed forms of this rank's states; torch's step counters come on top.

        ``skipped``: steps of the loop in which the optimizer did not update.
        """
        if "optimizer_state" in states:
            states["optimizer_state"] += count_counter_bytes(optimizer)
        if self._folder:
            truth = {
                "peak_bytes": self._peak,
                "losses": self._losses,
                "steps": len(self._losses),
                "skipped": skipped,
                "states": states,
                "walked": dict(self._walked),
            }
            Path(self._folder, f"rank{self._rank}.json").write_text(json.dumps(truth))
