"""How large the messages are: counts, exposed time and bandwidth by size, in powers of 4 from 1 KiB on."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from zprof.analysis.time.transfer.bandwidth import MOVED, algorithm_bandwidth, bus_bandwidth, exposed_ns
from zprof.analysis.time.transfer.members import Steps
from zprof.analysis.time.transfer.texts import grouped
from zprof.model.time import MessageSizes

_COLUMNS = (*MOVED, "rank", "exposed_wait_ns", "exposed_transfer_ns")
#: 0, 1 KiB, 4 KiB, ... 4 EiB: every int64 falls below the last.
_EDGES = np.array([0, *(1 << exponent for exponent in range(10, 63, 2))], dtype=np.int64)


def message_sizes(frame: pd.DataFrame, steps: Steps) -> tuple[MessageSizes, ...]:
    """One entry a kind, group and size that occurs, by kind, group and size."""
    entries = [
        _entry(kind, group, bar, rows, steps.over(group, rows))
        for (kind, group), of_both in grouped(frame, ("kind", "group"), _COLUMNS)
        for bar, rows in _bars(of_both)
    ]
    return tuple(sorted(entries, key=lambda entry: (entry.kind, entry.group, entry.at_least_bytes)))


def _bars(frame: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    size = frame["bytes"].to_numpy(np.int64)
    bar = np.searchsorted(_EDGES, np.maximum(size, 0), side="right") - 1
    for number in np.unique(bar).tolist():
        yield number, frame[bar == number]


def _entry(kind: str, group: str, bar: int, rows: pd.DataFrame, rank_steps: int) -> MessageSizes:
    last = bar + 1 == len(_EDGES)
    return MessageSizes(
        kind=kind,
        group=group,
        at_least_bytes=int(_EDGES[bar]),
        below_bytes=np.iinfo(np.int64).max if last else int(_EDGES[bar + 1]),
        count=len(rows) / rank_steps,
        exposed_ns=exposed_ns(rows) // rank_steps,
        busbw_bytes_per_s=bus_bandwidth(rows, kind, algorithm_bandwidth(rows)),
    )
