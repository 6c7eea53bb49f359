"""How long the host of a rank took from one launch of a collective to the next, waits for others aside.

Hosts run ahead of their devices, so a rank that comes last need not be slow: it may have started late and
kept that distance ever since.  Whose own pace differs shows in the program, piece by piece:

    host_ns of a launch = launch - the launch before it - waits for the device while that waited for others

A host that only waits for its own device does so at its own pace (a rank that alone reads scalars back).
"""

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Intervals, covered, intersect, union
from zprof.analysis.time.host.calls import HostCalls

#: Column of the table of collectives.
HOST_NS = "host_ns"


def with_host_pace(
    rows: pd.DataFrame, calls: HostCalls, held_up: Intervals, window_begin_ns: int
) -> pd.DataFrame:
    """Add ``host_ns``, null where the launch is not known.

    Args:
        rows: Collectives of one rank in the steps of its window.
        calls: What its host did.
        held_up: When its device was held up by a collective.
        window_begin_ns: From here on the first launch counts.
    """
    launch = rows["launch_start_ns"].astype("Int64")
    known = np.flatnonzero(launch.notna().to_numpy(bool))
    times = launch.iloc[known].to_numpy(np.int64)
    order = np.argsort(times, kind="stable")
    until = times[order]
    since = np.concatenate(([window_begin_ns], until))[:-1]
    waits = intersect(union(calls.sync, calls.allocator), held_up)
    pieces = np.maximum(0, until - since) - covered(waits, since, np.maximum(since, until))
    values = np.zeros(len(rows), dtype=np.int64)
    values[known[order]] = pieces
    return rows.assign(**{HOST_NS: pd.arrays.IntegerArray(values, launch.isna().to_numpy(bool))})
