"""Where a GPU's memory is, without a history: from the allocator's counters at step boundaries.

    reserved = live + rounding + awaiting free + split + wholly free segments

at a boundary: requested, allocated - requested, active - allocated, inactive split, reserved - active - split
(``torch.cuda.memory_stats``).  A boundary is shown as the reserved peak only if the reserved memory was as
high as it ever was.  Private pools are within split and free segments there.
"""

from typing import Any

import pandas as pd

from zprof.analysis.memory.blocks.identity import RESERVED_PEAK, with_outside
from zprof.analysis.memory.blocks.outside import Outside
from zprof.model.memory import DeviceMemory
from zprof.model.tenants import Tenant

_COUNTERS = ["requested_bytes", "allocated_bytes", "active_bytes", "split_bytes", "reserved_bytes"]


def reserved_peak_row(samples: pd.DataFrame, device: str) -> "pd.Series[Any] | None":
    """The boundary at which the allocator held as much as it ever did; of several, the one with most live."""
    rows = samples[samples["device"].astype(str) == device]
    rows = rows[rows[[*_COUNTERS, "peak_reserved_bytes"]].notna().all(axis=1)]
    if rows.empty:
        return None
    highest = rows[rows["reserved_bytes"] == rows["peak_reserved_bytes"].max()]
    return None if highest.empty else highest.loc[highest["requested_bytes"].idxmax()]


def coarse_identity(
    rank: int, device: str, row: "pd.Series[Any]", tenants: dict[Tenant, int], outside: Outside
) -> DeviceMemory | None:
    """The leaf of that boundary; None where its counters contradict each other."""
    live, allocated, active, split, reserved = (int(row[column]) for column in _COUNTERS)
    rounding, awaiting, free = allocated - live, active - allocated, reserved - active - split
    if min(live, rounding, awaiting, split, free) < 0:
        return None
    leaf = DeviceMemory(
        rank=rank,
        device=device,
        moment=RESERVED_PEAK,
        live_bytes=live,
        tenants=tenants,
        rounding_bytes=rounding,
        awaiting_free_bytes=awaiting,
        split_bytes=split,
        free_segments_bytes=free,
        reserved_bytes=reserved,
    )
    return with_outside(leaf, outside)


def reserved_around(samples: pd.DataFrame, device: str, time_ns: int) -> int | None:
    """Reserved bytes at a moment between two boundaries that agree about it; else None.

    They agree where both read the same, no allocation had to be retried in between (that gives cached
    memory back), and it never was higher.
    """
    rows = samples[(samples["device"].astype(str) == device) & samples["reserved_bytes"].notna()]
    rows = rows.sort_values("time_ns", kind="stable")
    before, after = rows[rows["time_ns"] <= time_ns], rows[rows["time_ns"] >= time_ns]
    if before.empty or after.empty:
        return None
    left, right = before.iloc[-1], after.iloc[0]
    same = all(_same(left[column], right[column]) for column in ("reserved_bytes", "retries"))
    highest = _same(right["reserved_bytes"], right["peak_reserved_bytes"])
    return int(right["reserved_bytes"]) if same and highest else None


def _same(left: Any, right: Any) -> bool:
    return bool(pd.notna(left) and pd.notna(right) and int(left) == int(right))
