"""Match the collectives of all ranks, check that the match is possible, and align the clocks.

The three depend on each other: the check needs no clocks (no rank leaves before all have entered, for any
offsets), the clocks need matched collectives, and matches that still contradict are refused. Groups with a
stated sequence come first, then groups that lack nothing; their clocks, and the clocks of pings, help to
match the others.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Column, Columns, Groups, OptionalInts
from zprof.analysis.time.clocks.alignment import ClockSource, align_clocks
from zprof.analysis.time.clocks.bounds import ClockTable, make_ping_table
from zprof.analysis.time.clocks.rank_clock import Clocks
from zprof.analysis.time.matching.ladder import (
    add_instances,
    join_matchings,
    match_ordered,
    match_stated,
    refuse_rows,
)
from zprof.analysis.time.matching.lanes import choose_bases, make_match_rows, split_lanes
from zprof.analysis.time.matching.refusals import (
    list_matching_gaps,
    list_step_gaps,
    refuse_impossible,
)
from zprof.analysis.time.matching.registration import ClockDifference, ClockHint
from zprof.analysis.time.matching.slots import Hints
from zprof.analysis.time.timeline import RankWindow
from zprof.model.gaps import Gap

#: Columns with times on the rank's clock.
TIME_COLUMNS = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns", "wait_start_ns", "wait_end_ns")


class SynchronisedRun(Struct, frozen=True, kw_only=True):
    """All collectives on the common clock, and the clocks.

    ``collectives`` has ``instance`` (equal on all rows of a match, -1 without one), ``matched`` (all ranks of
    the group are in it) and ``rung`` (how it was matched). ``shifts`` and ``excluded``: how the match was
    repaired.
    """

    collectives: Columns
    clocks: Clocks
    shifts: Mapping[int, int]
    excluded: tuple[int, ...]
    gaps: tuple[Gap, ...]


def synchronise(
    collectives: Columns, timelines: Sequence[RankWindow], world_size: int | None = None
) -> SynchronisedRun:
    """Move the collectives of ``timelines`` to one clock.

    Args:
        collectives: Rows of all ranks with a ``rank`` column, each on its rank's clock.
        timelines: The loaded ranks.
        world_size: Number of ranks of the job, if known.
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
    matching = join_matchings(matching, ordered)
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
    """Return a function that returns the clock hint for two ranks.

    Ranks need not share a source: a chain of them connects their clocks. A shared host clock is not a
    measurement, so it is a separate field of the hint.
    """
    parts: dict[int, tuple[Clocks, int]] = {}
    for ranks, connecting in _split_by_connection(hosts, sources):
        clocks, _ = align_clocks(dict.fromkeys(ranks, ""), base, connecting)
        parts |= dict.fromkeys(ranks, (clocks, base[ranks[0]]))

    def hint(fixed: int, moved: int) -> ClockHint:
        part = parts.get(fixed)
        return ClockHint(
            measured=None if part is None else _measure_difference(*part, base, fixed, moved),
            one_host=bool(hosts[fixed]) and hosts[fixed] == hosts[moved],
            one_origin=base[fixed] == base[moved],
        )

    return hint


def _split_by_connection(
    hosts: Mapping[int, str], sources: Sequence[ClockSource]
) -> list[tuple[list[int], list[ClockSource]]]:
    """Return the ranks that sources connect, with these sources; ranks without any are left out."""
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


def _measure_difference(
    clocks: Clocks, origin: int, base: Mapping[int, int], fixed: int, moved: int
) -> ClockDifference | None:
    if fixed not in clocks.of_rank or moved not in clocks.of_rank:
        return None
    moved_clock, fixed_clock = (
        _compute_clock_at_base(clocks, base, origin, moved),
        _compute_clock_at_base(clocks, base, origin, fixed),
    )
    uncertainty = max(clocks.rank_uncertainty_ns[rank] for rank in (fixed, moved))
    return ClockDifference(
        offset=moved_clock[0] - fixed_clock[0],
        drift=moved_clock[1] - fixed_clock[1],
        uncertainty_ns=float(uncertainty),
    )


def _compute_clock_at_base(
    clocks: Clocks, base: Mapping[int, int], origin: int, rank: int
) -> tuple[float, float]:
    """Return offset and drift for times relative to the rank's base."""
    clock = clocks.of_rank[rank]
    drift = clock.drift_ppb * 1e-9
    offset = clock.offset_ns - (base[rank] - origin)
    return offset + drift * (base[rank] - clock.origin_ns), drift
