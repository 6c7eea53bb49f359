"""How long an all_gather was ready to start and stood behind kernels of the unit that was computing.

    ready = max(launch, end of the collective before, end of copies, end of what earlier units computed)
    blocked = end of the kernel at which it started - ready

A gather of parameters needs nothing that the unit computes which runs at its launch; it may have to wait for
memory, which an earlier unit frees, and for copies of what was gathered before.  Where it starts just when
a kernel of that unit ends, it stood behind it: the kernels filled the device, or one queue held both.
Which unit computes is known where the host's ranges mark its passes.
"""

import numpy as np
import pandas as pd

from zprof.analysis.time.activity.named import NamedWork
from zprof.analysis.time.transfer.launch import NEVER, Launch, latest_end
from zprof.model.collectives import CollectiveKind

#: A kernel that waits for an event, or for room on the device, starts within this after it has it.
_START_NS = 50_000


def blocked_ns(frame: pd.DataFrame, launch: Launch, named: NamedWork) -> "pd.Series[int]":
    """For each row of a rank; 0 where nothing blocked it, null where that cannot be known."""
    start = frame["start_ns"].to_numpy(np.int64)
    known = launch.known & (frame["kind"] == CollectiveKind.ALL_GATHER.value).to_numpy(bool)
    place = np.searchsorted(named.passes, launch.launch_ns, side="right")
    known &= place > 0
    began = np.concatenate(([NEVER], named.passes))[place]
    earlier = latest_end(began, start, named.times, named.stream)
    copied = latest_end(launch.launch_ns, start, named.times[named.copies], named.stream[named.copies])
    own = latest_end(launch.launch_ns, start, named.times[~named.copies], named.stream[~named.copies])
    ready = np.maximum.reduce([launch.launch_ns, launch.previous_ns, earlier, copied])
    stood = (own > ready) & (start - own <= _START_NS)
    blocked = pd.arrays.IntegerArray(np.where(stood, own - ready, 0), ~known)
    return pd.Series(blocked, index=frame.index)
