"""Splits each collective into waiting for the last rank and moving bytes.

With S the latest start of the ranks that rank i waits for (:mod:`...arrival`), on the common clock:

    wait_i = max(0, min(S, e_i) - s_i)      transfer_i = e_i - max(S, s_i), at least 0
    tail_i = max_j e_j - e_i                T = min_i (e_i - max(S, s_i)) over the ranks that wait

and wait + transfer = duration.  The intrinsic time T is, where all wait for all, the first end minus the
last start: the most that network work can have taken.  Where ranks are missing S is only known from
below, so a wait is a lower and a transfer an upper bound.
"""

import numpy as np
import pandas as pd

from zprof.analysis.time.clocks.offsets import Clocks
from zprof.analysis.time.transfer.arrival import UNKNOWN_RANK, arrivals
from zprof.analysis.time.transfer.instances import Floats, Instances
from zprof.model.collectives import FULL_SYNC

__all__ = ["UNKNOWN_RANK", "decompose"]


def decompose(frame: pd.DataFrame, clocks: Clocks) -> pd.DataFrame:
    """Add what the ranks of a collective tell of one another.

    arrival_ns (S), wait_ns, transfer_ns, bound, lateness_ns (to the first rank), last_rank (-1 where ranks
    are missing, and where the last two are tied), doubt_ns (twice the clocks' uncertainty), and, NaN where
    unknown, tail_ns and intrinsic_ns.
    """
    instances = Instances(frame["instance"].to_numpy(np.int64))
    seen = arrivals(frame, clocks, instances)
    start, end = frame["start_ns"].to_numpy(np.int64), frame["end_ns"].to_numpy(np.int64)
    wait = (np.minimum(seen.arrival_ns, end) - start).clip(min=0)
    together = frame["kind"].isin([str(kind) for kind in FULL_SYNC]).to_numpy(bool)
    together &= frame["instance"].to_numpy(np.int64) >= 0
    first = instances.spread(instances.reduce(np.minimum, start), start)
    last_end = instances.spread(instances.reduce(np.maximum, end), end)
    moved = np.where(seen.waits, (end - seen.arrival_ns).astype(np.float64), np.nan)
    return frame.assign(
        arrival_ns=seen.arrival_ns,
        wait_ns=wait,
        transfer_ns=end - start - wait,
        bound=seen.bound,
        lateness_ns=np.where(together, start - first, 0),
        last_rank=seen.last_rank,
        doubt_ns=seen.doubt_ns,
        tail_ns=np.where(together, (last_end - end).astype(np.float64), np.nan),
        intrinsic_ns=_least(instances, moved),
    )


def _least(instances: Instances, values: Floats) -> Floats:
    """The least known value of each instance, on all of its rows."""
    return instances.spread(instances.reduce(np.fmin, values), np.full(len(values), np.nan))
