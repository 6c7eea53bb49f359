"""The allocator's own counters, and its highest point as a check on the analysis.

The counter of the peak only ever grows.  Where it grew between the last sample before the window and the
last one within it, the process reached its highest point in the window, and that is the truth.
"""

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


def counters_of(rank: int, samples: pd.DataFrame) -> tuple[AllocatorCounters, ...]:
    """One entry for each device whose allocator counts."""
    samples = samples.sort_values("time_ns", kind="stable")
    counted = samples[samples[list(_COUNTERS)].notna().any(axis=1)]
    devices = sorted(set(counted["device"].astype(str)))
    return tuple(_of_device(rank, device, counted[counted["device"] == device]) for device in devices)


def counter_peak(samples: pd.DataFrame, device: str, window: Timeline) -> CounterPeak | None:
    """The allocator's own peak at the window's end; None where no sample tells."""
    peaks = samples[(samples["device"] == device) & samples["peak_allocated_bytes"].notna()]
    peaks = peaks.sort_values("time_ns", kind="stable")
    before = peaks[peaks["time_ns"] < window.begin_ns]["peak_allocated_bytes"]
    within = peaks[(peaks["time_ns"] >= window.begin_ns) & (peaks["time_ns"] <= window.end_ns)]
    if within.empty:
        return None
    highest = int(within["peak_allocated_bytes"].iloc[-1])
    return CounterPeak(bytes=highest, in_window=not before.empty and highest > int(before.iloc[-1]))


def _of_device(rank: int, device: str, rows: pd.DataFrame) -> AllocatorCounters:
    return AllocatorCounters(
        rank=rank,
        device=device,
        peak_allocated_bytes=_last(rows["peak_allocated_bytes"]),
        peak_reserved_bytes=_last(rows["peak_reserved_bytes"]),
        retries=_grown(rows["retries"]),
        ooms=_grown(rows["ooms"]),
    )


def _last(column: "pd.Series[int]") -> int | None:
    known = column.dropna()
    return None if known.empty or int(known.iloc[-1]) < 0 else int(known.iloc[-1])


def _grown(column: "pd.Series[int]") -> int | None:
    """What was counted within the recording: last minus first, or the one sample that there is.

    None where the counter went back: somebody set it to zero in between.
    """
    known = column.dropna()
    if known.empty:
        return None
    grown = int(known.iloc[-1]) - (int(known.iloc[0]) if len(known) > 1 else 0)
    return grown if grown >= 0 else None
