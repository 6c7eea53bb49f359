"""Sum collectives and compute their bandwidth: by kind, group and dtype, by message size, by unit.

Bandwidth comes from the intrinsic time T of a matched collective, last start to first end, so that waiting
for a rank does not count as a slow link: algbw = bytes / T, busbw = algbw times the bus factor. It is a
median over the window without its first collectives; None if T is below the clock uncertainty.
"""

import math

import numpy as np
import pandas as pd

from zprof.analysis.time.collective_rows import StepCounts, group_rows_by_text
from zprof.analysis.time.ledger import is_unsplit
from zprof.model.collectives import CollectiveKind, bus_factor
from zprof.model.time import CollectiveTime, ExposedInCollectives, MessageSizes, UnitTime

#: Columns needed for a bandwidth.
BANDWIDTH_COLUMNS = ("bytes", "intrinsic_ns", "offset_uncertainty_ns", "first_of_window", "group_size")
_EXPOSED_COLUMNS = ("exposed_wait_ns", "exposed_transfer_ns")
_SUM_COLUMNS = (
    *BANDWIDTH_COLUMNS, *_EXPOSED_COLUMNS, "rank", "method", "matched", "bound", "start_ns", "end_ns",
    "launch_start_ns", "wait_ns", "transfer_ns", "dependency_ns", "tail_ns",
)  # fmt: skip
_MESSAGE_COLUMNS = (*BANDWIDTH_COLUMNS, "rank", "exposed_wait_ns", "exposed_transfer_ns")
#: 0, 1 KiB, 4 KiB, ... 4 EiB; sizes from 4 EiB on belong to the last bin.
_SIZE_EDGES = np.array([0, *(1 << exponent for exponent in range(10, 63, 2))], dtype=np.int64)
_UNIT_COLUMNS = ("rank", "bytes", "bound", "exposed_wait_ns", "exposed_transfer_ns")


def sum_collective_times(frame: pd.DataFrame, steps: StepCounts) -> tuple[CollectiveTime, ...]:
    """Return one entry per kind, group and dtype, sorted by exposed time, largest first.

    Args:
        frame: Collectives of the window's steps.
        steps: Steps of the window by rank.
    """
    entries = [
        _make_collective_time(kind, group, dtype, rows, steps.sum_for_group(group, rows))
        for (kind, group, dtype), rows in group_rows_by_text(frame, ("kind", "group", "dtype"), _SUM_COLUMNS)
    ]
    return tuple(sorted(entries, key=lambda entry: (-entry.exposed_ns, entry.kind, entry.group, entry.dtype)))


def select_resolved(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose intrinsic time exceeds the clock uncertainty and excludes profiler start-up."""
    good = (rows["intrinsic_ns"] > rows["offset_uncertainty_ns"]) & ~rows["first_of_window"]
    return rows[good]


def compute_algorithm_bandwidth(rows: pd.DataFrame) -> float | None:
    """Return the median bandwidth of the resolved rows in bytes per second; None if there are none."""
    good = select_resolved(rows)
    good = good[good["bytes"] > 0]
    if not len(good):
        return None
    median = float((good["bytes"] / good["intrinsic_ns"]).median())
    return median * 1e9 if math.isfinite(median) else None


def compute_bus_bandwidth(rows: pd.DataFrame, kind: str, algorithm: float | None) -> float | None:
    """Return the bus bandwidth of rows of one kind and group."""
    factor = bus_factor(CollectiveKind(kind), int(rows["group_size"].iloc[0]))
    return algorithm * factor if algorithm is not None and factor > 0 else None


def _make_collective_time(
    kind: str, group: str, dtype: str, rows: pd.DataFrame, rank_steps: int
) -> CollectiveTime:
    algorithm = compute_algorithm_bandwidth(rows)
    steady = rows[~rows["first_of_window"]]
    return CollectiveTime(
        kind=kind,
        group=group,
        dtype=dtype,
        count=len(rows) / rank_steps,
        launch_delay_ns=_median_or_none(rows["start_ns"] - rows["launch_start_ns"]),
        algbw_bytes_per_s=algorithm,
        busbw_bytes_per_s=compute_bus_bandwidth(rows, kind, algorithm),
        method=_describe_method(kind, rows),
        group_size=int(rows["group_size"].iloc[0]),
        bound=bool(rows["bound"].any()),
        dependency_ns=_median_or_none(rows["dependency_ns"]),
        tail_ns=_median_or_none(steady["tail_ns"]),
        intrinsic_ns=_median_or_none(select_resolved(rows)["intrinsic_ns"]),
        bytes=int(rows["bytes"].sum()) // rank_steps,
        total_ns=int((rows["end_ns"] - rows["start_ns"]).sum()) // rank_steps,
        exposed_ns=sum_exposed(rows) // rank_steps,
        exposed_wait_ns=int(rows["exposed_wait_ns"].sum()) // rank_steps,
        exposed_transfer_ns=int(rows["exposed_transfer_ns"].sum()) // rank_steps,
        wait_ns=int(rows["wait_ns"].sum()) // rank_steps,
        transfer_ns=int(rows["transfer_ns"].sum()) // rank_steps,
    )


def sum_exposed(rows: pd.DataFrame) -> int:
    """Return the total exposed time of the rows."""
    return int(sum(rows[name].sum() for name in _EXPOSED_COLUMNS))


def _median_or_none(values: "pd.Series[float]") -> int | None:
    known = values.dropna()
    return int(known.median()) if len(known) else None


def _describe_method(kind: str, rows: pd.DataFrame) -> str:
    """Describe how the rows were found, and whether their waits are exact or bounds."""
    description = ", ".join(sorted(set(rows["method"])))
    if kind == CollectiveKind.REDUCE_SCATTER and rows["method"].str.startswith("gloo").any():
        description += (
            " (gloo implements reduce-scatter as all-reduce: the link carries twice the bus bandwidth)"
        )
    matched = int(rows["matched"].sum())
    if matched == len(rows) or not rows["bound"].any():
        return description
    if not matched:
        return f"{description}; not matched across all ranks: wait is a lower bound, transfer an upper bound"
    return f"{description}; {matched} of {len(rows)} matched across all ranks, bounds for the others"


def sum_message_sizes(frame: pd.DataFrame, steps: StepCounts) -> tuple[MessageSizes, ...]:
    """Return one entry per kind, group and size bin that occurs, sorted by these."""
    entries = []
    for (kind, group), group_rows in group_rows_by_text(frame, ("kind", "group"), _MESSAGE_COLUMNS):
        size = group_rows["bytes"].to_numpy(np.int64)
        size_bin = np.searchsorted(_SIZE_EDGES, np.maximum(size, 0), side="right") - 1
        for number in np.unique(size_bin).tolist():
            rows, is_last = group_rows[size_bin == number], number + 1 == len(_SIZE_EDGES)
            rank_steps = steps.sum_for_group(group, rows)
            entries.append(
                MessageSizes(
                    kind=kind,
                    group=group,
                    at_least_bytes=int(_SIZE_EDGES[number]),
                    below_bytes=np.iinfo(np.int64).max if is_last else int(_SIZE_EDGES[number + 1]),
                    count=len(rows) / rank_steps,
                    exposed_ns=sum_exposed(rows) // rank_steps,
                    busbw_bytes_per_s=compute_bus_bandwidth(rows, kind, compute_algorithm_bandwidth(rows)),
                )
            )
    return tuple(sorted(entries, key=lambda entry: (entry.kind, entry.group, entry.at_least_bytes)))


def sum_unit_times(frame: pd.DataFrame, steps: StepCounts) -> tuple[UnitTime, ...]:
    """Return one entry per unit, kind and group, largest exposed time first, for rows with a unit."""
    named = frame[frame["unit"].notna()]
    entries = [
        UnitTime(
            unit=unit,
            kind=kind,
            group=group,
            count=len(rows) / (rank_steps := steps.sum_for_group(group, rows)),
            bytes=int(rows["bytes"].sum()) // rank_steps,
            exposed_wait_ns=int(rows["exposed_wait_ns"].sum()) // rank_steps,
            exposed_transfer_ns=int(rows["exposed_transfer_ns"].sum()) // rank_steps,
            bound=bool(rows["bound"].any()),
        )
        for (unit, kind, group), rows in group_rows_by_text(named, ("unit", "kind", "group"), _UNIT_COLUMNS)
        if unit
    ]
    return tuple(
        sorted(
            entries,
            key=lambda e: (-(e.exposed_wait_ns + e.exposed_transfer_ns), e.unit, e.kind, e.group),
        )
    )


def sum_exposed_in_collectives(frame: pd.DataFrame, steps: StepCounts) -> ExposedInCollectives | None:
    """Return means per step over the loaded ranks; None if no collective was seen.

    Args:
        frame: Collectives of the window's steps.
        steps: Steps of the window by rank.
    """
    steps_by_rank = {rank: count for rank, count in steps.by_rank.items() if count > 0}
    if not len(frame) or not steps_by_rank:
        return None
    rank = frame["rank"].to_numpy(np.int64)
    weight = np.zeros(max(int(rank.max()), *steps_by_rank) + 1)
    weight[list(steps_by_rank)] = [1 / (count * len(steps_by_rank)) for count in steps_by_rank.values()]
    waits, transfers = (
        float(weight[rank] @ frame[name].to_numpy(np.float64))
        for name in ("exposed_wait_ns", "exposed_transfer_ns")
    )
    bound = is_unsplit(sum_exposed(frame), sum_exposed(frame[frame["bound"].astype(bool)]))
    return ExposedInCollectives(wait_ns=round(waits), transfer_ns=round(transfers), bound=bound)
