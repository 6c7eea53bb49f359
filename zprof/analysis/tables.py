"""Make the tables of a measured run: its steps, its single collectives, and its memory.

The rows are those that the report's leaves are sums of: nothing is measured here. Times are integer
nanoseconds, sizes integer bytes; what is unknown is missing (``NA``), never 0.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.collective_rows import Mask, factorize_texts
from zprof.analysis.time.ledger import STEP_COLUMNS
from zprof.analysis.time.passes.phases import UNKNOWN_PHASE
from zprof.model.collectives import is_unknown_size
from zprof.model.memory import Memory
from zprof.model.tenants import DISPLAY_ORDER, UNTAGGED_NAME
from zprof.model.time import CollectiveTime, LateReason

STEP_TABLE_COLUMNS = (*STEP_COLUMNS[:2], "start_ns", *STEP_COLUMNS[2:], "upper_bound")
#: Columns of the table of collectives that are taken over unchanged.
_MEASURED = (
    "rank", "step", "kind", "group", "group_size", "dtype", "unit", "start_ns", "end_ns", "wait_ns",
    "transfer_ns", "exposed_wait_ns", "exposed_transfer_ns", "hidden_ns", "bound", "matched",
    "first_of_window",
)  # fmt: skip
COLLECTIVE_TABLE_COLUMNS = (
    "rank", "step", "kind", "group", "group_size", "unit", "phase", "micro_batch", "dtype", "bytes",
    "start_ns", "start_in_step_ns", "duration_ns", "exposed_ns", "hidden_ns", "wait_ns", "transfer_ns",
    "exposed_wait_ns", "exposed_transfer_ns", "launch_delay_ns", "last_rank", "origin_rank", "late_reason",
    "bound", "upper_bound", "matched", "first_of_window",
)  # fmt: skip
MEMORY_TABLE_COLUMNS = ("rank", "device", "step", "phase", "tenant", "bytes")
_TENANTS = (*(tenant.value for tenant in DISPLAY_ORDER), UNTAGGED_NAME)
_GROUP_SIZES = ("blocks", "bytes", "smallest_bytes", "largest_bytes")
MEMORY_GROUP_COLUMNS = (
    "rank", "tenant", "sub", "where", "operator", "before", *_GROUP_SIZES, "basis", "confidence", "reason",
    "groups",
)  # fmt: skip
MEMORY_TIMELINE_COLUMNS = ("rank", "device", "time_ns", *(f"{name}_bytes" for name in _TENANTS))


def make_step_table(analysis: RunAnalysis) -> pd.DataFrame:
    """Return one row per rank and step; columns are ``STEP_TABLE_COLUMNS``.

    wall = compute + exposed_wait + exposed_transfer + exposed_memcpy + idle + unexplained. The mean of a
    term over the rows of a rank is the report's term of that rank, which is rounded to a nanosecond.
    """
    rows = analysis.steps
    return rows.assign(
        start_ns=_find_step_starts(analysis, rows), upper_bound=_mark_upper_bounds(analysis, rows)
    )[list(STEP_TABLE_COLUMNS)]


def make_collective_table(analysis: RunAnalysis, rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row per rank, step and collective; columns are ``COLLECTIVE_TABLE_COLUMNS``.

    ``start_ns`` is on the common clock of all ranks, ``start_in_step_ns`` counts from the start of the
    rank's step. ``bytes`` is the size of the full tensor.

    Args:
        analysis: The measured run.
        rows: A part of its ``collectives``; default: all.
    """
    rows = analysis.collectives if rows is None else rows
    passes = analysis.passes.drop_duplicates("row").set_index("row") if len(analysis.passes) else None
    exposed = rows["exposed_wait_ns"] + rows["exposed_transfer_ns"]
    launches = rows["launch_start_ns"].astype("Int64")
    sizes = rows["bytes"].astype("Int64")
    codes, kinds = factorize_texts(rows["kind"])
    can_be_zero = ~np.array([is_unknown_size(kind, 0) for kind in kinds], dtype=bool)[codes]
    return (
        rows[list(_MEASURED)]
        .assign(
            duration_ns=rows["end_ns"] - rows["start_ns"],
            exposed_ns=exposed.astype(np.int64),
            start_in_step_ns=rows["start_ns"] - _find_step_starts(analysis, rows),
            launch_delay_ns=rows["start_ns"] - launches,
            bytes=sizes.where((sizes != 0) | can_be_zero),
            phase=_hide_unknown_texts(_pick_pass_value(passes, "phase", rows.index), (UNKNOWN_PHASE,)),
            micro_batch=_pick_pass_value(passes, "micro_batch", rows.index).astype("Int64"),
            last_rank=rows["last_rank"].astype("Int64").where(rows["last_rank"] >= 0),
            origin_rank=rows["origin_rank"].astype("Int64").where(rows["origin_rank"] >= 0),
            late_reason=_hide_unknown_texts(rows["late_reason"], ("", LateReason.UNKNOWN)),
            upper_bound=_mark_upper_bounds(analysis, rows),
        )
        .loc[:, list(COLLECTIVE_TABLE_COLUMNS)]
    )


def select_rows(analysis: RunAnalysis, entry: CollectiveTime) -> pd.DataFrame:
    """Return all rows of ``analysis.collectives`` of a kind, group and element type."""
    frame = analysis.collectives
    mask: Mask = np.ones(len(frame), dtype=bool)
    for name, text in (("kind", entry.kind), ("group", entry.group), ("dtype", entry.dtype)):
        mask &= equals_text(frame[name], text)
    return frame[mask]


def equals_text(column: "pd.Series[str]", text: str) -> Mask:
    """Return a mask of the rows that equal a text, for a column with few distinct texts."""
    codes, texts = factorize_texts(column)
    mask: Mask = codes == (texts.index(text) if text in texts else -1)
    return mask


def pick_most_exposed(rows: pd.DataFrame, max_rows: int) -> pd.DataFrame:
    """Return the rows of ``analysis.collectives`` with the most exposed time, ties by duration."""
    exposed = rows["exposed_wait_ns"].to_numpy(np.int64) + rows["exposed_transfer_ns"].to_numpy(np.int64)
    duration = rows["end_ns"].to_numpy(np.int64) - rows["start_ns"].to_numpy(np.int64)
    return rows.iloc[np.lexsort((-duration, -exposed))[:max_rows]]


def make_memory_table(memory: Memory) -> pd.DataFrame:
    """Return one row per rank and tenant, at the rank's peak; columns are ``MEMORY_TABLE_COLUMNS``.

    The bytes of a rank, with those of the tenant ``untagged``, add up to the report's peak; a tenant of a
    snapshot to which nothing was attributed is missing. ``step`` and ``phase`` are those of the peak.
    """
    rows = [
        (rank.rank, rank.device, rank.peak_step, rank.peak_phase, name, size)
        for rank in memory.per_rank
        for name, size in (
            *(
                (tenant.value, None if rank.is_unknown(tenant) else rank.tenants.get(tenant, 0))
                for tenant in DISPLAY_ORDER
            ),
            (UNTAGGED_NAME, rank.untagged_bytes),
        )
    ]
    table = pd.DataFrame(rows, columns=list(MEMORY_TABLE_COLUMNS))
    steps, sizes = table["step"].astype("Int64"), table["bytes"]
    if sizes.isna().any():
        table = table.assign(bytes=sizes.astype("Int64"))
    return table.assign(step=steps.where(steps >= 0), phase=_hide_unknown_texts(table["phase"], ("",)))


def make_memory_group_table(memory: Memory) -> pd.DataFrame:
    """Return one row per owner and place of allocation; columns are ``MEMORY_GROUP_COLUMNS``.

    The rows of a rank of a snapshot add up to its peak; those with ``groups`` > 1 are the smallest, merged
    per tenant. Of a recording they are its largest single allocations.
    """
    rows = [
        {
            **{name: getattr(entry, name) for name in MEMORY_GROUP_COLUMNS if name not in _GROUP_SIZES},
            "blocks": entry.count,
            "bytes": entry.held_bytes,
            "smallest_bytes": entry.bytes if entry.smallest_bytes is None else entry.smallest_bytes,
            "largest_bytes": entry.bytes,
        }
        for entry in memory.top
    ]
    return pd.DataFrame(rows, columns=list(MEMORY_GROUP_COLUMNS))


def make_memory_timeline_table(memory: Memory) -> pd.DataFrame:
    """Return one row per rank and instant, one column per tenant; columns are ``MEMORY_TIMELINE_COLUMNS``.

    ``time_ns`` counts from the start of the rank's window. A row holds until the next one; of many changes,
    the highest of each interval is kept. Of a job with many ranks, only the ranks with the largest peaks and
    the smallest one are there.
    """
    frames = [
        pd.DataFrame(
            {
                "rank": timeline.rank,
                "device": timeline.device,
                "time_ns": timeline.time_ns,
                **{f"{name}_bytes": timeline.tenants[name] for name in _TENANTS},
            }
        )
        for timeline in memory.timelines
    ]
    if not frames:
        return pd.DataFrame(columns=list(MEMORY_TIMELINE_COLUMNS))
    return pd.concat(frames, ignore_index=True)[list(MEMORY_TIMELINE_COLUMNS)]


def _find_step_starts(analysis: RunAnalysis, rows: pd.DataFrame) -> "pd.Series[int]":
    """Return the start of the step of each row, on the common clock; missing without a timed step."""
    ranks, steps, starts = (
        np.concatenate([np.empty(0, dtype=np.int64), *parts])
        for parts in (
            [np.full(len(track.steps), track.rank) for track in analysis.tracks],
            [track.steps.number for track in analysis.tracks],
            [track.steps.begin_ns for track in analysis.tracks],
        )
    )
    index = pd.MultiIndex.from_arrays([ranks, steps])
    # nullable, because floats are too coarse for nanoseconds since 1970
    known = pd.Series(starts, index=index, dtype="Int64")
    found = known.reindex(pd.MultiIndex.from_arrays([rows["rank"], rows["step"]]))
    return pd.Series(found.array, index=rows.index)


def _mark_upper_bounds(analysis: RunAnalysis, rows: pd.DataFrame) -> "pd.Series[bool]":
    """Mark the rows of ranks whose exposed times are upper bounds, because not every wait was recorded."""
    return rows["rank"].isin([rank.rank for rank in analysis.time.per_rank if rank.upper_bound])


def _pick_pass_value(passes: pd.DataFrame | None, name: str, rows: pd.Index) -> "pd.Series[str]":
    """Return a column of the pass table for rows of the collectives; missing if a row is of no pass."""
    if passes is None:
        return pd.Series([None] * len(rows), index=rows, dtype=object)
    return passes[name].reindex(rows).astype(object)


def _hide_unknown_texts(texts: "pd.Series[str]", unknown: Sequence[str]) -> "pd.Series[str]":
    return texts.astype(object).where(~texts.isin(list(unknown)), None)
