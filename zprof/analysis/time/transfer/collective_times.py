"""Sum collectives and compute their bandwidth: by kind, group and dtype, by message size, by unit.

Bandwidth comes from the intrinsic time T of a matched collective, last start to first end, so that waiting
for a rank does not count as a slow link: algbw = bytes / T, busbw = algbw times the bus factor. It is a
median over the window without its first collectives; None if T is below the clock uncertainty.
"""

import math

import numpy as np

from zprof.analysis.columns import Columns, Floats, OptionalInts
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


def sum_collective_times(collectives: Columns, steps: StepCounts) -> tuple[CollectiveTime, ...]:
    """Return one entry per kind, group and dtype, sorted by exposed time, largest first.

    Args:
        collectives: Collectives of the window's steps.
        steps: Steps of the window by rank.
    """
    entries = [
        _make_collective_time(kind, group, dtype, rows, steps.sum_for_group(group, rows))
        for (kind, group, dtype), rows in group_rows_by_text(
            collectives, ("kind", "group", "dtype"), _SUM_COLUMNS
        )
    ]
    return tuple(sorted(entries, key=lambda entry: (-entry.exposed_ns, entry.kind, entry.group, entry.dtype)))


def select_resolved(rows: Columns) -> Columns:
    """Return the rows whose intrinsic time exceeds the clock uncertainty and excludes profiler start-up."""
    is_long = rows.floats("intrinsic_ns") > rows.ints("offset_uncertainty_ns")
    return rows.at(is_long & ~rows.bools("first_of_window"))


def compute_algorithm_bandwidth(rows: Columns) -> float | None:
    """Return the median bandwidth of the resolved rows in bytes per second; None if there are none."""
    good = select_resolved(rows)
    good = good.at(good.ints("bytes") > 0)
    if not len(good):
        return None
    median = float(np.median(good.ints("bytes") / good.floats("intrinsic_ns")))
    return median * 1e9 if math.isfinite(median) else None


def compute_bus_bandwidth(rows: Columns, kind: str, algorithm: float | None) -> float | None:
    """Return the bus bandwidth of rows of one kind and group."""
    factor = bus_factor(CollectiveKind(kind), int(rows.ints("group_size")[0]))
    return algorithm * factor if algorithm is not None and factor > 0 else None


def _make_collective_time(
    kind: str, group: str, dtype: str, rows: Columns, rank_steps: int
) -> CollectiveTime:
    algorithm = compute_algorithm_bandwidth(rows)
    steady = rows.at(~rows.bools("first_of_window"))
    start = rows.ints("start_ns")
    launch_delay = OptionalInts(start - rows.ints("launch_start_ns"), rows.known("launch_start_ns"))
    return CollectiveTime(
        kind=kind,
        group=group,
        dtype=dtype,
        count=len(rows) / rank_steps,
        launch_delay_ns=_median_or_none(launch_delay.to_floats()),
        algbw_bytes_per_s=algorithm,
        busbw_bytes_per_s=compute_bus_bandwidth(rows, kind, algorithm),
        method=_describe_method(kind, rows),
        group_size=int(rows.ints("group_size")[0]),
        bound=bool(rows.bools("bound").any()),
        dependency_ns=_median_or_none(rows.floats("dependency_ns")),
        tail_ns=_median_or_none(steady.floats("tail_ns")),
        intrinsic_ns=_median_or_none(select_resolved(rows).floats("intrinsic_ns")),
        bytes=int(rows.ints("bytes").sum()) // rank_steps,
        total_ns=int((rows.ints("end_ns") - start).sum()) // rank_steps,
        exposed_ns=sum_exposed(rows) // rank_steps,
        exposed_wait_ns=int(rows.ints("exposed_wait_ns").sum()) // rank_steps,
        exposed_transfer_ns=int(rows.ints("exposed_transfer_ns").sum()) // rank_steps,
        wait_ns=int(rows.ints("wait_ns").sum()) // rank_steps,
        transfer_ns=int(rows.ints("transfer_ns").sum()) // rank_steps,
    )


def sum_exposed(rows: Columns) -> int:
    """Return the total exposed time of the rows."""
    return sum(int(rows.ints(name).sum()) for name in _EXPOSED_COLUMNS)


def _median_or_none(values: Floats) -> int | None:
    known = values[~np.isnan(values)]
    return int(np.median(known)) if len(known) else None


def _describe_method(kind: str, rows: Columns) -> str:
    """Describe how the rows were found, and whether their waits are exact or bounds."""
    methods = sorted(rows.texts("method").list_distinct())
    description = ", ".join(methods)
    if kind == CollectiveKind.REDUCE_SCATTER and any(method.startswith("gloo") for method in methods):
        description += (
            " (gloo implements reduce-scatter as all-reduce: the link carries twice the bus bandwidth)"
        )
    matched = int(rows.bools("matched").sum())
    if matched == len(rows) or not rows.bools("bound").any():
        return description
    if not matched:
        return f"{description}; not matched across all ranks: wait is a lower bound, transfer an upper bound"
    return f"{description}; {matched} of {len(rows)} matched across all ranks, bounds for the others"


def sum_message_sizes(collectives: Columns, steps: StepCounts) -> tuple[MessageSizes, ...]:
    """Return one entry per kind, group and size bin that occurs, sorted by these."""
    entries = []
    for (kind, group), group_rows in group_rows_by_text(collectives, ("kind", "group"), _MESSAGE_COLUMNS):
        size = group_rows.ints("bytes")
        size_bin = np.searchsorted(_SIZE_EDGES, np.maximum(size, 0), side="right") - 1
        for number in np.unique(size_bin).tolist():
            rows, is_last = group_rows.at(size_bin == number), number + 1 == len(_SIZE_EDGES)
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


def sum_unit_times(collectives: Columns, steps: StepCounts) -> tuple[UnitTime, ...]:
    """Return one entry per unit, kind and group, largest exposed time first, for rows with a unit."""
    named = collectives.at(collectives.known("unit"))
    entries = [
        UnitTime(
            unit=unit,
            kind=kind,
            group=group,
            count=len(rows) / (rank_steps := steps.sum_for_group(group, rows)),
            bytes=int(rows.ints("bytes").sum()) // rank_steps,
            exposed_wait_ns=int(rows.ints("exposed_wait_ns").sum()) // rank_steps,
            exposed_transfer_ns=int(rows.ints("exposed_transfer_ns").sum()) // rank_steps,
            bound=bool(rows.bools("bound").any()),
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


def sum_exposed_in_collectives(collectives: Columns, steps: StepCounts) -> ExposedInCollectives | None:
    """Return means per step over the loaded ranks; None if no collective was seen.

    Args:
        collectives: Collectives of the window's steps.
        steps: Steps of the window by rank.
    """
    steps_by_rank = {rank: count for rank, count in steps.by_rank.items() if count > 0}
    if not len(collectives) or not steps_by_rank:
        return None
    rank = collectives.ints("rank")
    weight = np.zeros(max(int(rank.max()), *steps_by_rank) + 1)
    weight[list(steps_by_rank)] = [1 / (count * len(steps_by_rank)) for count in steps_by_rank.values()]
    waits, transfers = (
        float(weight[rank] @ collectives.floats(name)) for name in ("exposed_wait_ns", "exposed_transfer_ns")
    )
    is_bound = collectives.bools("bound")
    bound = is_unsplit(sum_exposed(collectives), sum_exposed(collectives.at(is_bound)))
    return ExposedInCollectives(wait_ns=round(waits), transfer_ns=round(transfers), bound=bound)
