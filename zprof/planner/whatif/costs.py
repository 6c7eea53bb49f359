"""What launching, picking up and waking cost a run per message, and whether kinds share a link."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.time.transfer.texts import codes_of

#: A thread whose wait begins so soon before the end of its message does not sleep.
_AT_ONCE_NS = 20_000
_WAKES_NS = 30_000
#: Share of the messages' time in which two kinds run at once, from which on each has a link of its own.
_BESIDE_RATIO = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Per message, in nanoseconds.

    ``launch_ns``: of the thread, by kind.  ``pick_up_ns``: from the launch to the start on an idle link;
    ``queue_ns``: from the end of one message to the start of the next in line.  ``wake_ns``: from the end
    to the thread that waited.  ``lanes``: each kind has a link of its own.
    """

    launch_ns: dict[str, float]
    pick_up_ns: float
    queue_ns: float
    wake_ns: float
    lanes: bool


def costs_of(rows: pd.DataFrame, *, device: bool) -> Costs:
    """Medians over all messages."""
    launch, start, end = (
        rows[name].astype("float64").to_numpy() for name in ("launch_end_ns", "start_ns", "end_ns")
    )
    before, lanes = _ends_before(rows)
    idle = ~np.isnan(launch) & (before < launch)
    queued = ~np.isnan(launch) & (before >= launch)
    wait, woken = (rows[name].astype("float64").to_numpy() for name in ("wait_start_ns", "wait_end_ns"))
    slept = ~np.isnan(wait) & (wait < end - _AT_ONCE_NS)
    calls = (rows["launch_end_ns"] - rows["launch_start_ns"]).astype("float64")
    each = calls.groupby(rows["kind"]).median().fillna(0.0)
    return Costs(
        launch_ns={str(kind): 0.0 if device else float(ns) for kind, ns in each.items()},
        pick_up_ns=0.0 if device else _median((start - launch)[idle]),
        queue_ns=0.0 if device else _median((start - before)[queued]),
        wake_ns=_median((woken - end)[slept], 0.0 if device else _WAKES_NS),
        lanes=lanes,
    )


def _median(values: "np.ndarray[tuple[int], np.dtype[np.float64]]", otherwise: float = 0.0) -> float:
    return max(0.0, float(np.median(values))) if len(values) else otherwise


def _ends_before(rows: pd.DataFrame) -> tuple["np.ndarray[tuple[int], np.dtype[np.float64]]", bool]:
    """The end of the message before each on its rank, and whether kinds run beside each other."""
    before = np.full(len(rows), -np.inf)
    rank, kind = rows["rank"].to_numpy(np.int64), codes_of(rows["kind"])[0]
    start, end = rows["start_ns"].to_numpy(np.float64), rows["end_ns"].to_numpy(np.float64)
    beside = total = 0.0
    for one in np.unique(rank):
        mine = np.flatnonzero(rank == one)
        mine = mine[np.argsort(start[mine], kind="stable")]
        reached = np.maximum.accumulate(end[mine])
        before[mine[1:]] = reached[:-1]
        over = np.maximum(0.0, np.minimum(reached[:-1], end[mine[1:]]) - start[mine[1:]])
        beside += float(over[kind[mine[1:]] != kind[mine[:-1]]].sum())
        total += float((end[mine] - start[mine]).sum())
    return before, beside > _BESIDE_RATIO * max(1.0, total)
