"""Synthetic token sequences that a small model can learn, the same for every number of ranks.

token[t + 1] = (5 token[t] + 7) mod vocabulary, now and then a random one
"""

import torch

_NOISE = 0.1


def global_batch(*, seed: int, step: int, batch: int, time: int, vocabulary: int) -> torch.Tensor:
    """Tokens [batch, time + 1] of one step: inputs and, one further, targets."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    tokens = torch.empty(batch, time + 1, dtype=torch.int64)
    tokens[:, 0] = torch.randint(vocabulary, (batch,), generator=generator)
    random = torch.randint(vocabulary, (batch, time), generator=generator)
    surprise = torch.rand(batch, time, generator=generator) < _NOISE
    for t in range(time):
        following = (5 * tokens[:, t] + 7) % vocabulary
        tokens[:, t + 1] = torch.where(surprise[:, t], random[:, t], following)
    return tokens


def rank_slice(tokens: torch.Tensor, *, rank: int, ranks: int) -> torch.Tensor:
    """One rank's sequences of the global batch."""
    share = tokens.shape[0] // ranks
    return tokens[rank * share : (rank + 1) * share]
