"""When a rank is blocked by communication, and by which method that is known.

A device is blocked by a collective wherever it does not compute.  A CPU rank is blocked in the wait spans of
its main thread.  Where nothing recorded the waits, holes between operators longer than 300 µs stand for
them: an upper bound, for the host may also have been busy with Python or with nothing.  A collective that
ends within a wait was waited for, also where the wait does not say for which.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, covered, intersect, intervals, subtract, union
from zprof.analysis.time.activity.claims import NOTHING_NS, first_start_first
from zprof.analysis.time.activity.events import Activity
from zprof.analysis.time.activity.steps import StepWindows
from zprof.analysis.time.activity.waits import awaited_by_compute
from zprof.model.gaps import Gap

KERNELS = "kernels"
WAIT_SPANS = "wait spans"
UPPER_BOUND = "aten gap upper bound"
MIXED = "wait spans, and aten gaps as upper bound where no wait was recorded"
LEAST_HOLE_NS = 300_000
#: Collectives without a recorded wait that are not worth an upper bound: one in flight at each end.
_FEW = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """``blocked``: when the rank is blocked.  ``unexplained``: blocked, but no known collective ran.

    A row a collective, in their order: ``running`` is when it can block the rank (empty for one of the host
    on a rank that computes on a device), ``awaited`` when the rank is known to wait for just this one.
    """

    blocked: Intervals
    unexplained: Intervals
    method: str
    running: Intervals
    awaited: Intervals


def find_blocking(
    rank: int, activity: Activity, steps: StepWindows, collectives: pd.DataFrame
) -> tuple[Blocking, list[Gap]]:
    """Blocked time of one rank in its steps."""
    if activity.on_device:
        return _on_device(activity, steps, collectives), []
    inside = collectives[steps.step_at(collectives["start_ns"].to_numpy(dtype=np.int64)) >= 0]
    silent = inside[inside["wait_start_ns"].isna()]
    open_waits = activity.anonymous_waits[~_is_known(activity.anonymous_waits, inside)]
    some = _count(activity.waits, steps) > 0 or not len(silent)
    if some and len(silent) - _count(open_waits, steps) <= max(_FEW, len(inside) // 10):
        return _from_waits(activity, collectives, EMPTY, WAIT_SPANS), []
    holes = _holes(activity, steps)
    if not some:
        return _from_waits(activity, collectives, holes, UPPER_BOUND), [_no_waits(rank)]
    unseen = silent[~_ends_within(activity.waits, silent)]
    behind = intersect(holes, _spans(unseen))
    if not len(behind):
        return _from_waits(activity, collectives, EMPTY, WAIT_SPANS), []
    return _from_waits(activity, collectives, behind, MIXED), [_some_waits(rank, len(unseen))]


def _on_device(activity: Activity, steps: StepWindows, collectives: pd.DataFrame) -> Blocking:
    start = _times(collectives, "start_ns", None)
    end = np.where(collectives["stream"].notna(), collectives["end_ns"].to_numpy(dtype=np.int64), start)
    running = intervals(start, end)
    launched = _times(collectives, "launch_start_ns", NOTHING_NS)
    return Blocking(
        blocked=subtract(steps.spans, activity.compute),
        unexplained=subtract(activity.nameless, running),
        method=KERNELS,
        running=running,
        awaited=awaited_by_compute(running, launched, activity.compute, activity.awaits_until),
    )


def _from_waits(activity: Activity, collectives: pd.DataFrame, holes: Intervals, method: str) -> Blocking:
    ran = _spans(collectives)
    waits = activity.waits
    explained = _is_known(waits, collectives) | (covered(ran, waits[:, 0], waits[:, 1]) > 0)
    return Blocking(
        blocked=union(waits, holes),
        unexplained=waits[~explained],
        method=method,
        running=ran,
        awaited=_awaited_by_thread(collectives),
    )


def _awaited_by_thread(collectives: pd.DataFrame) -> Intervals:
    wait_start, wait_end = (_times(collectives, name, 0) for name in ("wait_start_ns", "wait_end_ns"))
    start, end = _spans(collectives).T
    return first_start_first(np.maximum(start, wait_start), np.minimum(end, wait_end))


def _times(collectives: pd.DataFrame, name: str, missing: int | None) -> Int64s:
    column = collectives[name] if missing is None else collectives[name].fillna(missing)
    return column.to_numpy(dtype=np.int64)


def _is_known(waits: Intervals, collectives: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which waits begin as that of a collective does."""
    return np.isin(waits[:, 0], collectives["wait_start_ns"].dropna().to_numpy(dtype=np.int64))


def _ends_within(waits: Intervals, collectives: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which collectives end in a wait, which goes on until they do."""
    merged = union(waits)
    end = collectives["end_ns"].to_numpy(dtype=np.int64)
    index = np.searchsorted(merged[:, 0], end, side="right") - 1
    inside: npt.NDArray[np.bool_] = (index >= 0) & (end <= merged[np.maximum(index, 0), 1])
    return inside


def _count(waits: Intervals, steps: StepWindows) -> int:
    """Waits that touch a step."""
    return len(intersect(waits, steps.spans))


def _holes(activity: Activity, steps: StepWindows) -> Intervals:
    within = intersect(steps.spans, activity.coverage)
    holes = subtract(within, union(activity.compute, activity.waits, activity.copies))
    return holes[holes[:, 1] - holes[:, 0] > LEAST_HOLE_NS]


def _spans(collectives: pd.DataFrame) -> Intervals:
    return intervals(collectives["start_ns"], collectives["end_ns"])


def _no_waits(rank: int) -> Gap:
    return Gap(
        what="exposed time",
        rank=rank,
        reason="no wait for a collective was recorded: holes between operators stand for it, an upper bound",
        remedy="an engine can write ::wait ranges (docs/recording.md); those of DDP stay unseen",
    )


def _some_waits(rank: int, count: int) -> Gap:
    return Gap(
        what="exposed time",
        rank=rank,
        reason=f"{count} collectives have no recorded wait (C++ waits for them): upper bound",
        remedy="write ::wait ranges (docs/recording.md)",
    )
