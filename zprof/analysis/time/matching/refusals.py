"""Refuse matches that contradict the common clock, and report what was not matched as gaps."""

from collections.abc import Sequence

import numpy as np

from zprof.analysis.columns import Columns, Groups, Mask
from zprof.analysis.time.collective_rows import mark_full_syncs
from zprof.analysis.time.matching.ladder import Matching, refuse_rows
from zprof.analysis.time.matching.lanes import ALONE, NO_STEP, GroupLane, MatchRows
from zprof.analysis.time.matching.slots import MAX_CONFLICT_SHARE
from zprof.analysis.time.steps import UNKNOWN_NS
from zprof.model.gaps import Gap, GapKind

_REMEDY = "record again; no rank is blamed for waits in these collectives"


def refuse_impossible(
    collectives: Columns, rows: MatchRows, uncertainty_ns: int
) -> tuple[Columns, list[Gap]]:
    """Refuse matches in which, on the common clock, a rank left before a rank it waits for had entered."""
    start, end, instance = (collectives.ints(name) for name in ("start_ns", "end_ns", "instance"))
    instances = Groups(instance)
    slack = 2 * uncertainty_ns
    is_sync = mark_full_syncs(collectives)
    is_early = is_sync & (instances.min(end) < instances.max(start) - slack)[instances.codes]
    impossible = (instance >= 0) & (is_early | _find_one_sided(collectives, rows, instances, slack))
    # Mark all rows of groups with more bad matches than chance explains.
    # Kinds that one rank can leave early show nothing about the others: then only the kind is marked.
    countings, kinds = Groups(rows.counting), Groups(rows.counting, collectives.texts("kind"))
    syncs = np.maximum(1, countings.sum(is_sync.astype(np.int64)))
    sync_share = countings.sum((impossible & is_sync).astype(np.int64)) / syncs
    is_bad = (sync_share > MAX_CONFLICT_SHARE)[countings.codes]
    is_bad |= (kinds.mean(impossible) > MAX_CONFLICT_SHARE)[kinds.codes]
    impossible |= is_bad & (instance >= 0)
    return refuse_rows(collectives, impossible), _make_group_gaps(
        collectives, impossible, "a rank left before another had entered"
    )


def _find_one_sided(collectives: Columns, rows: MatchRows, instances: Groups, slack: int) -> Mask:
    """Mark rows of matches in which a rank left before the rank that it waits for had entered."""
    start, end = collectives.ints("start_ns"), collectives.ints("end_ns")
    source_start, sink_end = (
        instances.max(np.where(is_root, times, UNKNOWN_NS))[instances.codes]
        for is_root, times in ((rows.source == rows.rank, start), (rows.sink == rows.rank, end))
    )
    early = (rows.source >= 0) & (source_start != UNKNOWN_NS) & (end < source_start - slack)
    late = (rows.sink >= 0) & (sink_end != UNKNOWN_NS) & (sink_end < start - slack)
    is_bad = ~mark_full_syncs(collectives) & (early | late)
    return instances.max(is_bad)[instances.codes]


def list_step_gaps(collectives: Columns, rows: MatchRows) -> list[Gap]:
    """Return a gap if the ranks divide the same collectives into different steps.

    Args:
        collectives: The matched collectives, as of ``refuse_impossible``.
        rows: The same rows.
    """
    instance = collectives.ints("instance")
    is_placed = (instance >= 0) & (rows.step != NO_STEP) & rows.sync
    instances = Groups(instance[is_placed])
    differs = instances.count_distinct(rows.step[is_placed])[instances.sizes > 1] > 1
    if not len(differs) or differs.mean() <= MAX_CONFLICT_SHARE:
        return []
    return [
        Gap(
            kind=GapKind.STEP_BOUNDARIES,
            what="steps of the ranks",
            reason=f"{int(differs.sum())} of {len(differs)} collectives are in different steps on different "
            "ranks",
            remedy="mark the steps in the same place on every rank, and record again",
        )
    ]


def list_matching_gaps(
    collectives: Columns, lanes: Sequence[GroupLane], matching: Matching, ranks: Sequence[int]
) -> list[Gap]:
    """List the unmatched collectives, one gap per reason."""
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
    unplaced = is_ordered & (collectives.ints("instance") == ALONE) & ~is_excluded
    return [
        *_make_group_gaps(collectives, conflict, "the ranks disagree on kind, dtype or bytes"),
        *_list_exclusion_gaps(matching),
        *_make_group_gaps(collectives, unplaced, "neither order nor times identify matching calls"),
        *_make_group_gaps(
            collectives, _find_partial(collectives, lanes), "some ranks have no event for these collectives"
        ),
        *_list_stream_gaps(lanes),
        *_list_unknown_group_gaps(collectives, lanes, ranks),
        *_list_partial_group_gaps(lanes),
    ]


def _find_partial(collectives: Columns, lanes: Sequence[GroupLane]) -> Mask:
    expected = np.zeros(len(collectives), dtype=np.int64)
    for lane in lanes:
        expected[lane.rows] = len(lane.members)
    instance = collectives.ints("instance")
    present = np.bincount(instance + 1)[instance + 1] if len(instance) else instance
    is_partial: Mask = (instance >= 0) & (present < expected)
    return is_partial


def _make_group_gaps(collectives: Columns, rows: Mask, reason: str) -> list[Gap]:
    """Return one gap that counts the collectives (not rows) and names up to two groups."""
    bad = collectives.at(rows)
    if not len(bad):
        return []
    per_rank = Groups(bad.texts("group"), bad.texts("method"), bad.ints("rank"))
    names = bad.texts("group").at(per_rank.first)
    groups = Groups(names)
    count = int(groups.max(per_rank.sizes).sum())
    return [_make_matching_gap(f"{count} in {_format_groups(list(names.at(groups.first)))}: {reason}")]


def _format_groups(groups: Sequence[str]) -> str:
    names = [group if len(group) <= 40 else f"{group[:36]} …" for group in groups]
    if len(names) <= 2:
        return f"group {' and '.join(names)}"
    return f"{len(names)} groups ({names[0]}; {names[1]}; …)"


def _make_matching_gap(reason: str) -> Gap:
    return Gap(kind=GapKind.MATCHING, what="matching of collectives", reason=reason, remedy=_REMEDY)


def _list_exclusion_gaps(matching: Matching) -> list[Gap]:
    groups: dict[tuple[int, ...], list[str]] = {}
    for placement in matching.placements:
        if placement.excluded:
            groups.setdefault(placement.excluded, []).append(placement.lane.group)
    return [
        _make_matching_gap(
            f"rank {_format_ranks(ranks)} in {_format_groups(names)}: its collectives do not match "
            "those of the other ranks at any shift"
        )
        for ranks, names in sorted(groups.items())
    ]


def _format_ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return shown if len(ranks) <= 8 else f"{shown} … ({len(ranks)} ranks)"


def _list_stream_gaps(lanes: Sequence[GroupLane]) -> list[Gap]:
    count = sum(len(lane.rows) for lane in lanes if lane.stream)
    if not count:
        return []
    reason = f"{count} rows have no group: each rank has one stream of them, which was treated as one group"
    return [
        Gap(
            kind=GapKind.MATCHING,
            what="matching of collectives",
            reason=reason,
            remedy="record with a newer PyTorch",
        )
    ]


def _list_unknown_group_gaps(
    collectives: Columns, lanes: Sequence[GroupLane], ranks: Sequence[int]
) -> list[Gap]:
    """Report rows of multi-rank runs that are in no lane."""
    known = np.zeros(len(collectives), dtype=bool)
    for lane in lanes:
        known[lane.rows] = True
    lost = collectives.at(~known)
    if not len(lost) or len(ranks) < 2:
        return []
    groups = _format_groups(lost.texts("group").list_distinct())
    reason = f"{len(lost)} rows of {groups} do not record the participating ranks and were not matched"
    return [
        Gap(
            kind=GapKind.MATCHING,
            what="matching of collectives",
            reason=reason,
            remedy="record with a newer PyTorch",
        )
    ]


def _list_partial_group_gaps(lanes: Sequence[GroupLane]) -> list[Gap]:
    """Report groups with ranks that are not loaded."""
    partial_groups = sorted({lane.group for lane in lanes if len(lane.members) < lane.size})
    if not partial_groups:
        return []
    return [
        Gap(
            kind=GapKind.MATCHING,
            what="wait and transfer",
            reason=(
                f"not all ranks of {_format_groups(partial_groups)} are loaded: waits are lower bounds, "
                "transfers upper bounds"
            ),
            remedy="load all ranks of the run",
        )
    ]
