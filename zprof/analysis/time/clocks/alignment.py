"""Brings the clocks of the ranks together: local time minus offset is the clock of the first rank.

Clock pings vote where there are any, else the program's own collectives, each group for its ranks and
groups that overlap for all.  Causality bounds each offset hard.  Ranks of one host share a clock (measured:
within 1 µs), so there 0 holds unless the bounds forbid it or short collectives contradict beyond doubt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zprof.analysis.time.clocks.bounds import (
    ALL_PAIRS,
    STAMP_JITTER_NS,
    bad_pairs,
    closed,
    judged,
    tolerance_ns,
    upper_bounds,
    worst_ranks,
)
from zprof.analysis.time.clocks.drift import drifts
from zprof.analysis.time.clocks.graph import SAME_HOST_UNCERTAINTY_NS, Link, Reach, spread
from zprof.analysis.time.clocks.offsets import Clocks, RankClock
from zprof.analysis.time.clocks.table import Floats, Table
from zprof.analysis.time.clocks.votes import estimate
from zprof.model.gaps import Gap

_ONE_HOST = "one host, one clock"
#: Votes contradict a host's one clock where they miss it by more than this many uncertainties.
_BEYOND_DOUBT = 5.0
#: Up to here a miss is what the uncertainty explains.
_EXPLAINED = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A table that clocks are read from.  Of two the one with the lower ``sharpness`` is asked first."""

    name: str
    sharpness: int
    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interval:
    """What causality allows for an offset against the first rank."""

    low: float
    high: float


def align(
    hosts: Mapping[int, str], base: Mapping[int, int], sources: Sequence[Source]
) -> tuple[Clocks, list[Gap]]:
    """Align every rank that can be reached from the first.

    Args:
        hosts: Host name by rank; ranks without one are not taken for one host.
        base: What the times of each rank's rows in the tables are relative to.
        sources: Matched collectives and pings.
    """
    ranks = sorted(hosts)
    sources = [_possible(source) for source in sources]
    mates = _mates(hosts, base)
    drift = _one_pace_per_host(_drift_of(ranks, sources), mates, sources)
    sources = [replace(source, table=_without_drift(source.table, drift)) for source in sources]
    links = [_link(source) for source in sources]
    reach = spread(ranks, links, mates)
    allowed = _intervals(ranks, sources)
    _clamp(reach, allowed)
    snapped = _one_clock_per_host(reach, mates, allowed)
    clocks = _result(ranks[0], base, reach, drift, allowed, _method(reach, links, snapped))
    return clocks, _unaligned([rank for rank in ranks if rank not in reach.value])


def _possible(source: Source) -> Source:
    """Without ranks whose stamps no clock explains."""
    table = source.table
    drift = np.nan_to_num(drifts(table))
    still = judged(table.moved(np.zeros(len(drift)), drift))
    bad = bad_pairs(still, tolerance_ns(table))
    return replace(source, table=table.of_ranks(~worst_ranks(bad))) if bad.any() else source


def _drift_of(ranks: Sequence[int], sources: Sequence[Source]) -> dict[int, float]:
    links = []
    for source in sources:
        found = drifts(source.table)
        if not np.isnan(found).all():
            unsure = np.full(len(found), 1.0 / max(source.table.span_ns, 1.0))
            links.append(_as_link(source, found, unsure))
    return spread(ranks, links, {}).value


def _one_pace_per_host(
    drift: dict[int, float], mates: Mapping[int, Sequence[int]], sources: Sequence[Source]
) -> dict[int, float]:
    """Ranks of a host drift alike, unless that cannot be: pings that processors hold up look like drift."""
    alike = drift | {rank: drift.get(mine[0], 0.0) for rank, mine in mates.items() if rank in drift}
    if alike == drift or any(_contradicts(_without_drift(source.table, alike)) for source in sources):
        return drift
    return alike


def _contradicts(table: Table) -> bool:
    return bool(bad_pairs(judged(table), STAMP_JITTER_NS).any())


def _without_drift(table: Table, drift: Mapping[int, float]) -> Table:
    mine = np.array([drift.get(rank, 0.0) for rank in table.ranks], dtype=np.float64)
    return table.moved(np.zeros(len(mine)), mine) if mine.any() else table


def _link(source: Source) -> Link:
    found = estimate(source.table)
    return _as_link(source, found.offset, found.uncertainty, found.votes)


def _as_link(source: Source, value: Floats, uncertainty: Floats, votes: int = 0) -> Link:
    return Link(
        name=source.name,
        sharpness=source.sharpness,
        ranks=source.table.ranks,
        value=value,
        uncertainty=uncertainty,
        votes=votes,
    )


def _mates(hosts: Mapping[int, str], base: Mapping[int, int]) -> dict[int, list[int]]:
    """Ranks of the same host; clocks that differ by hours are not one."""
    of_host: dict[tuple[str, int], list[int]] = {}
    for rank in sorted(hosts):
        if hosts[rank]:
            of_host.setdefault((hosts[rank], base[rank]), []).append(rank)
    return {rank: mates for mates in of_host.values() for rank in mates if len(mates) > 1}


def _intervals(ranks: Sequence[int], sources: Sequence[Source]) -> dict[int, _Interval]:
    """Offsets against the first rank that causality allows: of few ranks by way of all others too."""
    position = {rank: row for row, rank in enumerate(ranks)}
    first = ranks[0]
    if len(ranks) > ALL_PAIRS:
        return _direct_intervals(first, sources)
    bounds = np.full((len(ranks), len(ranks)), np.inf)
    np.fill_diagonal(bounds, 0.0)
    for source in sources:
        rows = [position[rank] for rank in source.table.ranks]
        where = np.ix_(rows, rows)
        bounds[where] = np.minimum(bounds[where], upper_bounds(judged(source.table)))
    bounds = closed(bounds)
    return {
        rank: _Interval(low=-float(bounds[0, row]), high=float(bounds[row, 0]))
        for rank, row in position.items()
    }


def _direct_intervals(first: int, sources: Sequence[Source]) -> dict[int, _Interval]:
    found: dict[int, _Interval] = {}
    for source in sources:
        if not source.table.ranks or source.table.ranks[0] != first:
            continue
        bounds = upper_bounds(judged(source.table))
        for row, rank in enumerate(source.table.ranks):
            old = found.get(rank, _Interval(low=-np.inf, high=np.inf))
            low, high = max(old.low, -float(bounds[0, row])), min(old.high, float(bounds[row, 0]))
            found[rank] = _Interval(low=low, high=high)
    return found


def _clamp(reach: Reach, allowed: Mapping[int, _Interval]) -> None:
    """Move votes into what is allowed: they are at least as unsure as they were wrong."""
    for rank, interval in allowed.items():
        if rank in reach.value and interval.low <= interval.high:
            voted = reach.value[rank]
            reach.value[rank] = min(max(voted, interval.low), interval.high)
            reach.uncertainty[rank] = max(reach.uncertainty[rank], abs(voted - reach.value[rank]))


def _one_clock_per_host(
    reach: Reach, mates: Mapping[int, Sequence[int]], allowed: Mapping[int, _Interval]
) -> set[int]:
    """Give the ranks of a host the clock of its first, unless they contradict; returns those that got it."""
    snapped: set[int] = set()
    for head in [rank for rank, mine in mates.items() if rank == mine[0]]:
        known = [rank for rank in mates[head] if rank in reach.value]
        for rank in known[1:]:
            if _agrees(rank, known[0], reach, allowed):
                apart = abs(reach.value[rank] - reach.value[known[0]])
                _snap(rank, known[0], apart, reach)
                snapped.add(rank)
    return snapped


def _agrees(rank: int, head: int, reach: Reach, allowed: Mapping[int, _Interval]) -> bool:
    value = reach.value[head]
    interval = allowed.get(rank)
    known = interval is not None and interval.low <= interval.high + STAMP_JITTER_NS
    if interval is not None and known and not _allows(interval, value):
        return False
    doubt = max(reach.uncertainty[rank], reach.uncertainty[head], float(STAMP_JITTER_NS) / _BEYOND_DOUBT)
    return abs(reach.value[rank] - value) <= _BEYOND_DOUBT * doubt


def _allows(interval: _Interval, value: float) -> bool:
    return interval.low - STAMP_JITTER_NS <= value <= interval.high + STAMP_JITTER_NS


def _snap(rank: int, head: int, apart: float, reach: Reach) -> None:
    explained = max(_EXPLAINED * reach.uncertainty[rank], STAMP_JITTER_NS)
    unexplained = apart if apart > explained else 0.0
    reach.value[rank] = reach.value[head]
    reach.uncertainty[rank] = max(SAME_HOST_UNCERTAINTY_NS, reach.uncertainty[head], unexplained)


def _method(reach: Reach, links: Sequence[Link], snapped: set[int]) -> str:
    by_host = snapped | (set(reach.value) - set(reach.by))
    used = {index for rank, index in reach.by.items() if rank not in snapped}
    votes: dict[str, int] = {}
    for index in used:
        votes[links[index].name] = votes.get(links[index].name, 0) + links[index].votes
    names = [f"{count} {name}" for name, count in votes.items()]
    return ", ".join(sorted([*names, *([_ONE_HOST] if len(by_host) > 1 or snapped else [])])) or "one rank"


def _result(
    first: int,
    base: Mapping[int, int],
    reach: Reach,
    drift: Mapping[int, float],
    allowed: Mapping[int, _Interval],
    method: str,
) -> Clocks:
    def clock(rank: int) -> RankClock:
        mine, offset = drift.get(rank, 0.0), reach.value[rank]
        whole = base[rank] - base[first] + round(offset * (1 + mine))
        return RankClock(offset_ns=whole, drift_ppb=mine * 1e9, origin_ns=base[first] + whole)

    def interval(rank: int) -> tuple[int, int]:
        moved = base[rank] - base[first]
        return round(allowed[rank].low) + moved, round(allowed[rank].high) + moved

    bounded = [r for r in sorted(reach.value) if r in allowed and _finite(allowed[r]) and r != first]
    uncertainty = {rank: round(reach.uncertainty[rank]) for rank in sorted(reach.value)}
    return Clocks(
        of_rank={rank: clock(rank) for rank in sorted(reach.value)},
        uncertainty_ns=max(uncertainty.values()),
        method=method,
        rank_uncertainty_ns=uncertainty,
        interval_ns={rank: interval(rank) for rank in bounded},
    )


def _finite(interval: _Interval) -> bool:
    return bool(np.isfinite(interval.low) and np.isfinite(interval.high) and interval.low <= interval.high)


def _unaligned(ranks: Sequence[int]) -> list[Gap]:
    """One gap a rank; of many ranks one for all."""
    remedy = "record with zprof.record on every rank: its clock pings align the clocks"
    reason = "it shares no usable collective with the other ranks, and runs on another host"
    if len(ranks) > 8:
        many = f"{len(ranks)} ranks (from rank {ranks[0]} on) share no usable collective with the first"
        return [Gap(what="clock alignment", reason=many, remedy=remedy)]
    return [Gap(what="clock alignment", rank=rank, reason=reason, remedy=remedy) for rank in ranks]
