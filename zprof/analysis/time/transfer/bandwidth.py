"""Sums collectives by kind, group and dtype, with the bandwidth that they reached.

Bandwidth comes from the intrinsic time T of a matched collective, last start to first end, so that
waiting for a rank does not count as a slow link:  algbw = bytes / T, busbw = algbw times the bus factor.
Medians over the window; None where T lies below the resolution of the clocks.
"""

import math

import pandas as pd

from zprof.model.collectives import CollectiveKind, bus_factor
from zprof.model.time import CollectiveTime

_SUMS = ("bytes", "total_ns", "exposed_ns", "wait_ns", "transfer_ns")


def collective_times(frame: pd.DataFrame, rank_steps: int, uncertainty_ns: int) -> tuple[CollectiveTime, ...]:
    """One entry a kind, group and dtype, the one with most exposed time first.

    Args:
        frame: Collectives of the window's steps.
        rank_steps: Steps of the window, summed over ranks.
        uncertainty_ns: Of the clocks.
    """
    frame = frame.assign(
        total_ns=frame["end_ns"] - frame["start_ns"],
        exposed_ns=frame["exposed_wait_ns"] + frame["exposed_transfer_ns"],
    )
    entries = [
        _entry(str(kind), str(group), str(dtype), rows, max(1, rank_steps), uncertainty_ns)
        for (kind, group, dtype), rows in frame.groupby(["kind", "group", "dtype"])
    ]
    return tuple(sorted(entries, key=lambda entry: (-entry.exposed_ns, entry.kind, entry.group, entry.dtype)))


def _entry(
    kind: str, group: str, dtype: str, rows: pd.DataFrame, rank_steps: int, uncertainty_ns: int
) -> CollectiveTime:
    per_step = {name: int(rows[name].sum()) // rank_steps for name in _SUMS}
    delay = (rows["start_ns"] - rows["launch_start_ns"]).dropna()
    factor = bus_factor(CollectiveKind(kind), int(rows["group_size"].iloc[0]))
    algorithm = _algorithm_bandwidth(rows, uncertainty_ns)
    return CollectiveTime(
        kind=kind,
        group=group,
        dtype=dtype,
        count=len(rows) / rank_steps,
        launch_delay_ns=int(delay.median()) if len(delay) else None,
        algbw_bytes_per_s=algorithm,
        busbw_bytes_per_s=algorithm * factor if algorithm is not None and factor > 0 else None,
        method=_method(rows),
        bytes=per_step["bytes"],
        total_ns=per_step["total_ns"],
        exposed_ns=per_step["exposed_ns"],
        wait_ns=per_step["wait_ns"],
        transfer_ns=per_step["transfer_ns"],
    )


def _algorithm_bandwidth(rows: pd.DataFrame, uncertainty_ns: int) -> float | None:
    good = rows[(rows["intrinsic_ns"] > 2 * uncertainty_ns) & (rows["bytes"] > 0) & ~rows["first_of_window"]]
    if not len(good):
        return None
    median = float((good["bytes"] / good["intrinsic_ns"]).median())
    return median * 1e9 if math.isfinite(median) else None


def _method(rows: pd.DataFrame) -> str:
    """How the rows were found, and what their waits are worth."""
    found = ", ".join(sorted(set(rows["method"])))
    matched = int(rows["matched"].sum())
    if matched == len(rows):
        return found
    if not matched:
        return f"{found}; not matched over all ranks: wait is a lower, transfer an upper bound"
    return f"{found}; {matched} of {len(rows)} matched over all ranks, of the rest bounds"
