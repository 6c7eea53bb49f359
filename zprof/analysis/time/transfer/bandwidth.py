"""Sums collectives by kind, group and dtype, with the bandwidth that they reached.

Bandwidth comes from the intrinsic time T of a matched collective, last start to first end, so that
waiting for a rank does not count as a slow link:  algbw = bytes / T, busbw = algbw times the bus factor.
Medians over the window without its first collectives; None where T lies below the resolution of the clocks.
"""

import math

import pandas as pd

from zprof.analysis.time.transfer.members import Steps
from zprof.analysis.time.transfer.texts import grouped
from zprof.model.collectives import CollectiveKind, bus_factor
from zprof.model.time import CollectiveTime

#: What a bandwidth comes from.
MOVED = ("bytes", "intrinsic_ns", "doubt_ns", "first_of_window", "group_size")
_EXPOSED = ("exposed_wait_ns", "exposed_transfer_ns")
_COLUMNS = (
    *MOVED, *_EXPOSED, "rank", "method", "matched", "bound", "start_ns", "end_ns", "launch_start_ns",
    "wait_ns", "transfer_ns", "dependency_ns", "tail_ns",
)  # fmt: skip


def collective_times(frame: pd.DataFrame, steps: Steps) -> tuple[CollectiveTime, ...]:
    """One entry a kind, group and dtype, the one with most exposed time first.

    Args:
        frame: Collectives of the window's steps.
        steps: Steps of the window by rank.
    """
    entries = [
        _entry(kind, group, dtype, rows, steps.over(group, rows))
        for (kind, group, dtype), rows in grouped(frame, ("kind", "group", "dtype"), _COLUMNS)
    ]
    return tuple(sorted(entries, key=lambda entry: (-entry.exposed_ns, entry.kind, entry.group, entry.dtype)))


def resolved(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose intrinsic time says something: the clocks resolve it, and no profiler start is in it."""
    good = (rows["intrinsic_ns"] > rows["doubt_ns"]) & ~rows["first_of_window"]
    return rows[good]


def algorithm_bandwidth(rows: pd.DataFrame) -> float | None:
    """Bytes a second, the median of the resolved rows; None without one."""
    good = resolved(rows)
    good = good[good["bytes"] > 0]
    if not len(good):
        return None
    median = float((good["bytes"] / good["intrinsic_ns"]).median())
    return median * 1e9 if math.isfinite(median) else None


def bus_bandwidth(rows: pd.DataFrame, kind: str, algorithm: float | None) -> float | None:
    """The bus bandwidth of rows of one kind and group."""
    factor = bus_factor(CollectiveKind(kind), int(rows["group_size"].iloc[0]))
    return algorithm * factor if algorithm is not None and factor > 0 else None


def _entry(kind: str, group: str, dtype: str, rows: pd.DataFrame, rank_steps: int) -> CollectiveTime:
    algorithm = algorithm_bandwidth(rows)
    steady = rows[~rows["first_of_window"]]
    return CollectiveTime(
        kind=kind,
        group=group,
        dtype=dtype,
        count=len(rows) / rank_steps,
        launch_delay_ns=_median(rows["start_ns"] - rows["launch_start_ns"]),
        algbw_bytes_per_s=algorithm,
        busbw_bytes_per_s=bus_bandwidth(rows, kind, algorithm),
        method=_method(kind, rows),
        group_size=int(rows["group_size"].iloc[0]),
        bound=bool(rows["bound"].any()),
        dependency_ns=_median(rows["dependency_ns"]),
        tail_ns=_median(steady["tail_ns"]),
        intrinsic_ns=_median(resolved(rows)["intrinsic_ns"]),
        bytes=int(rows["bytes"].sum()) // rank_steps,
        total_ns=int((rows["end_ns"] - rows["start_ns"]).sum()) // rank_steps,
        exposed_ns=exposed_ns(rows) // rank_steps,
        exposed_wait_ns=int(rows["exposed_wait_ns"].sum()) // rank_steps,
        exposed_transfer_ns=int(rows["exposed_transfer_ns"].sum()) // rank_steps,
        wait_ns=int(rows["wait_ns"].sum()) // rank_steps,
        transfer_ns=int(rows["transfer_ns"].sum()) // rank_steps,
    )


def exposed_ns(rows: pd.DataFrame) -> int:
    """All exposed time of the rows."""
    return int(sum(rows[name].sum() for name in _EXPOSED))


def _median(values: "pd.Series[float]") -> int | None:
    known = values.dropna()
    return int(known.median()) if len(known) else None


def _method(kind: str, rows: pd.DataFrame) -> str:
    """How the rows were found, and what their waits and bandwidth are worth."""
    found = ", ".join(sorted(set(rows["method"])))
    if kind == CollectiveKind.REDUCE_SCATTER and rows["method"].str.startswith("gloo").any():
        found += " (gloo reduce-scatters by an all-reduce: the wire carries twice the bus bandwidth)"
    matched = int(rows["matched"].sum())
    if matched == len(rows) or not rows["bound"].any():
        return found
    if not matched:
        return f"{found}; not matched over all ranks: wait is a lower, transfer an upper bound"
    return f"{found}; {matched} of {len(rows)} matched over all ranks, of the rest bounds"
