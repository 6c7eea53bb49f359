"""Match collectives of different ranks, rung by rung, and check that each match is possible.

1. Group and sequence number, if stated by the program; kind, dtype and bytes must agree.
2. The order within a group, if the ranks' signatures and marked steps agree.
3. Signatures and times, if ranks lack rows or their windows differ.
4. The order on the stream, if a group's ranks are unknown.

Of the lanes with only ordered rows, complete lanes come first; their clocks are hints for the others.

Each match must be possible for some clock offsets; impossible parts are repaired or left out. A refused row
stays unmatched, and no rank is blamed for it. Unmatched collectives are reported as gaps.
"""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Groups, Mask, Texts
from zprof.analysis.intervals import NO_INTS, Int64s
from zprof.analysis.time.activity import UNKNOWN_NS
from zprof.analysis.time.clocks import (
    ClockTable,
    compute_tolerance,
    drop_first_collectives,
    estimate_drifts,
    estimate_offsets,
    find_bad_pairs,
    find_worst_ranks,
)
from zprof.analysis.time.decomposition import mark_full_syncs
from zprof.analysis.time.matching.lanes import (
    ALONE,
    MAX_CONFLICT_SHARE,
    NO_STEP,
    GroupLane,
    Hints,
    MatchRows,
    Placement,
    Rung,
    make_clock_table,
    place_by_sequence,
)
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap


class Matching(Struct, frozen=True, kw_only=True):
    """Placed lanes, and the rows on which ranks disagree."""

    placements: tuple[Placement, ...]
    conflicts: Int64s

    def tables(self, rows: MatchRows) -> list[ClockTable]:
        """Return the tables from which clocks are estimated."""
        return [make_clock_table(placement, rows) for placement in self.placements]

    @property
    def shifts(self) -> dict[int, int]:
        """Each shifted rank's largest shift."""
        largest_shifts: dict[int, int] = {}
        for placement in self.placements:
            for rank, shift in placement.shifts.items():
                largest_shifts[rank] = max(largest_shifts.get(rank, 0), shift, key=abs)
        return dict(sorted(largest_shifts.items()))

    @property
    def excluded(self) -> tuple[int, ...]:
        """Ranks that could not be matched in at least one group."""
        return tuple(sorted({rank for placement in self.placements for rank in placement.excluded}))


def match_stated(lanes: Sequence[GroupLane], rows: MatchRows, hints: Hints) -> Matching:
    """Match lanes with sequence numbers stated by the program."""
    placements, conflicts = [], []
    for lane in lanes:
        if lane.stated:
            placement, bad = place_by_sequence(lane, rows)
            if bad.all():
                from zprof.analysis.time.matching.slots import place_by_order

                placement = place_by_order(replace(lane, stated=False), rows, hints)
                bad = placement.slot == ALONE
            placements.append(repair_placement(placement, rows, hints))
            conflicts.append(lane.rows[bad])
    return Matching(placements=tuple(placements), conflicts=np.concatenate([NO_INTS, *conflicts]))


def match_ordered(
    lanes: Sequence[GroupLane], rows: MatchRows, make_hints: Callable[[Sequence[ClockTable]], Hints]
) -> list[Placement]:
    """Return the placements of lanes with only ordered rows.

    Complete lanes come first: their clocks are hints for the others, as long as this completes more lanes.

    Args:
        lanes: All lanes; stated lanes are ignored.
        rows: All rows.
        make_hints: Returns clock hints from these tables and from other knowledge.
    """
    ordered = [lane for lane in lanes if not lane.stated]
    if not ordered:
        return []
    from zprof.analysis.time.matching.slots import place_by_order

    hints = make_hints([])
    placements = [repair_placement(place_by_order(lane, rows, hints), rows, hints) for lane in ordered]
    complete = [_is_complete(placement) for placement in placements]
    progress = any(complete)
    while progress and not all(complete):
        tables = [
            make_clock_table(p, rows)
            for p, is_complete in zip(placements, complete, strict=True)
            if is_complete
        ]
        hints = make_hints(tables)
        # Prefer the placement with fewer excluded ranks, then with more rows, else the first.
        placements = [
            placement
            if is_complete
            else max(
                placement,
                repair_placement(place_by_order(placement.lane, rows, hints), rows, hints),
                key=lambda p: (-len(p.excluded), int((p.slot >= 0).sum())),
            )
            for placement, is_complete in zip(placements, complete, strict=True)
        ]
        before, complete = complete, [_is_complete(placement) for placement in placements]
        progress = complete != before
    return placements


def _is_complete(placement: Placement) -> bool:
    """Return True if each of the lane's rows has a slot."""
    return not placement.excluded and bool((placement.slot >= 0).all())


def add_instances(collectives: Columns, matching: Matching) -> Columns:
    """Add ``instance`` (equal for all rows of a match, -1 if unmatched), ``matched`` and ``rung``."""
    instance = np.full(len(collectives), ALONE, dtype=np.int64)
    rungs = tuple(Rung)
    rung = np.full(len(collectives), rungs.index(Rung.ALONE), dtype=np.int64)
    size = np.zeros(len(collectives), dtype=np.int64)
    used = 0
    for placement in matching.placements:
        placed = placement.slot >= 0
        rows = placement.lane.rows[placed]
        instance[rows] = placement.slot[placed] + used
        rung[rows] = rungs.index(placement.rung)
        size[rows] = placement.lane.size
        used += int(placement.slot.max(initial=ALONE)) + 1
    present = np.bincount(instance + 1, minlength=used + 1)[instance + 1]
    matched = (instance >= 0) & (present == size)
    return collectives.with_columns(instance=instance, matched=matched, rung=Texts(rungs, rung))


def refuse_rows(collectives: Columns, rows: Mask) -> Columns:
    """Return the collectives with these rows unmatched."""
    return collectives.with_columns(
        instance=np.where(rows, ALONE, collectives.ints("instance")),
        matched=collectives.bools("matched") & ~rows,
        rung=collectives.texts("rung").with_text(rows, Rung.ALONE),
    )


def repair_placement(placement: Placement, rows: MatchRows, hints: Hints) -> Placement:
    """Return the placement with impossible parts repaired or removed.

    Drops bad timestamps and kinds that one rank can leave early, registers shifted ranks again, and excludes
    ranks that do not match at all.
    """
    worst = _find_worst_members(placement, rows)
    if not worst.any():
        return placement
    for drop in (_drop_bad_stamps, _drop_one_sided):
        reduced = drop(placement, rows)
        if reduced is not None:
            return reduced
    if placement.lane.stated:
        repaired = _register_again(placement, rows, worst, hints)
        if repaired is not None:
            return repaired
    excluded_ranks = tuple(rank for rank, bad in zip(placement.lane.members, worst, strict=True) if bad)
    is_excluded = np.isin(rows.rank[placement.lane.rows], excluded_ranks)
    return replace(
        placement,
        slot=np.where(is_excluded, ALONE, placement.slot),
        shifts={rank: shift for rank, shift in placement.shifts.items() if rank not in excluded_ranks},
        excluded=tuple(sorted({*placement.excluded, *excluded_ranks})),
    )


def _find_worst_members(placement: Placement, rows: MatchRows) -> Mask:
    """Mark the members to remove to resolve all contradictions between ranks."""
    table = make_clock_table(placement, rows)
    if len(table.ranks) < 2 or not table.start.shape[1]:
        return np.zeros(len(table.ranks), dtype=bool)
    return find_worst_ranks(
        find_bad_pairs(drop_first_collectives(_remove_drift(table)), compute_tolerance(table))
    )


def _remove_drift(table: ClockTable) -> ClockTable:
    return table.moved(np.zeros(len(table.ranks)), np.nan_to_num(estimate_drifts(table)))


def _drop_bad_stamps(placement: Placement, rows: MatchRows) -> Placement | None:
    """Return the placement without bad instances if this resolves all contradictions, else None."""
    table = make_clock_table(placement, rows)
    # Instances that one rank leaves before another enters, on clocks estimated from all instances.
    without_drift = _remove_drift(table)
    offset = np.nan_to_num(estimate_offsets(without_drift)[0])
    moved = without_drift.moved(offset, np.zeros(len(offset)))
    first_end = np.where(moved.present, moved.end, np.inf).min(axis=0)
    last_start = np.where(moved.present, moved.start, -np.inf).max(axis=0)
    bad = table.sync & (first_end < last_start - compute_tolerance(table))
    if not bad.any() or bad.sum() > MAX_CONFLICT_SHARE * len(bad):
        return None
    slots = np.unique(placement.slot[placement.slot >= 0])[bad]
    reduced = replace(placement, slot=np.where(np.isin(placement.slot, slots), ALONE, placement.slot))
    return None if _find_worst_members(reduced, rows).any() else reduced


def _drop_one_sided(placement: Placement, rows: MatchRows) -> Placement | None:
    """Return the placement with only the kinds that nobody leaves early, if they are free of
    contradictions.
    """
    is_kept = rows.sync[placement.lane.rows] & (placement.slot >= 0)
    if not is_kept.any():
        return None
    reduced = replace(placement, slot=np.where(is_kept, placement.slot, ALONE))
    return None if _find_worst_members(reduced, rows).any() else reduced


def _register_again(placement: Placement, rows: MatchRows, worst: Mask, hints: Hints) -> Placement | None:
    """Register each bad rank again on a good rank, or on the first rank if the first two contradict each
    other.
    """
    from zprof.analysis.time.matching.registration import register_rows
    from zprof.analysis.time.matching.slots import find_largest_shift, split_by_rank

    lines, ranks = split_by_rank(placement.lane, rows), rows.rank[placement.lane.rows]
    members = [rank for rank in placement.lane.members if rank in lines]
    bad = {rank for rank, is_bad in zip(placement.lane.members, worst, strict=True) if is_bad}
    fixed = next((rank for rank in members if rank not in bad), members[0])
    slot, shifts = placement.slot.copy(), dict(placement.shifts)
    for rank in sorted(bad - {fixed}):
        partner = register_rows(lines[fixed], lines[rank], hints(fixed, rank))
        if partner is None:
            return None
        old, fixed_slots = placement.slot[ranks == rank], placement.slot[ranks == fixed]
        new = np.where(partner >= 0, fixed_slots[partner], ALONE)
        shift = find_largest_shift((new - old)[(old >= 0) & (new >= 0)])
        slot[ranks == rank] = new
        shifts |= {rank: shift} if shift else {}
    repaired = replace(placement, slot=slot, rung=Rung.SIGNATURE, shifts=shifts)
    return None if _find_worst_members(repaired, rows).any() else repaired


def refuse_impossible(
    collectives: Columns, rows: MatchRows, uncertainty_ns: int
) -> tuple[Columns, list[Gap]]:
    """Refuse matches in which a rank left before an awaited rank entered, on the common clock."""
    start, end, instance = (collectives.ints(name) for name in ("start_ns", "end_ns", "instance"))
    instances = Groups(instance)
    slack = 2 * uncertainty_ns
    is_sync = mark_full_syncs(collectives)
    is_early = is_sync & (instances.min(end) < instances.max(start) - slack)[instances.codes]
    # Matches in which a rank left before an awaited rank entered.
    source_start, sink_end = (
        instances.max(np.where(is_root, times, UNKNOWN_NS))[instances.codes]
        for is_root, times in ((rows.source == rows.rank, start), (rows.sink == rows.rank, end))
    )
    before_source = (rows.source >= 0) & (source_start != UNKNOWN_NS) & (end < source_start - slack)
    after_sink = (rows.sink >= 0) & (sink_end != UNKNOWN_NS) & (sink_end < start - slack)
    is_one_sided = instances.max(~is_sync & (before_source | after_sink))[instances.codes]
    impossible = (instance >= 0) & (is_early | is_one_sided)
    # Mark all rows of groups with more bad matches than chance explains.
    # Kinds that one rank can leave early prove nothing about other kinds, so only the kind is marked.
    countings, kinds = Groups(rows.counting), Groups(rows.counting, collectives.texts("kind"))
    syncs = np.maximum(1, countings.sum(is_sync.astype(np.int64)))
    sync_share = countings.sum((impossible & is_sync).astype(np.int64)) / syncs
    is_bad = (sync_share > MAX_CONFLICT_SHARE)[countings.codes]
    is_bad |= (kinds.mean(impossible) > MAX_CONFLICT_SHARE)[kinds.codes]
    impossible |= is_bad & (instance >= 0)
    return refuse_rows(collectives, impossible), _make_group_gaps(
        collectives, impossible, "collectives_contradict"
    )


def list_step_gaps(collectives: Columns, rows: MatchRows) -> list[Gap]:
    """Return a gap if ranks assign the same collectives to different steps.

    Args:
        collectives: The matched collectives, from ``refuse_impossible``.
        rows: The same rows.
    """
    instance = collectives.ints("instance")
    is_placed = (instance >= 0) & (rows.step != NO_STEP) & rows.sync
    instances = Groups(instance[is_placed])
    differs = instances.count_distinct(rows.step[is_placed])[instances.sizes > 1] > 1
    if not len(differs) or differs.mean() <= MAX_CONFLICT_SHARE:
        return []
    return [make_gap("steps_differ_by_rank", differing=int(differs.sum()), collectives=len(differs))]


def list_matching_gaps(
    collectives: Columns, lanes: Sequence[GroupLane], matching: Matching, ranks: Sequence[int]
) -> list[Gap]:
    """Report the unmatched collectives, one gap per reason."""
    conflict = np.zeros(len(collectives), dtype=bool)
    conflict[matching.conflicts] = True
    is_excluded = np.zeros(len(collectives), dtype=bool)
    rank = collectives.ints("rank")
    for placement in matching.placements:
        if placement.excluded:
            lane_rows = placement.lane.rows
            is_excluded[lane_rows[np.isin(rank[lane_rows], placement.excluded)]] = True
    is_ordered = np.zeros(len(collectives), dtype=bool)
    for lane in lanes:
        if not lane.stated:
            is_ordered[lane.rows] = True
    instance = collectives.ints("instance")
    unplaced = is_ordered & (instance == ALONE) & ~is_excluded
    expected = np.zeros(len(collectives), dtype=np.int64)
    for lane in lanes:
        expected[lane.rows] = len(lane.members)
    present = np.bincount(instance + 1)[instance + 1] if len(instance) else instance
    is_partial = (instance >= 0) & (present < expected)
    return [
        *_make_group_gaps(collectives, conflict, "collectives_disagree"),
        *_list_exclusion_gaps(matching),
        *_make_group_gaps(collectives, unplaced, "collectives_ambiguous"),
        *_make_group_gaps(collectives, is_partial, "collectives_partial"),
        *_list_lane_gaps(collectives, lanes, ranks),
    ]


def _make_group_gaps(collectives: Columns, rows: Mask, key: str) -> list[Gap]:
    """Return one gap with the number of collectives (not rows) and up to two group names."""
    bad = collectives.at(rows)
    if not len(bad):
        return []
    per_rank = Groups(bad.texts("group"), bad.texts("method"), bad.ints("rank"))
    names = bad.texts("group").at(per_rank.first)
    groups = Groups(names)
    count = int(groups.max(per_rank.sizes).sum())
    return [make_gap(key, count=count, groups=_format_groups(list(names.at(groups.first))))]


def _format_groups(groups: Sequence[str]) -> str:
    names = [group if len(group) <= 40 else f"{group[:36]} …" for group in groups]
    if len(names) <= 2:
        return f"group {' and '.join(names)}"
    return f"{len(names)} groups ({names[0]}; {names[1]}; …)"


def _list_exclusion_gaps(matching: Matching) -> list[Gap]:
    groups: dict[tuple[int, ...], list[str]] = {}
    for placement in matching.placements:
        if placement.excluded:
            groups.setdefault(placement.excluded, []).append(placement.lane.group)
    gaps = []
    for ranks, names in sorted(groups.items()):
        key = "ranks_not_matched" if len(ranks) <= 8 else "many_ranks_not_matched"
        gaps.append(make_gap(key, ranks=ranks, count=len(ranks), groups=_format_groups(names)))
    return gaps


def _list_lane_gaps(collectives: Columns, lanes: Sequence[GroupLane], ranks: Sequence[int]) -> list[Gap]:
    """Report rows without a group, multi-rank rows in no lane, and groups with ranks that were not loaded."""
    gaps = []
    count = sum(len(lane.rows) for lane in lanes if lane.stream)
    if count:
        gaps.append(make_gap("collectives_without_group", rows=count))
    known = np.zeros(len(collectives), dtype=bool)
    for lane in lanes:
        known[lane.rows] = True
    lost = collectives.at(~known)
    if len(lost) and len(ranks) > 1:
        groups = _format_groups(lost.texts("group").list_distinct())
        gaps.append(make_gap("groups_without_ranks", rows=len(lost), groups=groups))
    partial_groups = sorted({lane.group for lane in lanes if len(lane.members) < lane.size})
    if partial_groups:
        gaps.append(make_gap("ranks_not_loaded", groups=_format_groups(partial_groups)))
    return gaps
