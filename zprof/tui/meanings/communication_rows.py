"""The single collectives behind a leaf: those of its kind, group, module or size, decisive ones first."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.tui.meanings.behind import entry_at
from zprof.tui.meanings.meaning import Indices, Rows
from zprof.tui.pages.communication_instances import is_text, rows_of, worst_rows

_MOST = 30
_WHO = ("rank", "step", "unit")
_EACH = ("kind", "group", "dtype", "count", "bytes")


def of_collective(columns: Sequence[str], by: str) -> Rows:
    """Rows of ``time.collectives[i]`` with these columns, largest ``by`` first; of all without i."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        if not at or at[0] is None:
            return _first(analysis.collectives, columns, by)
        entry = entry_at(analysis.time.collectives, at)
        return _first(rows_of(analysis, entry), columns, by) if entry is not None else pd.DataFrame()

    return rows


def of_unit(columns: Sequence[str], by: str) -> Rows:
    """Rows of ``time.units[i]``."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        frame, entry = analysis.collectives, entry_at(analysis.time.units, at)
        if entry is None:
            return pd.DataFrame()
        mine = is_text(frame["kind"], entry.kind) & is_text(frame["group"], entry.group)
        return _first(frame[mine & is_text(frame["unit"], entry.unit)], columns, by)

    return rows


def of_message(columns: Sequence[str], by: str) -> Rows:
    """Rows of ``time.messages[i]``."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        frame, entry = analysis.collectives, entry_at(analysis.time.messages, at)
        if entry is None:
            return pd.DataFrame()
        size = frame["bytes"].to_numpy(np.int64)
        mine = is_text(frame["kind"], entry.kind) & is_text(frame["group"], entry.group)
        return _first(frame[mine & (size >= entry.at_least_bytes) & (size < entry.below_bytes)], columns, by)

    return rows


def of_fit(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """By size, what ``time.fits[i]`` was fitted to: how many messages, and their median time."""
    frame, entry = analysis.collectives, entry_at(analysis.time.fits, at)
    if entry is None:
        return pd.DataFrame()
    mine = is_text(frame["kind"], entry.kind) & is_text(frame["group"], entry.group)
    seen = frame[mine & ~frame["first_of_window"].to_numpy(bool) & (frame["instance"].to_numpy() >= 0)]
    seen = seen.drop_duplicates("instance")
    sizes: pd.DataFrame = seen.groupby("bytes")["intrinsic_ns"].agg(["count", "median"]).reset_index()
    sizes.columns = pd.Index(["bytes", "messages", "intrinsic_ns"])
    return sizes.tail(_MOST)


def of_volume(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Kinds and groups with most bytes: counts and bytes of a step."""
    entries = sorted(analysis.time.collectives, key=lambda entry: -entry.bytes)[:_MOST]
    rows = [{name: getattr(entry, name) for name in _EACH} for entry in entries]
    times = [2 if entry.kind == CollectiveKind.ALL_REDUCE else 1 for entry in entries]
    return pd.DataFrame(rows, columns=list(_EACH)).assign(counted_times=times)


def of_clocks(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """By rank, how its clock stands to the first one's; the least known first."""
    alignment = analysis.time.alignment
    if alignment is None:
        return pd.DataFrame()
    ranks = sorted(alignment.offsets_ns, key=lambda rank: -alignment.rank_uncertainty_ns.get(rank, 0))
    return pd.DataFrame(
        [
            {
                "rank": rank,
                "offset_ns": alignment.offsets_ns[rank],
                "uncertainty_ns": alignment.rank_uncertainty_ns.get(rank, alignment.uncertainty_ns),
            }
            for rank in ranks[:_MOST]
        ]
    )


def of_matching(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """How collectives were matched across ranks, by the rung of the ladder."""
    alignment = analysis.time.alignment
    rungs = alignment.rungs if alignment is not None else {}
    return pd.DataFrame([{"matched by": rung, "collectives": count} for rung, count in rungs.items()])


def _first(rows: pd.DataFrame, columns: Sequence[str], by: str) -> pd.DataFrame:
    if not len(rows):
        return pd.DataFrame()
    derived = {"duration_ns": rows["end_ns"] - rows["start_ns"]}
    derived["launch_delay_ns"] = rows["start_ns"] - rows["launch_start_ns"]
    full = rows.assign(**derived)
    if by == "exposed_ns":
        chosen = worst_rows(full, _MOST)
    else:
        chosen = full.iloc[np.argsort(-full[by].fillna(-1).to_numpy(np.float64), kind="stable")[:_MOST]]
    return chosen[[*_WHO, *(name for name in columns if name not in _WHO)]]
