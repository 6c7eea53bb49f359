"""Refuse matches that contradict the common clock, and report what was not matched as gaps."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from zprof.analysis.time.clocks.bounds import Bools
from zprof.analysis.time.matching.ladder import Matching, refuse_rows
from zprof.analysis.time.matching.lanes import ALONE, NO_STEP, GroupLane, MatchRows, is_full_sync
from zprof.analysis.time.matching.slots import MAX_CONFLICT_SHARE
from zprof.model.gaps import Gap, GapKind

_REMEDY = "record again; no rank is blamed for waits in these collectives"


def refuse_impossible(
    frame: pd.DataFrame, rows: MatchRows, uncertainty_ns: int
) -> tuple[pd.DataFrame, list[Gap]]:
    """Refuse matches in which, on the common clock, a rank left before a rank it waits for had entered."""
    grouped = frame.groupby("instance")
    slack = 2 * uncertainty_ns
    sync = is_full_sync(frame) & (
        grouped["end_ns"].transform("min") < grouped["start_ns"].transform("max") - slack
    )
    impossible = (frame["instance"] >= 0) & (sync | _find_one_sided(frame, rows, slack))
    # Mark all rows of groups with more bad matches than chance explains.
    # Kinds that one rank can leave early show nothing about the others: then only the kind is marked.
    sync_share = impossible.where(is_full_sync(frame)).groupby(rows.counting).transform("mean")
    kind_share = impossible.groupby([rows.counting, frame["kind"].astype(str)]).transform("mean")
    is_bad = (sync_share > MAX_CONFLICT_SHARE) | (kind_share > MAX_CONFLICT_SHARE)
    impossible |= is_bad & (frame["instance"] >= 0)
    return refuse_rows(frame, impossible), _make_group_gaps(
        frame, impossible.to_numpy(), "a rank left before another had entered"
    )


def _find_one_sided(frame: pd.DataFrame, rows: MatchRows, slack: int) -> "pd.Series[bool]":
    """Mark rows of matches in which a rank left before the rank that it waits for had entered."""
    own_rank = rows.rank
    root_start = frame["start_ns"].where(rows.source == own_rank).groupby(frame["instance"]).transform("max")
    root_end = frame["end_ns"].where(rows.sink == own_rank).groupby(frame["instance"]).transform("max")
    early = (rows.source >= 0) & (frame["end_ns"] < root_start - slack)
    late = (rows.sink >= 0) & (root_end < frame["start_ns"] - slack)
    bad: pd.Series[bool] = ~is_full_sync(frame) & (early | late)
    in_bad_match: pd.Series[bool] = bad.groupby(frame["instance"]).transform("any")
    return in_bad_match


def list_step_gaps(frame: pd.DataFrame, rows: MatchRows) -> list[Gap]:
    """Return a gap if the ranks divide the same collectives into different steps.

    Args:
        frame: The matched collectives, as of ``refuse_impossible``.
        rows: The same rows.
    """
    is_placed = (frame["instance"] >= 0).to_numpy() & (rows.step != NO_STEP) & rows.sync
    steps = pd.Series(rows.step[is_placed]).groupby(frame["instance"].to_numpy()[is_placed])
    differs = steps.nunique()[steps.size() > 1] > 1
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
    frame: pd.DataFrame, lanes: Sequence[GroupLane], matching: Matching, ranks: Sequence[int]
) -> list[Gap]:
    """List the unmatched collectives, one gap per reason."""
    conflict = np.zeros(len(frame), dtype=bool)
    conflict[matching.conflicts] = True
    is_excluded = np.zeros(len(frame), dtype=bool)
    rank = frame["rank"].to_numpy()
    for placement in matching.placements:
        if placement.excluded:
            lane_rows = placement.lane.rows
            is_excluded[lane_rows[np.isin(rank[lane_rows], placement.excluded)]] = True
    is_ordered = np.zeros(len(frame), dtype=bool)
    for lane in lanes:
        if not lane.stated:
            is_ordered[lane.rows] = True
    unplaced = is_ordered & (frame["instance"].to_numpy(dtype=np.int64) == ALONE) & ~is_excluded
    return [
        *_make_group_gaps(frame, conflict, "the ranks disagree on kind, dtype or bytes"),
        *_list_exclusion_gaps(matching),
        *_make_group_gaps(frame, unplaced, "neither order nor times identify matching calls"),
        *_make_group_gaps(
            frame, _find_partial(frame, lanes), "some ranks have no event for these collectives"
        ),
        *_list_stream_gaps(lanes),
        *_list_unknown_group_gaps(frame, lanes, ranks),
        *_list_partial_group_gaps(lanes),
    ]


def _find_partial(frame: pd.DataFrame, lanes: Sequence[GroupLane]) -> Bools:
    expected = np.zeros(len(frame), dtype=np.int64)
    for lane in lanes:
        expected[lane.rows] = len(lane.members)
    instance = frame["instance"].to_numpy()
    present = np.bincount(instance + 1)[instance + 1] if len(instance) else instance
    is_partial: Bools = (instance >= 0) & (present < expected)
    return is_partial


def _make_group_gaps(frame: pd.DataFrame, rows: Bools, reason: str) -> list[Gap]:
    """Return one gap that counts the collectives (not rows) and names up to two groups."""
    bad = frame[rows]
    if not len(bad):
        return []
    per_rank = bad.groupby(["group", "method", "rank"], sort=True).size()
    counts = per_rank.groupby(level=0).max()
    groups = _format_groups([str(group) for group in counts.index])
    return [_make_matching_gap(f"{int(counts.sum())} in {groups}: {reason}")]


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
    frame: pd.DataFrame, lanes: Sequence[GroupLane], ranks: Sequence[int]
) -> list[Gap]:
    """Report rows of multi-rank runs that are in no lane."""
    known = np.zeros(len(frame), dtype=bool)
    for lane in lanes:
        known[lane.rows] = True
    lost = frame[~known]
    if not len(lost) or len(ranks) < 2:
        return []
    groups = _format_groups([str(group) for group in lost["group"].unique()])
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
