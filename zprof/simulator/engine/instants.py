"""Moments of all ranks at once, each with the story of how it came about.

An instant is an integer array of shape (1 + causes, ranks): row 0 is the time, the other rows say how much
of it went to computing, to the host, to a collective ... along the chain of things that it waited for.
Taking the later of two instants takes the story of the later one.  Time in a collective, waiting included,
goes to that collective, so a rank that kept others waiting has more of something else than they have.
"""

import numpy as np
from numpy.typing import NDArray

from zprof.model.time import LateReason

Instant = NDArray[np.int64]
REASONS = tuple(reason for reason in LateReason if reason is not LateReason.UNKNOWN)
_ROW: dict[LateReason, int] = {reason: 1 + index for index, reason in enumerate(REASONS)}


def origin(ranks: int) -> Instant:
    """Time zero."""
    return np.zeros((1 + len(REASONS), ranks), dtype=np.int64)


def later(first: Instant, second: Instant) -> Instant:
    """The later of both, rank by rank."""
    return np.where(first[0] >= second[0], first, second)


def after(instant: Instant, reason: LateReason, ns: NDArray[np.int64] | int) -> Instant:
    """``ns`` later, because of ``reason``."""
    moved = instant.copy()
    moved[0] += ns
    moved[_ROW[reason]] += ns
    return moved


def reason_of(instant: Instant, rank: int, others: NDArray[np.int64]) -> LateReason:
    """What ``rank`` did longer than the median of ``others``, above all."""
    if not len(others):
        return LateReason.UNKNOWN
    excess = instant[1:, rank] - np.median(instant[1:, others], axis=1)
    return REASONS[int(np.argmax(excess))]
