"""The steps of the time window on one rank: from its ``step_begin`` to its ``step_end`` mark."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s, Intervals, intervals
from zprof.analysis.time.activity.view import Mask
from zprof.analysis.time.clocks.offsets import RankClock


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindows:
    """Numbers, begins and ends of steps, by begin."""

    number: Int64s
    begin_ns: Int64s
    end_ns: Int64s

    def __len__(self) -> int:
        return len(self.number)

    @property
    def spans(self) -> Intervals:
        """The steps as intervals."""
        return intervals(self.begin_ns, self.end_ns)

    def on(self, clock: RankClock) -> "StepWindows":
        """The same steps on the common clock."""
        return replace(self, begin_ns=clock.common(self.begin_ns), end_ns=clock.common(self.end_ns))

    def where(self, mask: Mask) -> "StepWindows":
        """Return some of the steps."""
        return StepWindows(number=self.number[mask], begin_ns=self.begin_ns[mask], end_ns=self.end_ns[mask])

    def only(self, numbers: Sequence[int]) -> "StepWindows":
        """Return the steps with these numbers."""
        return self.where(np.isin(self.number, numbers))

    def step_at(self, times_ns: Int64s) -> Int64s:
        """The step that holds each instant; -1 outside all of them."""
        if not len(self):
            return np.full(len(times_ns), -1, dtype=np.int64)
        index = np.searchsorted(self.begin_ns, times_ns, side="right") - 1
        inside = (index >= 0) & (times_ns < self.end_ns[np.maximum(index, 0)])
        return np.where(inside, self.number[np.maximum(index, 0)], -1).astype(np.int64)


def step_windows(marks: pd.DataFrame, steps: Sequence[int]) -> StepWindows:
    """Those of ``steps`` that have both marks and a length."""
    begins, ends = mark_times(marks, "step_begin"), mark_times(marks, "step_end")
    both = sorted(
        (begins[step], ends[step], step)
        for step in set(steps) & set(begins) & set(ends)
        if ends[step] > begins[step]
    )
    columns = np.array(both, dtype=np.int64).reshape(-1, 3)
    return StepWindows(number=columns[:, 2], begin_ns=columns[:, 0], end_ns=columns[:, 1])


def whole(number: int, begin_ns: int, end_ns: int) -> StepWindows:
    """One stretch as a step."""
    begin, end = np.array([begin_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64)
    return StepWindows(number=np.array([number], dtype=np.int64), begin_ns=begin, end_ns=end)


def device_windows(host: StepWindows, launched_ns: Int64s, ended_ns: Int64s) -> StepWindows:
    """Steps as a device ran them: each boundary moves behind the work that was launched before it.

    The host runs ahead of its device, so the marks of the host alone would cut a step's last kernels
    off and count them to the next.

    Args:
        host: Steps by the host's marks.
        launched_ns: When the host launched each kernel and copy.
        ended_ns: When each of them ended.
    """
    order = np.argsort(launched_ns, kind="stable")
    launched = launched_ns[order]
    ended = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ended_ns[order])))

    def moved(boundary: Int64s) -> Int64s:
        return np.maximum(boundary, ended[np.searchsorted(launched, boundary, side="left")])

    return replace(host, begin_ns=moved(host.begin_ns), end_ns=moved(host.end_ns))


def mark_times(marks: pd.DataFrame, kind: str) -> dict[int, int]:
    """Times of one kind of mark by its number."""
    chosen = marks["kind"].astype(object).to_numpy() == kind
    numbers, times = (marks[name].to_numpy()[chosen].tolist() for name in ("number", "time_ns"))
    return dict(zip(numbers, times, strict=True))
