"""How far each rank had come in its program when the last rank arrived at a collective.

A rank has reached the place of a collective in its program when it launched it and, on a device, when
the compute launched before it is done.  Its progress beyond that place, at the last arrival S, is the time
from then to S in which no collective held it up; negative where it came there only later.  A rank whose
progress is less than that of the others lags behind them, wherever the collective itself had to queue.
"""

from collections.abc import Mapping

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.blame.cases import Rows
from zprof.analysis.time.blame.excess import by_rank
from zprof.analysis.time.blame.work import RankWork
from zprof.analysis.time.transfer.instances import Floats


def lag_of(rows: Rows, work: Mapping[int, RankWork]) -> Floats:
    """For each row the median progress of the other ranks minus its own; 0 where there are no others."""
    progress = np.zeros(len(rows.rank), dtype=np.int64)
    known = np.flatnonzero(rows.together)
    for rank, mine in by_rank(rows.rank[known]):
        here = known[mine]
        reached, arrival = work[rank].reached(rows.launch[here]), rows.arrival[here]
        progress[here] = _free(work[rank], reached, arrival) - _free(work[rank], arrival, reached)
    return np.nan_to_num(rows.instances.median_of_others(progress) - progress)


def _free(work: RankWork, starts: Int64s, ends: Int64s) -> Int64s:
    free: Int64s = np.maximum(0, ends - starts) - work.held_up(starts, ends)
    return free
