"""Carries clocks from rank to rank over groups that overlap, the sharpest group first."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from zprof.analysis.time.clocks.table import Floats

SAME_HOST_UNCERTAINTY_NS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one table says of its ranks' clocks relative to each other; NaN where nothing."""

    name: str
    sharpness: int
    ranks: tuple[int, ...]
    value: Floats
    uncertainty: Floats
    votes: int = 0

    @property
    def order(self) -> tuple[int, float]:
        """Smaller is better."""
        known = self.uncertainty[~np.isnan(self.uncertainty)]
        return self.sharpness, float(np.median(known)) if len(known) else np.inf


@dataclass(slots=True, kw_only=True)
class Reach:
    """What each rank got, and by which link."""

    value: dict[int, float] = field(default_factory=dict)
    uncertainty: dict[int, float] = field(default_factory=dict)
    by: dict[int, int] = field(default_factory=dict)


def spread(ranks: Sequence[int], links: Sequence[Link], mates: Mapping[int, Sequence[int]]) -> Reach:
    """From the first rank, whose value is 0, to all that can be reached.

    Args:
        ranks: All ranks.
        links: Groups.
        mates: Ranks of each rank's host, which share its clock: taken where no group leads on.
    """
    reach = Reach(value={ranks[0]: 0.0}, uncertainty={ranks[0]: 0.0})
    of_rank = _links_of(links)
    heap: list[tuple[tuple[int, float], int]] = []
    _push(heap, links, of_rank.get(ranks[0], ()))
    while True:
        _follow(heap, links, of_rank, reach)
        mate = next(((r, m) for r in ranks if r not in reach.value for m in _reached(mates, r, reach)), None)
        if mate is None:
            return reach
        rank, other = mate
        reach.value[rank] = reach.value[other]
        reach.uncertainty[rank] = max(reach.uncertainty[other], SAME_HOST_UNCERTAINTY_NS)
        _push(heap, links, of_rank.get(rank, ()))


def _links_of(links: Sequence[Link]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index, link in enumerate(links):
        for rank, value in zip(link.ranks, link.value, strict=True):
            if not np.isnan(value):
                found.setdefault(rank, []).append(index)
    return found


def _reached(mates: Mapping[int, Sequence[int]], rank: int, reach: Reach) -> list[int]:
    return [mate for mate in mates.get(rank, ()) if mate in reach.value][:1]


def _push(heap: list[tuple[tuple[int, float], int]], links: Sequence[Link], mine: Sequence[int]) -> None:
    for index in mine:
        heapq.heappush(heap, (links[index].order, index))


def _follow(
    heap: list[tuple[tuple[int, float], int]],
    links: Sequence[Link],
    of_rank: Mapping[int, Sequence[int]],
    reach: Reach,
) -> None:
    used: set[int] = set()
    while heap:
        _, index = heapq.heappop(heap)
        if index not in used:
            used.add(index)
            for rank in _apply(links[index], index, reach):
                _push(heap, links, [other for other in of_rank[rank] if other not in used])


def _apply(link: Link, index: int, reach: Reach) -> list[int]:
    """Reach the other ranks of a link from the best known of them."""
    rows = {r: row for row, r in enumerate(link.ranks) if not np.isnan(link.value[row])}
    known = [rank for rank in rows if rank in reach.value]
    best = min(known, key=lambda rank: (reach.uncertainty[rank], rank))
    base = reach.value[best] - float(link.value[rows[best]])
    new = [rank for rank in rows if rank not in reach.value]
    for rank in new:
        own = max(float(link.uncertainty[rows[rank]]), float(link.uncertainty[rows[best]]))
        reach.value[rank] = base + float(link.value[rows[rank]])
        reach.uncertainty[rank] = max(reach.uncertainty[best], own)
        reach.by[rank] = index
    return new
