"""Build the timeline of one step of one rank from its events and from the analysis."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.intervals import Int64s, Intervals, clip, intervals, union
from zprof.analysis.step_timeline.lane import LaneKind, TimelineLane
from zprof.analysis.step_timeline.make_lanes import (
    ClassifiedEvents,
    ExposedTime,
    classify_events,
    make_collective_lane,
    make_phase_lane,
    make_unit_lane,
    make_work_lane,
)
from zprof.analysis.step_timeline.step_model import StepTimeline
from zprof.analysis.time.event_roles import CALL_CATEGORIES, WORK_CATEGORIES, Mask
from zprof.analysis.time.ledger import RankTracks
from zprof.model.errors import MissingData
from zprof.run.reader import Run

#: Maximum stream and thread lanes; the least busy are dropped.
MAX_LANES = 24
#: Ranks or steps that an error lists.
_MAX_LISTED = 12
_COLUMNS = (
    "start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation", "bytes",
)  # fmt: skip


class RowTimes(Struct, frozen=True, kw_only=True, eq=False):
    """Start and end of each row, relative to the step's start, and a mask of rows that overlap the step."""

    start_ns: Int64s
    end_ns: Int64s
    inside: Mask


def build_step_model(run: Run, analysis: RunAnalysis, rank: int, step: int) -> StepTimeline:
    """Build the timeline of one step of one rank.

    Raises:
        MissingData: no timing for the rank or the step.
        BadInput: the events table is damaged.
    """
    tracks = find_tracks(analysis, rank)
    begin, end = _find_step_span(tracks, step)
    table = run.table(rank, "events", _COLUMNS)
    collective_rows = run.table(rank, "collectives", ("start_ns", "end_ns", "stream"))
    classified = classify_events(table, collective_rows)
    row_times = _time_rows(classified, tracks, begin, end)
    selected_rows = _select_rows(classified, row_times)
    exposed = ExposedTime(
        waiting=clip(tracks.waiting, begin, end) - begin, moving=clip(tracks.moving, begin, end) - begin
    )
    collectives = _select_collectives(analysis, rank, begin, end)
    lanes, omitted_lanes = _make_work_lanes(classified, row_times, selected_rows, exposed, end - begin)
    collective_spans = _find_collective_spans(collective_rows, classified, tracks, begin, end)
    summary_lanes = [
        make_phase_lane(
            table, run.frame(rank, "mark"), tracks.clock, begin, end, on_device=classified.on_device
        ),
        make_unit_lane(classified, row_times.start_ns, row_times.end_ns, row_times.inside, end - begin),
        make_collective_lane(collectives, collective_spans, exposed),
    ]
    row_mask = np.zeros(table.num_rows, dtype=np.bool_)
    row_mask[classified.view.rows[selected_rows]] = True
    events = table.filter(pa.array(row_mask))
    return StepTimeline(
        rank=rank,
        step=step,
        length_ns=end - begin,
        on_device=classified.on_device,
        lanes=(*(lane for lane in summary_lanes if lane is not None), *lanes),
        omitted_lanes=omitted_lanes,
        gaps=union(exposed.waiting, exposed.moving),
        collectives=collectives,
        events=events,
        starts_ns=tracks.clock.common(events.column("start_ns").to_numpy()) - begin,
    )


def find_tracks(analysis: RunAnalysis, rank: int) -> RankTracks:
    """Return the analysed tracks of a rank.

    Raises:
        MissingData: no timing for the rank.
    """
    for tracks in analysis.tracks:
        if tracks.rank == rank:
            return tracks
    timed = [tracks.rank for tracks in analysis.tracks]
    raise MissingData(f"no timing was recorded for rank {rank}", hint=_list_known("timed ranks", timed))


def _find_step_span(tracks: RankTracks, step: int) -> tuple[int, int]:
    for number, begin, end in zip(
        *(column.tolist() for column in (tracks.steps.number, tracks.steps.begin_ns, tracks.steps.end_ns)),
        strict=True,
    ):
        if number == step:
            return begin, end
    raise MissingData(
        f"rank {tracks.rank} has no timing for step {step}",
        hint=_list_known("timed steps", tracks.steps.number.tolist()),
    )


def _list_known(noun: str, numbers: Sequence[int]) -> str:
    """Return the numbers that could be asked for, or where to look if there are none."""
    shown = ", ".join(map(str, numbers[:_MAX_LISTED]))
    if not shown:
        return "the gaps of the report say why"
    return f"{noun}: {shown}{', …' if len(numbers) > _MAX_LISTED else ''}"


def _time_rows(classified: ClassifiedEvents, tracks: RankTracks, begin: int, end: int) -> RowTimes:
    common = tracks.clock.common(classified.view.spans)
    ends_inside = (common[:, 1] > begin) | (common[:, 0] >= begin)
    return RowTimes(
        start_ns=common[:, 0] - begin, end_ns=common[:, 1] - begin, inside=(common[:, 0] < end) & ends_inside
    )


def _select_rows(classified: ClassifiedEvents, row_times: RowTimes) -> Mask:
    """Return a mask of the rows in the step plus the calls that launched its device work."""
    view = classified.view
    work = view.correlation[row_times.inside & view.match_categories(*WORK_CATEGORIES)]
    calls = view.match_categories(*CALL_CATEGORIES) & np.isin(view.correlation, work[work > 0])
    return row_times.inside | calls


def _select_collectives(analysis: RunAnalysis, rank: int, begin: int, end: int) -> pd.DataFrame:
    """Return this rank's collectives, sorted by start, with times relative to the step.

    ``last_lateness_ns`` is the lateness of the last rank to arrive; ``lateness_ns`` is this rank's own.
    """
    rows = analysis.collectives
    overlaps = (rows["rank"] == rank) & (rows["start_ns"] < end) & (rows["end_ns"] > begin)
    collectives = rows[overlaps].sort_values("start_ns", kind="stable").reset_index(drop=True)
    times = ["start_ns", "end_ns", "launch_start_ns", "launch_end_ns", "wait_start_ns", "wait_end_ns"]
    all_ranks = rows[rows["instance"].isin(collectives["instance"])]
    latest = all_ranks.groupby("instance")["lateness_ns"].max()
    return collectives.assign(
        **{name: collectives[name] - begin for name in times},
        last_lateness_ns=collectives["instance"].map(latest),
    )


def _find_collective_spans(
    table: pa.Table, classified: ClassifiedEvents, tracks: RankTracks, begin: int, end: int
) -> Intervals:
    """Return intervals of collectives that can block this rank, including collectives outside any step."""
    rows = table.to_pandas()
    rows = rows[rows["end_ns"] >= rows["start_ns"]]
    if classified.on_device:
        rows = rows[rows["stream"].notna()]
    return clip(tracks.clock.common(intervals(rows["start_ns"], rows["end_ns"])), begin, end) - begin


def _make_work_lanes(
    classified: ClassifiedEvents,
    row_times: RowTimes,
    selected_rows: Mask,
    exposed: ExposedTime,
    length_ns: int,
) -> tuple[list[TimelineLane], int]:
    """Return stream lanes by number, then thread lanes (main first), and the number of dropped lanes."""
    row_index = np.cumsum(selected_rows) - 1
    lanes = []
    for kind, rows in ((LaneKind.STREAM, classified.on_stream), (LaneKind.THREAD, ~classified.on_stream)):
        numbers = classified.view.stream if kind is LaneKind.STREAM else classified.view.thread
        for number in _sort_lane_numbers(numbers[row_times.inside & rows], classified.main, kind):
            rows_of_lane = np.flatnonzero(row_times.inside & rows & (numbers == number))
            lane = make_work_lane(
                kind=kind,
                number=number,
                spans=intervals(row_times.start_ns[rows_of_lane], row_times.end_ns[rows_of_lane]),
                row=row_index[rows_of_lane],
                kinds=classified.kind[rows_of_lane],
                exposed=exposed,
                is_main=number == classified.main,
                on_device=classified.on_device,
                length_ns=length_ns,
            )
            if lane is not None:
                lanes.append(lane)
    busiest = sorted(lanes, key=lambda lane: -lane.busy_ns)[:MAX_LANES]
    return [lane for lane in lanes if lane in busiest], len(lanes) - len(busiest)


def _sort_lane_numbers(numbers: Int64s, main: int, kind: LaneKind) -> list[int]:
    distinct: list[int] = np.unique(numbers).tolist()
    return sorted(distinct, key=lambda number: (kind is LaneKind.THREAD and number != main, number))
