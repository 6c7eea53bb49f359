"""What is exchanged between ranks: kinds of collectives, and what each costs on a ring.

Bytes that each of N ranks moves for a full (gathered) tensor of S bytes: all-gather and reduce-scatter
S (N-1)/N, all-reduce 2 S (N-1)/N (a reduce-scatter and an all-gather), broadcast S.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a collective does."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective; equal on all ranks.  ``bytes`` is the size of the full tensor."""

    kind: Kind
    group: str
    sequence: int
    unit: str
    bytes: int
    dtype: str


def ring_factor(kind: Kind, ranks: int) -> float:
    """Bytes that each rank moves for one byte of the full tensor."""
    if ranks == 1:
        return 0.0
    if kind is Kind.BROADCAST:
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if kind is Kind.ALL_REDUCE else share
