"""The allocator's own counters, and its highest point as a check on the analysis.

The counter of the peak only grows, unless the program sets it back (``reset_peak_memory_stats``): then it
tells nothing of the window.  Where it grew between the last sample before the window and the last one within
it, the process reached its highest point in the window, and that is the truth.
"""

from collections.abc import Collection
from dataclasses import dataclass

import pandas as pd

from zprof.analysis.memory.rank.timeline import Timeline
from zprof.model.memory import AllocatorCounters

_COUNTERS = ("peak_allocated_bytes", "peak_reserved_bytes", "retries", "ooms")


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterPeak:
    """The allocator's highest point so far; ``in_window``: it was reached in the memory window."""

    bytes: int
    in_window: bool


def counters_of(rank: int, samples: pd.DataFrame, steps: Collection[int]) -> tuple[AllocatorCounters, ...]:
    """One entry for each device whose allocator counts; what is counted is counted over ``steps``."""
    samples = samples.sort_values("time_ns", kind="stable")
    counted = samples[samples[list(_COUNTERS)].notna().any(axis=1)]
    devices = sorted(set(counted["device"].astype(str)))
    return tuple(_of_device(rank, device, counted[counted["device"] == device], steps) for device in devices)


def counter_peak(samples: pd.DataFrame, device: str, window: Timeline) -> CounterPeak | None:
    """The allocator's own peak at the window's end; None where no sample tells, or somebody set it back."""
    peaks = samples[(samples["device"] == device) & samples["peak_allocated_bytes"].notna()]
    peaks = peaks.sort_values("time_ns", kind="stable")
    before = peaks[peaks["time_ns"] < window.begin_ns]["peak_allocated_bytes"]
    within = peaks[(peaks["time_ns"] >= window.begin_ns) & (peaks["time_ns"] <= window.end_ns)]
    since = pd.concat([before.iloc[-1:], within["peak_allocated_bytes"]])
    if within.empty or _went_back(since):
        return None
    highest = int(within["peak_allocated_bytes"].iloc[-1])
    return CounterPeak(bytes=highest, in_window=not before.empty and highest > int(before.iloc[-1]))


def _of_device(rank: int, device: str, rows: pd.DataFrame, steps: Collection[int]) -> AllocatorCounters:
    before = rows[rows["step"] < min(steps)] if steps else rows.iloc[:0]
    counted = pd.concat([before.iloc[-1:], rows.iloc[len(before) :]])
    return AllocatorCounters(
        rank=rank,
        device=device,
        peak_allocated_bytes=_highest(rows["peak_allocated_bytes"]),
        peak_reserved_bytes=_highest(rows["peak_reserved_bytes"]),
        retries=_grown(counted["retries"]),
        ooms=_grown(counted["ooms"]),
    )


def _highest(column: "pd.Series[int]") -> int | None:
    """The most that any sample says: a program may set the counter of a peak back."""
    known = column.dropna()
    return None if known.empty or int(known.max()) < 0 else int(known.max())


def _grown(column: "pd.Series[int]") -> int | None:
    """Last minus first.

    None where somebody set the counter back in between, and where one sample alone counts something: that
    may lie before the recording.
    """
    known = column.dropna()
    if known.empty or _went_back(known) or (len(known) == 1 and int(known.iloc[0]) != 0):
        return None
    return int(known.iloc[-1]) - int(known.iloc[0])


def _went_back(column: "pd.Series[int]") -> bool:
    return bool((column.diff().dropna() < 0).any())
