"""Show many ranks of a step below each other: in which order, and each as one lane."""

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.intervals import Intervals, union
from zprof.analysis.step_timeline.build import build_step_model, find_step_span, find_tracks
from zprof.analysis.step_timeline.lane import LaneKind, LaneRole, TimelineLane, build_cover, build_items
from zprof.model.time import MIN_BLAMED_RATIO, find_culprit
from zprof.run.reader import Run


class RankOrder(Struct, frozen=True, kw_only=True):
    """The timed ranks of a step: the culprit, its victims by wait, then the others by wait.

    ``waits_ns``: exposed wait of each victim for the culprit.
    """

    ranks: tuple[int, ...]
    culprit: int | None
    waits_ns: dict[int, int]


class RankRow(Struct, frozen=True, kw_only=True, eq=False):
    """One rank of a step as a lane of compute, copies, exposed wait and transfer.

    ``begin_ns``: start of its step on the common clock, from which the times of the lane count.
    """

    rank: int
    begin_ns: int
    lane: TimelineLane


def order_ranks(analysis: RunAnalysis, step: int) -> RankOrder:
    """Return the ranks of a step in the order in which they are worth looking at."""
    waits = {entry.rank: entry.exposed_wait_ns for entry in analysis.time.steps if entry.step == step}
    culprit = find_culprit(analysis.time, MIN_BLAMED_RATIO)
    if culprit not in waits:
        culprit = None
    victims = {} if culprit is None else _sum_waits(analysis.collectives, step, culprit)
    ranks = sorted(waits, key=lambda rank: (rank != culprit, -victims.get(rank, 0), -waits[rank], rank))
    return RankOrder(ranks=tuple(ranks), culprit=culprit, waits_ns=victims)


def _sum_waits(rows: Columns, step: int, culprit: int) -> dict[int, int]:
    """Return each rank's exposed wait in a step for the culprit, also if another rank passed its delay on."""
    is_for_culprit = (rows.ints("last_rank") == culprit) | (rows.ints("origin_rank") == culprit)
    rows = rows.at(is_for_culprit & (rows.ints("step") == step) & (rows.ints("rank") != culprit))
    waits: dict[int, int] = {}
    for rank, wait_ns in zip(
        *(rows.ints(name).tolist() for name in ("rank", "exposed_wait_ns")), strict=True
    ):
        if wait_ns > 0:
            waits[rank] = waits.get(rank, 0) + wait_ns
    return waits


def build_rank_row(run: Run, analysis: RunAnalysis, rank: int, step: int) -> RankRow:
    """Build the row of a rank.

    Raises:
        MissingData: no timing for the rank or the step.
        BadInput: the events table is damaged.
    """
    model = build_step_model(run, analysis, rank, step)
    collectives = [lane for lane in model.lanes if lane.kind is LaneKind.COLLECTIVES]
    work = [lane for lane in model.lanes if lane.kind in (LaneKind.STREAM, LaneKind.THREAD)]
    parts = {
        LaneRole.COMPUTE: _join_covers(work, LaneRole.COMPUTE),
        LaneRole.TRANSFER: _join_covers(collectives, LaneRole.TRANSFER),
        LaneRole.WAIT: _join_covers(collectives, LaneRole.WAIT),
        LaneRole.MEMCPY: _join_covers(work, LaneRole.MEMCPY),
    }
    none = np.empty(0, dtype=np.int64)
    return RankRow(
        rank=rank,
        begin_ns=find_step_span(find_tracks(analysis, rank), step)[0],
        lane=TimelineLane(
            key=f"rank {rank}",
            label=f"rank {rank}",
            title=f"rank {rank}",
            kind=LaneKind.STREAM,
            covers={role: build_cover(spans) for role, spans in parts.items() if len(spans)},
            items=build_items(none, none, none, np.empty(0, dtype=np.int8)),
            shows_idle=True,
        ),
    )


def _join_covers(lanes: list[TimelineLane], role: LaneRole) -> Intervals:
    covers = [lane.covers[role].spans for lane in lanes if role in lane.covers]
    return union(*covers) if covers else np.empty((0, 2), dtype=np.int64)
