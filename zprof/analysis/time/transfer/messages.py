"""How large the messages are: counts, exposed time and bandwidth by size, in powers of 4 from 1 KiB on."""

import numpy as np
import pandas as pd

from zprof.analysis.time.transfer.bandwidth import algorithm_bandwidth, bus_bandwidth
from zprof.analysis.time.transfer.members import Steps
from zprof.model.time import MessageSizes

#: 0, 1 KiB, 4 KiB, ... 4 EiB: every int64 falls below the last.
_EDGES = np.array([0, *(1 << exponent for exponent in range(10, 63, 2))], dtype=np.int64)


def message_sizes(frame: pd.DataFrame, steps: Steps) -> tuple[MessageSizes, ...]:
    """One entry a kind, group and size that occurs, by kind, group and size."""
    size = frame["bytes"].to_numpy(np.int64)
    bar = np.searchsorted(_EDGES, np.maximum(size, 0), side="right") - 1
    frame = frame.assign(bar=bar)
    return tuple(
        _entry(str(kind), str(group), int(str(bar)), rows, steps.over(str(group), rows))
        for (kind, group, bar), rows in frame.groupby(["kind", "group", "bar"])
    )


def _entry(kind: str, group: str, bar: int, rows: pd.DataFrame, rank_steps: int) -> MessageSizes:
    exposed = rows["exposed_wait_ns"] + rows["exposed_transfer_ns"]
    last = bar + 1 == len(_EDGES)
    return MessageSizes(
        kind=kind,
        group=group,
        at_least_bytes=int(_EDGES[bar]),
        below_bytes=np.iinfo(np.int64).max if last else int(_EDGES[bar + 1]),
        count=len(rows) / rank_steps,
        exposed_ns=int(exposed.sum()) // rank_steps,
        busbw_bytes_per_s=bus_bandwidth(rows, kind, algorithm_bandwidth(rows)),
    )
