"""Matches the collectives of all ranks, checks that the match can be, and brings the clocks together.

The three belong together: the check needs no clocks (no rank leaves before another has entered, whatever
the offsets), the clocks need matched collectives, and what then still contradicts is refused.  Groups whose
sequence is stated come first: the clocks that they and the pings give help to match the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.activity.timeline import RankTimeline
from zprof.analysis.time.clocks.alignment import Source, align
from zprof.analysis.time.clocks.offsets import Clocks
from zprof.analysis.time.clocks.table import Table, ping_table
from zprof.analysis.time.matching.hints import hints_from
from zprof.analysis.time.matching.ladder import joined, match_ordered, match_stated, refuse, with_instances
from zprof.analysis.time.matching.lanes import lanes_of
from zprof.analysis.time.matching.refusals import gaps_of, refuse_impossible
from zprof.analysis.time.matching.rows import bases, rows_of
from zprof.model.gaps import Gap

#: Columns that hold times of the rank's clock.
TIMES = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns", "wait_start_ns", "wait_end_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronised:
    """All collectives on the common clock, and the clocks.

    ``collectives`` has ``instance`` (equal on all rows of a match, -1 where there is none), ``matched`` (all
    ranks of the group are in it) and ``rung`` (how it was matched).  ``shifts`` and ``excluded``: how the
    match was repaired.
    """

    collectives: pd.DataFrame
    clocks: Clocks
    shifts: Mapping[int, int]
    excluded: tuple[int, ...]
    gaps: tuple[Gap, ...]


def synchronise(
    collectives: pd.DataFrame, timelines: Sequence[RankTimeline], world_size: int | None = None
) -> Synchronised:
    """Put the collectives of ``timelines`` on one clock.

    Args:
        collectives: Rows of all ranks with a ``rank`` column, each on its rank's clock.
        timelines: The ranks that are loaded.
        world_size: Ranks of the job, where that is known.
    """
    ranks = sorted(timeline.rank for timeline in timelines)
    hosts = {timeline.rank: timeline.host for timeline in timelines}
    base = bases(collectives, timelines)
    rows = rows_of(collectives, timelines, base)
    lanes = lanes_of(collectives, rows, ranks, world_size)
    pings = ping_table({timeline.rank: timeline.pings for timeline in timelines}, base)
    matching = match_stated(lanes, rows, hints_from(hosts, base, _sources(pings, [])))
    ordered = match_ordered(lanes, rows, hints_from(hosts, base, _sources(pings, matching.tables(rows))))
    matching = joined(matching, ordered)
    clocks, clock_gaps = align(hosts, base, _sources(pings, matching.tables(rows)))
    frame = with_instances(collectives, matching)
    gaps = gaps_of(frame, lanes, matching, ranks)
    frame = _on_common_clock(frame, clocks)
    frame, impossible = refuse_impossible(frame, rows, clocks.uncertainty_ns)
    return Synchronised(
        collectives=frame,
        clocks=clocks,
        shifts=matching.shifts,
        excluded=matching.excluded,
        gaps=(*gaps, *clock_gaps, *impossible),
    )


def _sources(pings: Table, tables: Sequence[Table]) -> list[Source]:
    found = [Source(name="collectives", sharpness=1, table=table) for table in tables]
    return [Source(name="clock pings", sharpness=0, table=pings), *found] if pings.ranks else found


def _on_common_clock(frame: pd.DataFrame, clocks: Clocks) -> pd.DataFrame:
    """Shift everything; matches with a rank whose clock is unknown are refused."""
    unknown = frame.loc[~frame["rank"].isin(list(clocks.of_rank)), "instance"].unique()
    frame = refuse(frame, frame["instance"].isin(unknown))
    places = {int(str(rank)): np.asarray(where) for rank, where in frame.groupby("rank").indices.items()}
    return frame.assign(**{column: _moved(frame[column], places, clocks) for column in TIMES})


def _moved(times: pd.Series, places: Mapping[int, Int64s], clocks: Clocks) -> pd.Series:
    local = times.fillna(0).to_numpy(dtype=np.int64)
    shift = np.zeros(len(local), dtype=np.int64)
    for rank, rows in places.items():
        shift[rows] = local[rows] - clocks.of(rank).common(local[rows])
    return times - shift
