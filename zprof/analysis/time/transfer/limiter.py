"""Where a rate limiter holds the host back before a gather, and what its device then does without.

FSDP1 lets the host block until gathered memory is free again (an event of the device), and only then launches
the next all_gather; a range stands around that, ``FullyShardedDataParallel.rate_limiter``.  The host has run
out of lead then: what it launches after the hold h reaches a device that is done.

    idle_h = from max(begin of h, end of the compute before, end of the last all_gather) to the next compute

and 0 where the device still computes when the host goes on.  The time is idle in the ledger, or exposed
transfer where a reduction runs meanwhile that would else have run beside compute.
"""

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s, Intervals
from zprof.analysis.time.activity.events import Activity
from zprof.analysis.time.activity.steps import StepWindows
from zprof.model.collectives import CollectiveKind

#: A row a hold.
LIMITER_COLUMNS = ("rank", "step", "start_ns", "end_ns", "idle_ns")
#: A limiter that finds its event done returns within microseconds: it held nothing back.
_HELD_NS = 50_000
_NEVER = np.iinfo(np.int64).min


def limiter_rows(
    rank: int, limiter: Intervals, activity: Activity, steps: StepWindows, frame: pd.DataFrame
) -> pd.DataFrame:
    """A row for each hold of a rank in a step, all on the common clock; columns are ``LIMITER_COLUMNS``.

    Args:
        rank: The rank.
        limiter: When its host was in the limiter, disjoint.
        activity: What it did; a rank without a device gives no row, for there the host computes itself.
        steps: Its steps by the host's marks.
        frame: Its collectives.
    """
    holds = limiter[limiter[:, 1] - limiter[:, 0] >= _HELD_NS]
    in_step = steps.step_at(holds[:, 0])
    keep = (in_step >= 0) & activity.on_device
    gathers = frame[frame["kind"].astype(str) == CollectiveKind.ALL_GATHER]
    gathered = np.sort(gathers["end_ns"].to_numpy(np.int64))
    return pd.DataFrame(
        {
            "rank": np.full(int(keep.sum()), rank, dtype=np.int64),
            "step": in_step[keep],
            "start_ns": holds[keep, 0],
            "end_ns": holds[keep, 1],
            "idle_ns": _idle_after(holds[keep], activity.compute, gathered),
        }
    )


def _idle_after(holds: Intervals, compute: Intervals, gathered: Int64s) -> Int64s:
    """What the device does not compute because of each hold; an instant counts once."""
    if not len(holds) or not len(compute):
        return np.zeros(len(holds), dtype=np.int64)
    begin, end = holds.T
    following = np.searchsorted(compute[:, 0], end, side="left")
    until = np.append(compute[:, 0], _NEVER)[following]
    done = np.where(following > 0, compute[np.maximum(following - 1, 0), 1], begin)
    last = np.searchsorted(gathered, until, side="right") - 1
    arrived = np.where(last >= 0, np.append(gathered, 0)[np.maximum(last, 0)], begin)
    counted = np.concatenate(([_NEVER], np.maximum.accumulate(until)[:-1]))
    since = np.maximum(np.maximum(begin, done), np.maximum(arrived, counted))
    dry = (done <= end) & (following < len(compute))
    idle: Int64s = np.where(dry, np.maximum(until, since) - since, 0).astype(np.int64)
    return idle
