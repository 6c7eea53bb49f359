"""The largest rank minus the smallest, by tenant: which of them makes the difference."""

from collections.abc import Mapping, Sequence

from zprof.model.memory import RankMemory, RankSpread
from zprof.model.tenants import SHOWN

UNTAGGED_NAME = "untagged"


def spread_of(ranks: Sequence[RankMemory]) -> RankSpread | None:
    """None for less than two ranks.  The deltas sum to the difference; the first of equal ranks counts."""
    if len(ranks) < 2:
        return None
    largest = max(ranks, key=lambda rank: (rank.peak_bytes, -rank.rank))
    smallest = min(
        (rank for rank in ranks if rank is not largest), key=lambda rank: (rank.peak_bytes, rank.rank)
    )
    high, low = _held(largest), _held(smallest)
    delta = {name: high[name] - low[name] for name in high}
    tenant = max(delta, key=lambda name: delta[name])
    return RankSpread(
        largest_rank=largest.rank,
        smallest_rank=smallest.rank,
        difference_bytes=largest.peak_bytes - smallest.peak_bytes,
        tenant=tenant if delta[tenant] > 0 else "",
        delta_bytes=delta,
    )


def _held(rank: RankMemory) -> Mapping[str, int]:
    held = {tenant.value: rank.tenants.get(tenant, 0) for tenant in SHOWN}
    return held | {UNTAGGED_NAME: rank.untagged_bytes}
