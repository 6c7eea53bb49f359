"""Matches the collectives of all ranks, checks that the match can be, and brings the clocks together.

The three belong together: the check needs no clocks (no rank leaves before another has entered, whatever
the offsets), the clocks need matched collectives, and what then still contradicts is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.time.activity.timeline import RankTimeline
from zprof.analysis.time.clocks.alignment import Stamps, align, stamps
from zprof.analysis.time.clocks.offsets import Clocks
from zprof.analysis.time.matching.ladder import is_full_sync, match, refuse, refuse_impossible
from zprof.model.gaps import Gap

#: Columns that hold times of the rank's clock.
TIMES = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns", "wait_start_ns", "wait_end_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronised:
    """All collectives on the common clock, and the clocks.

    ``collectives`` has ``instance`` (equal on all rows of a match, -1 where there is none) and ``matched``
    (all ranks of the group are in it).  ``shifts`` and ``excluded``: how the match was repaired.
    """

    collectives: pd.DataFrame
    clocks: Clocks
    shifts: Mapping[int, int]
    excluded: tuple[int, ...]
    gaps: tuple[Gap, ...]


def synchronise(collectives: pd.DataFrame, timelines: Sequence[RankTimeline]) -> Synchronised:
    """Put the collectives of ``timelines`` on one clock.

    Args:
        collectives: Rows of all ranks with a ``rank`` column, each on its rank's clock.
        timelines: The ranks that are loaded.
    """
    frame, match_gaps = match(collectives, [timeline.rank for timeline in timelines])
    hosts = {timeline.rank: timeline.host for timeline in timelines}
    clocks, clock_gaps = align(hosts, {t.rank: t.pings for t in timelines}, _stamps(frame))
    frame = _on_common_clock(frame, clocks)
    frame, impossible = refuse_impossible(frame, clocks.uncertainty_ns)
    return Synchronised(
        collectives=frame,
        clocks=clocks,
        shifts={},
        excluded=(),
        gaps=(*match_gaps, *clock_gaps, *impossible),
    )


def _stamps(frame: pd.DataFrame) -> dict[int, Stamps]:
    usable = frame[(frame["instance"] >= 0) & is_full_sync(frame)]
    return {
        int(str(rank)): stamps(rows["instance"].tolist(), rows["start_ns"].tolist(), rows["end_ns"].tolist())
        for rank, rows in usable.groupby("rank")
    }


def _on_common_clock(frame: pd.DataFrame, clocks: Clocks) -> pd.DataFrame:
    """Shift everything; matches with a rank whose clock is unknown are refused."""
    unknown = frame.loc[~frame["rank"].isin(list(clocks.of_rank)), "instance"].unique()
    frame = refuse(frame, frame["instance"].isin(unknown))
    offset = frame["rank"].map({rank: clock.offset_ns for rank, clock in clocks.of_rank.items()})
    shift = offset.fillna(0).astype(np.int64)
    return frame.assign(**{column: frame[column] - shift for column in TIMES})
