"""Match the collectives of all ranks, check that the match is possible, and align the clocks.

The three depend on each other: the check needs no clocks (no rank leaves before all have entered, for any
offsets), the clocks need matched collectives, and matches that still contradict are refused. Groups with a
stated sequence come first, then complete groups; their clocks, and ping clocks, help to match the others.

Local time minus offset is the first rank's clock. Offsets are estimated from clock pings if there are
any, else from the program's own collectives, per group. Groups that overlap propagate clocks to all ranks,
the most precise group first. Causality bounds each offset. Ranks of one host share a clock (measured: within
1 µs), so their difference is 0 unless the bounds forbid it or short collectives clearly contradict it.
"""

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.columns import Column, Columns, Floats, Groups, OptionalInts
from zprof.analysis.time.clocks import (
    MAX_ALL_PAIRS,
    STAMP_JITTER_NS,
    Clocks,
    ClockTable,
    RankClock,
    close_bounds,
    compute_tolerance,
    compute_upper_bounds,
    drop_first_collectives,
    estimate_drifts,
    estimate_offsets,
    find_bad_pairs,
    find_worst_ranks,
    make_ping_table,
)
from zprof.analysis.time.matching.ladder import (
    add_instances,
    list_matching_gaps,
    list_step_gaps,
    match_ordered,
    match_stated,
    refuse_impossible,
    refuse_rows,
)
from zprof.analysis.time.matching.lanes import (
    ClockDifference,
    ClockHint,
    Hints,
    choose_bases,
    make_match_rows,
    split_lanes,
)
from zprof.analysis.time.timeline import RankWindow
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

SAME_HOST_UNCERTAINTY_NS = 2_000
#: Maximum number of ranks without a common clock that get their own gap.
_MAX_CLOCK_GAPS = 8
_ONE_HOST = "one host, one clock"
#: Votes contradict the shared clock of a host if they differ by more than this many uncertainties.
_CONTRADICTION_FACTOR = 5.0
#: A difference of up to this many uncertainties is explained by them.
_EXPLAINED_FACTOR = 2.0
#: Columns with times on the rank's clock.
TIME_COLUMNS = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns", "wait_start_ns", "wait_end_ns")


class ClockLink(Struct, frozen=True, kw_only=True):
    """Relative clocks of one table's ranks; NaN if unknown.

    ``order``: the source's sharpness and the median uncertainty; links are followed in this order.
    """

    name: str
    order: tuple[int, float]
    ranks: tuple[int, ...]
    value: Floats
    uncertainty: Floats
    votes: int


class ReachedClocks(Struct, kw_only=True):
    """Each reached rank's clock value and uncertainty, and the link that reached it."""

    value: dict[int, float] = field(default_factory=dict)
    uncertainty: dict[int, float] = field(default_factory=dict)
    by: dict[int, int] = field(default_factory=dict)


def propagate_clocks(
    ranks: Sequence[int], links: Sequence[ClockLink], mates: Mapping[int, Sequence[int]]
) -> ReachedClocks:
    """Propagate clock values from the first rank, whose value is 0, to all reachable ranks.

    Args:
        ranks: All ranks.
        links: One link per source table.
        mates: Ranks on each rank's host, which share its clock; used for ranks that no group reaches.
    """
    reached = ReachedClocks(value={ranks[0]: 0.0}, uncertainty={ranks[0]: 0.0})
    links_by_rank: dict[int, list[tuple[tuple[int, float], int]]] = {}
    for index, link in enumerate(links):
        for rank, value in zip(link.ranks, link.value, strict=True):
            if not np.isnan(value):
                links_by_rank.setdefault(rank, []).append((link.order, index))
    heap: list[tuple[tuple[int, float], int]] = []
    used: set[int] = set()
    new = [ranks[0]]
    while new:
        for rank in new:
            for entry in links_by_rank.get(rank, ()):
                heapq.heappush(heap, entry)
        new = []
        while heap and not new:
            _, index = heapq.heappop(heap)
            if index not in used:
                used.add(index)
                new = _apply_link(links[index], index, reached)
        if not new:
            unreached = (rank for rank in ranks if rank not in reached.value)
            pairs = (
                (rank, mate) for rank in unreached for mate in mates.get(rank, ()) if mate in reached.value
            )
            for rank, mate in [*pairs][:1]:
                reached.value[rank] = reached.value[mate]
                reached.uncertainty[rank] = max(reached.uncertainty[mate], SAME_HOST_UNCERTAINTY_NS)
                new = [rank]
    return reached


def _apply_link(link: ClockLink, index: int, reached: ReachedClocks) -> list[int]:
    """Set the ranks of a link that are not yet reached, from its most certain known rank; return them."""
    rows = {r: row for row, r in enumerate(link.ranks) if not np.isnan(link.value[row])}
    known = [rank for rank in rows if rank in reached.value]
    best = min(known, key=lambda rank: (reached.uncertainty[rank], rank))
    base = reached.value[best] - float(link.value[rows[best]])
    new = [rank for rank in rows if rank not in reached.value]
    for rank in new:
        own = max(float(link.uncertainty[rows[rank]]), float(link.uncertainty[rows[best]]))
        reached.value[rank] = base + float(link.value[rows[rank]])
        reached.uncertainty[rank] = max(reached.uncertainty[best], own)
        reached.by[rank] = index
    return new


class ClockSource(Struct, frozen=True, kw_only=True):
    """A table for estimating clocks. Sources with lower ``sharpness`` take precedence."""

    name: str
    sharpness: int
    table: ClockTable


def align_clocks(
    hosts: Mapping[int, str], base: Mapping[int, int], sources: Sequence[ClockSource]
) -> tuple[Clocks, list[Gap]]:
    """Align every rank that is reachable from the first.

    Args:
        hosts: Host name by rank; ranks without one do not share a host.
        base: Reference time of each rank's rows in the tables.
        sources: Matched collectives and pings.
    """
    ranks = sorted(hosts)
    sources = [_drop_impossible_ranks(source) for source in sources]
    # By rank, all ranks of the same host; clocks that differ by hours are not shared.
    ranks_by_host: dict[tuple[str, int], list[int]] = {}
    for rank in sorted(hosts):
        if hosts[rank]:
            ranks_by_host.setdefault((hosts[rank], base[rank]), []).append(rank)
    mates = {rank: mates for mates in ranks_by_host.values() for rank in mates if len(mates) > 1}
    drift = _estimate_drift(ranks, mates, sources)
    sources = [replace(source, table=_remove_drift(source.table, drift)) for source in sources]
    links = [_make_link(source, *estimate_offsets(source.table)) for source in sources]
    reached = propagate_clocks(ranks, links, mates)
    allowed = _find_intervals(ranks, sources)
    # Move votes into their allowed interval, and raise the uncertainty to at least the distance moved.
    for rank, (low, high) in allowed.items():
        if rank in reached.value and low <= high:
            voted = reached.value[rank]
            reached.value[rank] = min(max(voted, low), high)
            reached.uncertainty[rank] = max(reached.uncertainty[rank], abs(voted - reached.value[rank]))
    snapped = _snap_to_hosts(mates, reached, allowed)
    clocks = _make_clocks(ranks[0], base, reached, drift, allowed, _describe_method(reached, links, snapped))
    unaligned = [rank for rank in ranks if rank not in reached.value]
    if len(unaligned) > _MAX_CLOCK_GAPS:
        return clocks, [make_gap("clocks_not_aligned", ranks=len(unaligned), first=unaligned[0])]
    return clocks, [make_gap("clock_not_aligned", rank=rank) for rank in unaligned]


def _drop_impossible_ranks(source: ClockSource) -> ClockSource:
    """Return the source without ranks whose timestamps contradict every possible clock."""
    table = source.table
    drift = np.nan_to_num(estimate_drifts(table))
    without_drift = drop_first_collectives(table.moved(np.zeros(len(drift)), drift))
    bad = find_bad_pairs(without_drift, compute_tolerance(table))
    return replace(source, table=table.of_ranks(~find_worst_ranks(bad))) if bad.any() else source


def _estimate_drift(
    ranks: Sequence[int], mates: Mapping[int, Sequence[int]], sources: Sequence[ClockSource]
) -> dict[int, float]:
    """Return each rank's drift, equal for ranks on one host if possible.

    Pings delayed by busy CPUs look like drift.
    """
    links = []
    for source in sources:
        drifts = estimate_drifts(source.table)
        if not np.isnan(drifts).all():
            uncertainty = np.full(len(drifts), 1.0 / max(source.table.span_ns, 1.0))
            links.append(_make_link(source, drifts, uncertainty))
    drift = propagate_clocks(ranks, links, {}).value
    unified = drift | {
        rank: drift.get(host_ranks[0], 0.0) for rank, host_ranks in mates.items() if rank in drift
    }
    if unified != drift:
        for source in sources:
            table = drop_first_collectives(_remove_drift(source.table, unified))
            if find_bad_pairs(table, STAMP_JITTER_NS).any():
                return drift
    return unified


def _remove_drift(table: ClockTable, drift: Mapping[int, float]) -> ClockTable:
    rank_drifts = np.array([drift.get(rank, 0.0) for rank in table.ranks], dtype=np.float64)
    return table.moved(np.zeros(len(rank_drifts)), rank_drifts) if rank_drifts.any() else table


def _make_link(source: ClockSource, value: Floats, uncertainty: Floats, votes: int = 0) -> ClockLink:
    known = uncertainty[~np.isnan(uncertainty)]
    return ClockLink(
        name=source.name,
        order=(source.sharpness, float(np.median(known)) if len(known) else np.inf),
        ranks=source.table.ranks,
        value=value,
        uncertainty=uncertainty,
        votes=votes,
    )


def _find_intervals(ranks: Sequence[int], sources: Sequence[ClockSource]) -> dict[int, tuple[float, float]]:
    """Return the offsets to the first rank allowed by causality, for few ranks also via other ranks."""
    if len(ranks) > MAX_ALL_PAIRS:
        intervals: dict[int, tuple[float, float]] = {}
        for source in sources:
            if source.table.ranks and source.table.ranks[0] == ranks[0]:
                bounds = compute_upper_bounds(drop_first_collectives(source.table))
                for row, rank in enumerate(source.table.ranks):
                    low, high = intervals.get(rank, (-np.inf, np.inf))
                    intervals[rank] = max(low, -float(bounds[0, row])), min(high, float(bounds[row, 0]))
        return intervals
    position = {rank: row for row, rank in enumerate(ranks)}
    bounds = np.full((len(ranks), len(ranks)), np.inf)
    np.fill_diagonal(bounds, 0.0)
    for source in sources:
        rows = [position[rank] for rank in source.table.ranks]
        block = np.ix_(rows, rows)
        bounds[block] = np.minimum(bounds[block], compute_upper_bounds(drop_first_collectives(source.table)))
    bounds = close_bounds(bounds)
    return {rank: (-float(bounds[0, row]), float(bounds[row, 0])) for rank, row in position.items()}


def _snap_to_hosts(
    mates: Mapping[int, Sequence[int]],
    reached: ReachedClocks,
    allowed: Mapping[int, tuple[float, float]],
) -> set[int]:
    """Give a host's ranks the clock of its first rank unless they contradict it; return the changed ranks."""
    snapped: set[int] = set()
    jitter = float(STAMP_JITTER_NS)
    for host_ranks in {host_ranks[0]: host_ranks for host_ranks in mates.values()}.values():
        known = [rank for rank in host_ranks if rank in reached.value]
        for rank in known[1:]:
            head = known[0]
            value = reached.value[head]
            low, high = allowed.get(rank, (-np.inf, np.inf))
            if low <= high + jitter and not low - jitter <= value <= high + jitter:
                continue
            uncertainty = max(
                reached.uncertainty[rank], reached.uncertainty[head], jitter / _CONTRADICTION_FACTOR
            )
            difference = abs(reached.value[rank] - value)
            if difference > _CONTRADICTION_FACTOR * uncertainty:
                continue
            explained = max(_EXPLAINED_FACTOR * reached.uncertainty[rank], jitter)
            reached.value[rank] = value
            reached.uncertainty[rank] = max(
                SAME_HOST_UNCERTAINTY_NS,
                reached.uncertainty[head],
                difference if difference > explained else 0.0,
            )
            snapped.add(rank)
    return snapped


def _describe_method(reached: ReachedClocks, links: Sequence[ClockLink], snapped: set[int]) -> str:
    by_host = snapped | (set(reached.value) - set(reached.by))
    used = {index for rank, index in reached.by.items() if rank not in snapped}
    votes: dict[str, int] = {}
    for index in used:
        votes[links[index].name] = votes.get(links[index].name, 0) + links[index].votes
    names = [f"{count} {name}" for name, count in votes.items()]
    return ", ".join(sorted([*names, *([_ONE_HOST] if len(by_host) > 1 or snapped else [])])) or "one rank"


def _make_clocks(
    first: int,
    base: Mapping[int, int],
    reached: ReachedClocks,
    drift: Mapping[int, float],
    allowed: Mapping[int, tuple[float, float]],
    method: str,
) -> Clocks:
    clocks: dict[int, RankClock] = {}
    interval_ns: dict[int, tuple[int, int]] = {}
    for rank in sorted(reached.value):
        base_offset, rank_drift = base[rank] - base[first], drift.get(rank, 0.0)
        offset_ns = base_offset + round(reached.value[rank] * (1 + rank_drift))
        clocks[rank] = RankClock(
            offset_ns=offset_ns, drift_ppb=rank_drift * 1e9, origin_ns=base[first] + offset_ns
        )
        low, high = allowed.get(rank, (-np.inf, np.inf))
        if rank != first and np.isfinite(low) and np.isfinite(high) and low <= high:
            interval_ns[rank] = round(low) + base_offset, round(high) + base_offset
    uncertainty = {rank: round(reached.uncertainty[rank]) for rank in sorted(reached.value)}
    return Clocks(
        of_rank=clocks,
        uncertainty_ns=max(uncertainty.values()),
        method=method,
        rank_uncertainty_ns=uncertainty,
        interval_ns=interval_ns,
    )


class SynchronisedRun(Struct, frozen=True, kw_only=True):
    """All collectives on the common clock, and the clocks.

    ``collectives`` has ``instance`` (equal for all rows of a match, -1 without a match), ``matched`` (all of
    the group's ranks are in the match) and ``rung`` (how it was matched). ``shifts`` and ``excluded``:
    repairs of the match.
    """

    collectives: Columns
    clocks: Clocks
    shifts: Mapping[int, int]
    excluded: tuple[int, ...]
    gaps: tuple[Gap, ...]


def synchronise(
    collectives: Columns, timelines: Sequence[RankWindow], world_size: int | None = None
) -> SynchronisedRun:
    """Move the collectives to one clock.

    Args:
        collectives: Rows of all ranks with a ``rank`` column, each on its rank's clock.
        timelines: The loaded ranks.
        world_size: The job's number of ranks, if known.
    """
    ranks = sorted(timeline.rank for timeline in timelines)
    hosts = {timeline.rank: timeline.host for timeline in timelines}
    base = choose_bases(collectives, timelines)
    rows = make_match_rows(collectives, timelines, base)
    lanes = split_lanes(collectives, rows, ranks, world_size)
    pings = make_ping_table({timeline.rank: timeline.pings for timeline in timelines}, base)
    matching = match_stated(lanes, rows, make_hints(hosts, base, _list_sources(pings, [])))
    stated = matching.tables(rows)
    ordered = match_ordered(
        lanes, rows, lambda tables: make_hints(hosts, base, _list_sources(pings, [*stated, *tables]))
    )
    matching = replace(matching, placements=(*matching.placements, *ordered))
    clocks, clock_gaps = align_clocks(hosts, base, _list_sources(pings, matching.tables(rows)))
    collectives = add_instances(collectives, matching)
    gaps = list_matching_gaps(collectives, lanes, matching, ranks)
    collectives = _move_to_common_clock(collectives, clocks)
    collectives, impossible = refuse_impossible(collectives, rows, clocks.uncertainty_ns)
    return SynchronisedRun(
        collectives=collectives,
        clocks=clocks,
        shifts=matching.shifts,
        excluded=matching.excluded,
        gaps=(*gaps, *clock_gaps, *impossible, *list_step_gaps(collectives, rows)),
    )


def _list_sources(pings: ClockTable, tables: Sequence[ClockTable]) -> list[ClockSource]:
    sources_of_collectives = [ClockSource(name="collectives", sharpness=1, table=table) for table in tables]
    return (
        [ClockSource(name="clock pings", sharpness=0, table=pings), *sources_of_collectives]
        if pings.ranks
        else sources_of_collectives
    )


def _move_to_common_clock(collectives: Columns, clocks: Clocks) -> Columns:
    """Shift all times to the common clock, and refuse matches with a rank whose clock is unknown."""
    rank, instance = collectives.ints("rank"), collectives.ints("instance")
    has_clock = np.isin(rank, list(clocks.of_rank))
    collectives = refuse_rows(collectives, np.isin(instance, instance[~has_clock]))
    by_rank = Groups(rank)
    clock_rows = [(clocks.of(int(rank[rows[0]])), rows) for rows in by_rank.split()]
    moved: dict[str, Column] = {}
    for name in TIME_COLUMNS:
        column, times = collectives[name], collectives.ints(name).copy()
        for clock, rows in clock_rows:
            times[rows] = clock.common(times[rows])
        moved[name] = OptionalInts(times, column.known) if isinstance(column, OptionalInts) else times
    return collectives.with_columns(**moved)


def make_hints(hosts: Mapping[int, str], base: Mapping[int, int], sources: Sequence[ClockSource]) -> Hints:
    """Return a function that gives the clock hint for two ranks.

    Ranks need not share a source: a chain of sources connects their clocks. A shared host clock is not a
    measurement, so it is a separate field of the hint.
    """
    parts: dict[int, tuple[Clocks, int]] = {}
    for ranks, connecting in _split_by_connection(hosts, sources):
        clocks, _ = align_clocks(dict.fromkeys(ranks, ""), base, connecting)
        parts |= dict.fromkeys(ranks, (clocks, base[ranks[0]]))

    def hint(fixed: int, moved: int) -> ClockHint:
        measured = None
        if fixed in parts:
            clocks, origin = parts[fixed]
            if fixed in clocks.of_rank and moved in clocks.of_rank:
                fixed_clock = _compute_clock_at_base(clocks, base, origin, fixed)
                moved_clock = _compute_clock_at_base(clocks, base, origin, moved)
                measured = ClockDifference(
                    offset=moved_clock[0] - fixed_clock[0],
                    drift=moved_clock[1] - fixed_clock[1],
                    uncertainty_ns=float(max(clocks.rank_uncertainty_ns[rank] for rank in (fixed, moved))),
                )
        return ClockHint(
            measured=measured,
            one_host=bool(hosts[fixed]) and hosts[fixed] == hosts[moved],
            one_origin=base[fixed] == base[moved],
        )

    return hint


def _split_by_connection(
    hosts: Mapping[int, str], sources: Sequence[ClockSource]
) -> list[tuple[list[int], list[ClockSource]]]:
    """Return each set of connected ranks with its sources; ranks without sources are left out."""
    part_of = {rank: rank for rank in hosts}
    for source in sources:
        joined = {part_of[rank] for rank in source.table.ranks}
        if len(joined) > 1:
            lowest = min(joined)
            part_of = {rank: lowest if part in joined else part for rank, part in part_of.items()}
    ranks_by_part: dict[int, list[int]] = {}
    for rank in sorted(part_of):
        ranks_by_part.setdefault(part_of[rank], []).append(rank)
    sources_by_part: dict[int, list[ClockSource]] = {}
    for source in sources:
        if source.table.ranks:
            sources_by_part.setdefault(part_of[source.table.ranks[0]], []).append(source)
    return [(ranks_by_part[part], found) for part, found in sorted(sources_by_part.items())]


def _compute_clock_at_base(
    clocks: Clocks, base: Mapping[int, int], origin: int, rank: int
) -> tuple[float, float]:
    """Return offset and drift for times relative to the rank's base."""
    clock = clocks.of_rank[rank]
    drift = clock.drift_ppb * 1e-9
    offset = clock.offset_ns - (base[rank] - origin)
    return offset + drift * (base[rank] - clock.origin_ns), drift
