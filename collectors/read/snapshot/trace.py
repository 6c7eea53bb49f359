"""Read the entries of one device's trace as columns (TraceEntry of torch's CUDACachingAllocator).

In alloc, free_requested and free_completed, ``size`` is always the requested size, not the rounded block
size. An ``oom`` entry has ``device_free`` instead of ``addr``; a ``snapshot`` entry has neither. torch's
timestamps have microsecond resolution, so many events share one; here each event has a distinct time, at
least a nanosecond after the previous one, so that sorting by time keeps their order.
"""

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from msgspec import Struct

from zprof.collectors.read.snapshot.columns import (
    Budget,
    Integers,
    Row,
    check_sizes,
    check_total,
    make_damaged_error,
    read_column,
    read_integers,
    read_rows,
    read_texts,
    to_integers,
)

#: Maximum time that fits into 64 bits as nanoseconds, with headroom for events that share a timestamp.
_MAX_TIME_US = 9_000_000_000_000_000
_NS_PER_US = 1000


class TraceAction(IntEnum):
    """Kind of an entry."""

    UNKNOWN = 0
    ALLOC = 1
    FREE_REQUESTED = 2
    FREE_COMPLETED = 3
    SEGMENT_ALLOC = 4
    SEGMENT_FREE = 5
    SEGMENT_MAP = 6
    SEGMENT_UNMAP = 7
    OOM = 8
    SNAPSHOT = 9
    ANNOTATE = 10
    IGNORED = 11


_OWN_CODES = (TraceAction.UNKNOWN, TraceAction.IGNORED)
_CODES = {action.name.lower(): int(action) for action in TraceAction if action not in _OWN_CODES} | {
    # entries that some builds of torch add, and that say nothing about memory
    "user_defined": int(TraceAction.ANNOTATE),
    "internal_metadata": int(TraceAction.IGNORED),
    "workspace_snapshot": int(TraceAction.IGNORED),
}
_HAS_ADDRESS = np.array([TraceAction.UNKNOWN < action < TraceAction.OOM for action in TraceAction])
_HAS_SIZE = np.array([TraceAction.UNKNOWN < action <= TraceAction.SNAPSHOT for action in TraceAction])


class DeviceTrace(Struct, frozen=True, kw_only=True):
    """Columns of the entries, in ring-buffer order, and the entries themselves.

    ``max_backstep_ns`` is the largest backward jump of the clock; ``unknown`` counts entries by unknown
    action.
    """

    rows: Sequence[Row]
    action: Integers
    address: Integers
    size: Integers
    stream: Integers
    time_ns: Integers
    max_backstep_ns: int
    has_times: bool
    unknown: dict[str, int]

    def has_action(self, action: TraceAction) -> bool:
        """Return True if there is an entry of this kind."""
        return bool((self.action == action).any())


def read_device_trace(value: object, where: str, budget: Budget) -> DeviceTrace:
    """Return one device's trace.

    Raises:
        BadInput: an entry does not have torch's format.
    """
    rows = read_rows(value, where, budget)
    names = read_texts(rows, "action", where)
    codes = {text: _CODES.get(text, int(TraceAction.UNKNOWN)) for text in set(names)}
    action = np.fromiter(map(codes.__getitem__, names), dtype=np.int64, count=len(names))
    address = read_integers(rows, "addr", where, default=-1)
    if (address[_HAS_ADDRESS[action]] < 0).any():
        raise make_damaged_error(f"{where}: addr is missing or negative")
    values = read_column(rows, "time_us")
    has_times = None not in values
    times = np.arange(1, len(rows) + 1, dtype=np.int64)
    if has_times:
        times = check_sizes(to_integers(values, "time_us", where), "time_us", where)
    time_ns, max_backstep_ns = _make_times_distinct(times, where)
    sizes = read_integers(rows, "size", where, default=-1)
    if (sizes[_HAS_SIZE[action]] < 0).any():
        raise make_damaged_error(f"{where}: size is missing or negative")
    check_total(np.maximum(sizes, 0), where)
    return DeviceTrace(
        rows=rows,
        action=action,
        address=address,
        size=sizes,
        stream=read_integers(rows, "stream", where, default=0),
        time_ns=time_ns,
        max_backstep_ns=max_backstep_ns,
        has_times=has_times,
        unknown=dict(Counter(text for text in names if text not in _CODES)) if (action == 0).any() else {},
    )


def _make_times_distinct(times_us: Integers, where: str) -> tuple[Integers, int]:
    """Return strictly increasing times in ns, and the largest backward jump in ns."""
    if not times_us.size:
        return times_us, 0
    if times_us.max() > _MAX_TIME_US:
        raise make_damaged_error(f"{where}: time_us is out of range")
    ticks = np.maximum(times_us * _NS_PER_US, 1)
    max_backstep_ns = int((np.maximum.accumulate(ticks) - ticks).max())
    order = np.arange(len(ticks), dtype=np.int64)
    return np.maximum.accumulate(ticks - order) + order, max_backstep_ns
