"""Ratios of paired rounds: their median, and an interval for it that assumes nothing of the noise.

With n independent rounds the k-th smallest and the k-th largest ratio enclose the median of what the rounds
are drawn from with probability 1 - 2 P(Binomial(n, 1/2) < k); of all k with at least 95 % the largest is
taken.  Fewer than 6 rounds have no such interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """``interval`` is None where there are too few rounds for one."""

    median: float
    interval: tuple[float, float] | None


def paired_ratio(subject: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Of each round's subject to the same round's peer.

    Raises:
        ValueError: the rounds do not pair up, or there are none.
    """
    if len(subject) != len(peer) or not subject:
        raise ValueError(f"{len(subject)} rounds of the subject and {len(peer)} of the peer do not pair up")
    ratios = sorted(one / other for one, other in zip(subject, peer, strict=True))
    k = interval_rank(len(ratios))
    interval = None if k is None else (ratios[k - 1], ratios[-k])
    return Ratio(median=median(ratios), interval=interval)


def interval_rank(rounds: int) -> int | None:
    """The k of the module's docstring."""
    outside, found = 0.0, None
    for k in range(1, rounds // 2 + 1):
        outside += 2 * math.comb(rounds, k - 1) / 2**rounds
        if outside > 1 - CONFIDENCE:
            break
        found = k
    return found
