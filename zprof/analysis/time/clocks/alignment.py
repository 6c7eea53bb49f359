"""Brings the clocks of the ranks together: local time minus offset is the clock of the reference rank.

All ranks leave a short collective at nearly the same instant, so ``e_i - e_j`` of each shared collective
votes for ``o_i - o_j``, with weight 1 / its shortest duration: a long one may end apart and hardly
votes.  Causality bounds the difference hard: ``o_i - o_j <= min(e_i - s_j)``, for nobody leaves before
another has entered.  Clock pings vote where there are any, else the program's own collectives.  Ranks of
one host share a clock (measured: within 1 µs), so there 0 holds unless the bounds forbid it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks.offsets import Clocks, RankClock
from zprof.model.gaps import Gap

SAME_HOST_UNCERTAINTY_NS = 2_000
LEAST_UNCERTAINTY_NS = 1_000
#: Bounds may contradict by this much before they count as impossible: the jitter of a stamp.
_STAMP_JITTER_NS = 5_000
#: The ends of a collective coincide to about this share of its duration.
_END_SPREAD_SHARE = 0.05

#: Start and end of each collective that can vote, by its identity, as one rank stamped it.
Stamps = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One rank aligned to another."""

    offset_ns: int
    uncertainty_ns: int
    method: str


def align(
    hosts: Mapping[int, str], pings: Mapping[int, Stamps], collectives: Mapping[int, Stamps]
) -> tuple[Clocks, list[Gap]]:
    """Align every rank that can be reached from the first, one link after another.

    Args:
        hosts: Host name by rank.
        pings: Clock pings by rank.
        collectives: Matched collectives that synchronise all of their ranks, by rank.
    """
    ranks = sorted(hosts)
    aligned: dict[int, _Step] = {ranks[0]: _Step(offset_ns=0, uncertainty_ns=0, method="")}
    waiting = ranks[1:]
    while waiting:
        links = {rank: _link(rank, aligned, hosts, pings, collectives) for rank in waiting}
        reached = {rank: link for rank, link in links.items() if link is not None}
        if not reached:
            break
        aligned |= reached
        waiting = [rank for rank in waiting if rank not in reached]
    return _result(aligned), [_unaligned(rank) for rank in waiting]


def _result(aligned: Mapping[int, _Step]) -> Clocks:
    methods = sorted({step.method for step in aligned.values() if step.method})
    return Clocks(
        of_rank={rank: RankClock(offset_ns=step.offset_ns) for rank, step in sorted(aligned.items())},
        rank_uncertainty_ns={rank: step.uncertainty_ns for rank, step in sorted(aligned.items())},
        uncertainty_ns=max(step.uncertainty_ns for step in aligned.values()),
        method=", ".join(methods) or "one rank",
    )


def _link(
    rank: int,
    aligned: Mapping[int, _Step],
    hosts: Mapping[int, str],
    pings: Mapping[int, Stamps],
    collectives: Mapping[int, Stamps],
) -> _Step | None:
    """Align one rank to the best of those that are aligned: one of its host, else the first that works."""
    for peer in sorted(aligned, key=lambda other: (hosts[other] != hosts[rank], other)):
        same_host = hosts[peer] == hosts[rank]
        for name, stamps in (("clock pings", pings), ("collectives", collectives)):
            votes = _shared(stamps.get(rank, {}), stamps.get(peer, {}))
            step = _vote(votes, same_host=same_host, name=name) if len(votes) else None
            if step is not None:
                return _chain(step, aligned[peer])
        if same_host:
            return _chain(_SAME_HOST, aligned[peer])
    return None


_SAME_HOST = _Step(offset_ns=0, uncertainty_ns=SAME_HOST_UNCERTAINTY_NS, method="one host, one clock")


def _chain(step: _Step, peer: _Step) -> _Step:
    return _Step(
        offset_ns=peer.offset_ns + step.offset_ns,
        uncertainty_ns=max(peer.uncertainty_ns, step.uncertainty_ns),
        method=step.method,
    )


def _shared(mine: Stamps, theirs: Stamps) -> Int64s:
    """Rows (my start, my end, their start, their end) of what both took part in."""
    rows = [(*mine[key], *theirs[key]) for key in sorted(mine.keys() & theirs.keys())]
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def _vote(votes: Int64s, *, same_host: bool, name: str) -> _Step | None:
    start, end, peer_start, peer_end = votes.T
    upper = int((end - peer_start).min())
    lower = -int((peer_end - start).min())
    possible = lower <= upper + _STAMP_JITTER_NS
    if same_host and (not possible or lower - _STAMP_JITTER_NS <= 0 <= upper + _STAMP_JITTER_NS):
        return _SAME_HOST
    if not possible:
        return None
    duration = np.minimum(end - start, peer_end - peer_start).clip(min=1)
    difference = end - peer_end
    offset = min(max(_weighted_median(difference, 1.0 / duration), lower), max(lower, upper))
    return _Step(
        offset_ns=offset,
        uncertainty_ns=_uncertainty(votes, difference - offset, offset),
        method=f"{len(votes)} {name}",
    )


def _uncertainty(votes: Int64s, residual: Int64s, offset: int) -> int:
    start, end, peer_start, peer_end = votes.T
    intrinsic = np.minimum(end - offset, peer_end) - np.maximum(start - offset, peer_start)
    spread = int(np.median(np.abs(residual)))
    return max(spread, LEAST_UNCERTAINTY_NS, int(_END_SPREAD_SHARE * max(0, int(intrinsic.min()))))


def _weighted_median(values: Int64s, weights: npt.NDArray[np.float64]) -> int:
    """The middle of the weight; between two values where it falls exactly there."""
    order = np.argsort(values, kind="stable")
    values, total = values[order], np.cumsum(weights[order])
    half = total[-1] / 2
    low = int(values[np.searchsorted(total, half * (1 - 1e-9))])
    high = int(values[min(np.searchsorted(total, half * (1 + 1e-9)), len(values) - 1)])
    return (low + high) // 2


def _unaligned(rank: int) -> Gap:
    return Gap(
        what="clock alignment",
        rank=rank,
        reason="it shares no usable collective with the other ranks, and runs on another host",
        remedy="record with zprof.record on every rank: its clock pings align the clocks",
    )


def stamps(keys: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Stamps:
    """Stamps from columns."""
    return dict(zip(keys, zip(starts, ends, strict=True), strict=True))
