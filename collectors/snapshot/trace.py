"""The entries of one device's trace as columns (TraceEntry of torch's CUDACachingAllocator).

``size`` is what the program asked for, not the rounded block, in alloc, free_requested and free_completed
alike.  An ``oom`` entry has ``device_free`` in place of ``addr``.  A ``snapshot`` entry has neither.
Torch's clock ticks in microseconds and many events share a tick; here each event has a time of its own,
later than the one before it by a nanosecond at least, so that sorting by time keeps their order.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from zprof.collectors.snapshot.fields import (
    Budget,
    Integers,
    Row,
    check_sum,
    column,
    damaged,
    integers,
    rows_of,
    sizes,
    words,
)

#: Latest time that fits into nanoseconds of 64 bits, with room for the events that share a tick.
_LAST_US = 9_000_000_000_000_000
_NS_PER_US = 1000


class Action(IntEnum):
    """What an entry says."""

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


_CODES = {action.name.lower(): int(action) for action in Action if action is not Action.UNKNOWN}
_ADDRESSED = np.array([Action.UNKNOWN < action < Action.OOM for action in Action])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Columns of the entries, in the order of the ring, and the entries themselves.

    ``backwards_ns`` is by how much the clock ran back at worst, ``unknown`` counts unknown actions.
    """

    rows: Sequence[Row]
    action: Integers
    address: Integers
    size: Integers
    stream: Integers
    time_ns: Integers
    backwards_ns: int
    timed: bool
    unknown: dict[str, int]

    def has(self, action: Action) -> bool:
        """Whether any entry says that."""
        return bool((self.action == action).any())


def trace_of(value: object, where: str, budget: Budget) -> Trace:
    """One device's trace.

    Raises:
        BadInput: an entry is not as torch writes it.
    """
    rows = rows_of(value, where, budget)
    names = words(rows, "action", where)
    action = np.array([_CODES.get(text, 0) for text in names], dtype=np.int64)
    address = integers(rows, "addr", where, default=-1)
    if (address[_ADDRESSED[action]] < 0).any():
        raise damaged(f"{where}: addr is missing or negative")
    timed = None not in column(rows, "time_us")
    times = sizes(rows, "time_us", where) if timed else np.arange(1, len(rows) + 1, dtype=np.int64)
    time_ns, backwards_ns = _distinct(times, where)
    return Trace(
        rows=rows,
        action=action,
        address=address,
        size=_sizes(rows, action, where),
        stream=integers(rows, "stream", where, default=0),
        time_ns=time_ns,
        backwards_ns=backwards_ns,
        timed=timed,
        unknown=dict(Counter(text for text in names if text not in _CODES)) if (action == 0).any() else {},
    )


def _sizes(rows: Sequence[Row], action: Integers, where: str) -> Integers:
    found = integers(rows, "size", where, default=-1)
    if (found[action != Action.UNKNOWN] < 0).any():
        raise damaged(f"{where}: size is missing or negative")
    check_sum(np.maximum(found, 0), where)
    return found


def _distinct(times_us: Integers, where: str) -> tuple[Integers, int]:
    """Strictly rising nanoseconds, and how far the clock ran back."""
    if not times_us.size:
        return times_us, 0
    if times_us.max() > _LAST_US:
        raise damaged(f"{where}: time_us is beyond any clock")
    ticks = np.maximum(times_us * _NS_PER_US, 1)
    backwards = int((np.maximum.accumulate(ticks) - ticks).max())
    order = np.arange(len(ticks), dtype=np.int64)
    return np.maximum.accumulate(ticks - order) + order, backwards
