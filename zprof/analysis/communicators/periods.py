"""Find operations in a row that took clearly longer than the others of their kind, by medians of windows."""

from itertools import pairwise

import numpy as np

from zprof.analysis.columns import Groups
from zprof.analysis.intervals import Int64s
from zprof.model.communicators import MessageClass, SlowPeriod

#: Windows have equal numbers of operations, at least so many; a level has at least so many windows.
_MAX_WINDOWS, _MIN_WINDOW, _MIN_LEVEL = 40, 5, 4
_MIN_RATIO = 1.2
#: Share of the windows of a level that may lie beyond the other level.
_OUTLIERS = 0.1


def find_slow_period(
    entry: MessageClass, transfer_ns: Int64s, size: Int64s, dumped_ns: Int64s
) -> SlowPeriod | None:
    """Return the slow period of a message class; None if there is none.

    Args:
        entry: The message class.
        transfer_ns: Shortest kernel of each of its operations, in their order.
        size: Bytes of each, which are equalized: a window of larger messages is not a slow one.
        dumped_ns: When each was written.
    """
    count = len(transfer_ns)
    windows = min(_MAX_WINDOWS, count // _MIN_WINDOW)
    if windows < 2 * _MIN_LEVEL:
        return None
    by_size = Groups(size)
    relative = transfer_ns / by_size.median(transfer_ns)[by_size.codes]
    bounds = np.linspace(0, count, windows + 1).astype(np.int64)
    medians = np.array([np.median(relative[start:end]) for start, end in pairwise(bounds.tolist())])
    best: tuple[float, int, int] | None = None
    for start in range(windows):
        for end in range(start + _MIN_LEVEL, windows + 1):
            inside, outside = medians[start:end], np.concatenate((medians[:start], medians[end:]))
            if len(outside) < _MIN_LEVEL or np.median(inside) < _MIN_RATIO * np.median(outside):
                continue
            if np.quantile(inside, _OUTLIERS) <= np.quantile(outside, 1 - _OUTLIERS):
                continue
            error = np.abs(inside - np.median(inside)).sum() + np.abs(outside - np.median(outside)).sum()
            if best is None or error < best[0]:
                best = (float(error), start, end)
    if best is None:
        return None
    _, start, end = best
    first, last = int(bounds[start]), int(bounds[end]) - 1
    is_inside = np.zeros(count, np.bool_)
    is_inside[first : last + 1] = True
    slow, usual = float(np.median(relative[is_inside])), float(np.median(relative[~is_inside]))
    scale = float(np.median(transfer_ns / relative))
    # one dump at the end of the job does not tell when an operation ran
    has_times = len(np.unique(dumped_ns)) >= windows // 2 and dumped_ns.min() > 0
    return SlowPeriod(
        communicator=entry.communicator,
        name=entry.name,
        ranks=entry.ranks,
        kind=entry.kind,
        bytes=entry.bytes,
        operations=count,
        first=first,
        last=None if end == windows else last,
        from_ns=int(dumped_ns[first]) if has_times else None,
        until_ns=int(dumped_ns[last]) if has_times and end < windows else None,
        transfer_ns=int(slow * scale),
        usual_transfer_ns=int(usual * scale),
        is_whole=entry.whole == entry.operations,
        cost_ns=int((slow - usual) * scale * int(is_inside.sum())),
    )
