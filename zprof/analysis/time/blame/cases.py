"""Collectives in which one rank surely came last: for each of them it is asked why.

Not judged are the first collective of a window (the profilers did not start at once), those of which a rank
is missing, and those that were refused.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.transfer.arrival import UNKNOWN_RANK
from zprof.analysis.time.transfer.instances import Floats, Instances, Mask, RowFinder
from zprof.analysis.time.transfer.texts import codes_of
from zprof.model.collectives import FULL_SYNC


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Columns of the collectives of all ranks as arrays, and how rows go together.

    ``late``: the start minus the median start of the other ranks, NaN where there are none.
    """

    instances: Instances
    finder: RowFinder
    instance: Int64s
    rank: Int64s
    group: Int64s
    start: Int64s
    late: Floats
    arrival: Int64s
    launch: Int64s
    launch_known: Mask
    computed: Int64s
    previous: Int64s
    previous_instance: Int64s
    wait: Int64s
    exposed_wait: Int64s
    together: Mask
    judged: Mask
    blamed: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """One entry a collective with a blamed rank.

    ``late_ns``: its start minus the median start of the others.  ``row``: its row.
    ``of_row``: the case of each row of the table, -1 without one.
    """

    instance: Int64s
    blamed: Int64s
    row: Int64s
    start: Int64s
    late_ns: Floats
    of_row: Int64s

    def __len__(self) -> int:
        return len(self.instance)


def rows_of(frame: pd.DataFrame) -> Rows:
    """Arrays of a table of collectives, with a verdict on each row."""
    instance, rank = _whole(frame, "instance"), _whole(frame, "rank")
    instances = Instances(instance)
    start = _whole(frame, "start_ns")
    base = start.min(initial=np.iinfo(np.int64).max)
    first = frame["first_of_window"].to_numpy(np.bool_)
    first = instances.spread(instances.reduce(np.logical_or, first), first)
    judged = (instance >= 0) & ~first & ~frame["bound"].to_numpy(np.bool_)
    judged &= _whole(frame, "group_size") != 1
    return Rows(
        instances=instances,
        finder=RowFinder(instance, rank),
        instance=instance,
        rank=rank,
        group=codes_of(frame["group"])[0],
        start=start,
        late=(start - base) - instances.median_of_others(start - base),
        arrival=_whole(frame, "arrival_ns"),
        launch=_whole(frame, "launch_ns"),
        launch_known=frame["launch_start_ns"].notna().to_numpy(np.bool_),
        computed=_whole(frame, "computed_ns"),
        previous=_whole(frame, "previous_ns"),
        previous_instance=_whole(frame, "previous_instance"),
        wait=_whole(frame, "wait_ns"),
        exposed_wait=_whole(frame, "exposed_wait_ns"),
        together=frame["kind"].isin([str(kind) for kind in FULL_SYNC]).to_numpy(np.bool_) & (instance >= 0),
        judged=judged,
        blamed=np.where(judged, _whole(frame, "last_rank"), UNKNOWN_RANK),
    )


def cases_of(rows: Rows) -> Cases:
    """The collectives that have a blamed rank whose own row is there."""
    blamed = rows.instances.reduce(np.maximum, rows.blamed)
    row = rows.finder.find(rows.instances.ids, blamed)
    chosen = np.flatnonzero(row >= 0)
    of_instance = np.full(len(rows.instances.ids), -1, dtype=np.int64)
    of_instance[chosen] = np.arange(len(chosen))
    of_row = rows.instances.spread(of_instance, np.full(len(rows.rank), -1, dtype=np.int64))
    return Cases(
        instance=rows.instances.ids[chosen],
        blamed=blamed[chosen],
        row=row[chosen],
        start=rows.start[row[chosen]],
        late_ns=np.nan_to_num(rows.late[row[chosen]]),
        of_row=of_row,
    )


def _whole(frame: pd.DataFrame, column: str) -> Int64s:
    return frame[column].to_numpy(np.int64)
