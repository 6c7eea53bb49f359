"""Build the timeline of one step of one rank from its events and from the analysis."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.intervals import Int64s, Intervals, clip, intervals, union
from zprof.analysis.time.event_roles import CALL_CATEGORIES, WORK_CATEGORIES, Mask
from zprof.analysis.time.ledger import RankTracks
from zprof.model.errors import MissingData
from zprof.run.reader import Run
from zprof.tui.timeline.lane import Lane, LaneKind
from zprof.tui.timeline.make_lanes import (
    ClassifiedEvents,
    ExposedTime,
    classify_events,
    make_collective_lane,
    make_phase_lane,
    make_unit_lane,
    make_work_lane,
)
from zprof.tui.timeline.step_model import StepModel

#: Limit on stream and thread lanes; the least busy ones are left out.
MAX_LANES = 24
_COLUMNS = (
    "start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation", "bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTimes:
    """Start and end of each view row since the start of the step, and whether it overlaps the step."""

    start_ns: Int64s
    end_ns: Int64s
    inside: Mask


def build(run: Run, analysis: RunAnalysis, rank: int, step: int) -> StepModel:
    """Build the timeline of one step of one rank.

    Raises:
        MissingData: the rank or the step was not timed.
        BadInput: the events table is damaged.
    """
    tracks = find_tracks(analysis, rank)
    begin, end = _find_step(tracks, step)
    table = run.table(rank, "events", _COLUMNS)
    described = run.table(rank, "collectives", ("start_ns", "end_ns", "stream"))
    found = classify_events(table, described)
    cut = _time_rows(found, tracks, begin, end)
    kept = _select_rows(found, cut)
    exposed = ExposedTime(
        waiting=clip(tracks.waiting, begin, end) - begin, moving=clip(tracks.moving, begin, end) - begin
    )
    collectives = _select_collectives(analysis, rank, begin, end)
    lanes, left_out = _make_work_lanes(found, cut, kept, exposed, end - begin)
    ran = _find_collective_spans(described, found, tracks, begin, end)
    above = [
        make_phase_lane(table, run.frame(rank, "mark"), tracks.clock, begin, end, on_device=found.on_device),
        make_unit_lane(found, cut.start_ns, cut.end_ns, cut.inside, end - begin),
        make_collective_lane(collectives, ran, exposed),
    ]
    wanted = np.zeros(table.num_rows, dtype=np.bool_)
    wanted[found.view.rows[kept]] = True
    events = table.filter(pa.array(wanted))
    return StepModel(
        rank=rank,
        step=step,
        length_ns=end - begin,
        on_device=found.on_device,
        lanes=(*(lane for lane in above if lane is not None), *lanes),
        left_out=left_out,
        gaps=union(exposed.waiting, exposed.moving),
        collectives=collectives,
        events=events,
        starts_ns=tracks.clock.common(events.column("start_ns").to_numpy()) - begin,
    )


def find_tracks(analysis: RunAnalysis, rank: int) -> RankTracks:
    """Return the analysed tracks of a rank.

    Raises:
        MissingData: the rank was not timed.
    """
    for tracks in analysis.tracks:
        if tracks.rank == rank:
            return tracks
    raise MissingData(f"rank {rank} has no time window", hint="g says why; record one: zprof record --help")


def _find_step(tracks: RankTracks, step: int) -> tuple[int, int]:
    for number, begin, end in zip(
        *(column.tolist() for column in (tracks.steps.number, tracks.steps.begin_ns, tracks.steps.end_ns)),
        strict=True,
    ):
        if number == step:
            return begin, end
    raise MissingData(f"rank {tracks.rank} did not time step {step}", hint="pick another step: t")


def _time_rows(found: ClassifiedEvents, tracks: RankTracks, begin: int, end: int) -> RowTimes:
    common = tracks.clock.common(found.view.spans)
    reaches = (common[:, 1] > begin) | (common[:, 0] >= begin)
    return RowTimes(
        start_ns=common[:, 0] - begin, end_ns=common[:, 1] - begin, inside=(common[:, 0] < end) & reaches
    )


def _select_rows(found: ClassifiedEvents, cut: RowTimes) -> Mask:
    """Return a mask of the rows in the step plus the calls that launched its device work."""
    view = found.view
    work = view.correlation[cut.inside & view.category_is(*WORK_CATEGORIES)]
    calls = view.category_is(*CALL_CATEGORIES) & np.isin(view.correlation, work[work > 0])
    return cut.inside | calls


def _select_collectives(analysis: RunAnalysis, rank: int, begin: int, end: int) -> pd.DataFrame:
    """Return this rank's collectives by start, with times since the start of the step.

    ``last_lateness_ns`` is the lateness of the last rank to arrive; ``lateness_ns`` is this rank's own.
    """
    rows = analysis.collectives
    touches = (rows["rank"] == rank) & (rows["start_ns"] < end) & (rows["end_ns"] > begin)
    mine = rows[touches].sort_values("start_ns", kind="stable").reset_index(drop=True)
    times = ["start_ns", "end_ns", "launch_start_ns", "launch_end_ns", "wait_start_ns", "wait_end_ns"]
    together = rows[rows["instance"].isin(mine["instance"])]
    latest = together.groupby("instance")["lateness_ns"].max()
    return mine.assign(
        **{name: mine[name] - begin for name in times},
        last_lateness_ns=mine["instance"].map(latest),
    )


def _find_collective_spans(
    table: pa.Table, found: ClassifiedEvents, tracks: RankTracks, begin: int, end: int
) -> Intervals:
    """Return intervals of collectives that can block this rank, also those without a step."""
    rows = table.to_pandas()
    rows = rows[rows["end_ns"] >= rows["start_ns"]]
    if found.on_device:
        rows = rows[rows["stream"].notna()]
    return clip(tracks.clock.common(intervals(rows["start_ns"], rows["end_ns"])), begin, end) - begin


def _make_work_lanes(
    found: ClassifiedEvents, cut: RowTimes, kept: Mask, exposed: ExposedTime, length_ns: int
) -> tuple[list[Lane], int]:
    """Return lanes of streams by number, then threads with the main one first; and the number left out."""
    row = np.cumsum(kept) - 1
    lanes = []
    for kind, rows in ((LaneKind.STREAM, found.on_stream), (LaneKind.THREAD, ~found.on_stream)):
        numbers = found.view.stream if kind is LaneKind.STREAM else found.view.thread
        for number in _sort_numbers(numbers[cut.inside & rows], found.main, kind):
            at = np.flatnonzero(cut.inside & rows & (numbers == number))
            lane = make_work_lane(
                kind=kind,
                number=number,
                spans=intervals(cut.start_ns[at], cut.end_ns[at]),
                row=row[at],
                kinds=found.kind[at],
                exposed=exposed,
                is_main=number == found.main,
                on_device=found.on_device,
                length_ns=length_ns,
            )
            if lane is not None:
                lanes.append(lane)
    busiest = sorted(lanes, key=lambda lane: -lane.busy_ns)[:MAX_LANES]
    return [lane for lane in lanes if lane in busiest], len(lanes) - len(busiest)


def _sort_numbers(numbers: Int64s, main: int, kind: LaneKind) -> list[int]:
    found: list[int] = np.unique(numbers).tolist()
    return sorted(found, key=lambda number: (kind is LaneKind.THREAD and number != main, number))
