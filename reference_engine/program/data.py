"""Generate synthetic token sequences that a small model can learn, independent of the number of ranks.

token[t + 1] = (5 token[t] + 7) mod vocabulary, replaced by a random token with probability 0.1
"""

import time as clock
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

_NOISE = 0.1


def make_global_batch(*, seed: int, step: int, batch: int, time: int, vocabulary: int) -> torch.Tensor:
    """Generate the tokens [batch, time + 1] of one step: inputs and, shifted by one, targets."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    tokens = torch.empty(batch, time + 1, dtype=torch.int64)
    tokens[:, 0] = torch.randint(vocabulary, (batch,), generator=generator)
    random = torch.randint(vocabulary, (batch, time), generator=generator)
    is_noise = torch.rand(batch, time, generator=generator) < _NOISE
    for t in range(time):
        following = (5 * tokens[:, t] + 7) % vocabulary
        tokens[:, t + 1] = torch.where(is_noise[:, t], random[:, t], following)
    return tokens


def take_rank_slice(tokens: torch.Tensor, *, rank: int, ranks: int) -> torch.Tensor:
    """Return one rank's sequences of the global batch."""
    sequences = tokens.shape[0] // ranks
    return tokens[rank * sequences : (rank + 1) * sequences]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """A rank's training data, and its loading time.

    ``batch`` is global.  A rank's part is divided into ``micro_batches`` equal micro-batches of at most
    ``length`` tokens per sequence, plus one for the targets.  ``rank`` and ``ranks`` are data parallel.
    """

    seed: int
    batch: int
    time: int
    vocabulary: int
    rank: int
    ranks: int
    micro_batches: int = 1
    length: int | None = None
    delay_s: float = 0.0

    def step(self, step: int) -> Iterator[torch.Tensor]:
        """Yield the micro-batches of one step, each [sequences, length + 1]."""
        tokens = make_global_batch(
            seed=self.seed, step=step, batch=self.batch, time=self.time, vocabulary=self.vocabulary
        )
        own_tokens = take_rank_slice(tokens, rank=self.rank, ranks=self.ranks)
        for part in own_tokens[:, : (self.length or self.time) + 1].chunk(self.micro_batches):
            clock.sleep(self.delay_s)
            yield part


def iter_micro_batches(batches: Batches, steps: range) -> Iterator[torch.Tensor]:
    """Iterate over all micro-batches of these steps with torch's DataLoader, which profilers recognize."""
    # A separate generator, so that the loader does not advance the global one.
    loader: DataLoader[Any] = DataLoader(
        _Stream(batches, steps), batch_size=None, generator=torch.Generator()
    )
    return iter(loader)


class _Stream(IterableDataset[torch.Tensor]):
    def __init__(self, batches: Batches, steps: range) -> None:
        self._batches, self._steps = batches, steps

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in self._steps:
            yield from self._batches.step(step)
