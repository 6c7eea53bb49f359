"""Select the source rows of a communication metric.

These are the individual collectives of its kind, group, unit or size, the most relevant first.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.tables import equals_text, pick_most_exposed, select_rows
from zprof.model.collectives import CollectiveKind
from zprof.model.paths import EVERY
from zprof.tui.source_rows.selection import Indices, Rows, find_entry

_MAX_ROWS = 30
_ID_COLUMNS = ("rank", "step", "unit")
_VOLUME_COLUMNS = ("kind", "group", "dtype", "count", "bytes")


def _make_collective_rows(columns: Sequence[str], by: str) -> Rows:
    """Select rows of ``time.collectives[i]``, largest ``by`` first; all collectives for ``[*]``."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        if not at or at[0] == EVERY:
            return _pick_top(analysis.collectives, columns, by)
        entry = find_entry(analysis.time.collectives, at)
        return _pick_top(select_rows(analysis, entry), columns, by) if entry is not None else pd.DataFrame()

    return rows


def _make_unit_rows(columns: Sequence[str], by: str) -> Rows:
    """Select rows of ``time.units[i]``, largest ``by`` first."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        frame, entry = analysis.collectives, find_entry(analysis.time.units, at)
        if entry is None:
            return pd.DataFrame()
        same_group = equals_text(frame["kind"], entry.kind) & equals_text(frame["group"], entry.group)
        return _pick_top(frame[same_group & equals_text(frame["unit"], entry.unit)], columns, by)

    return rows


def _make_message_rows(columns: Sequence[str], by: str) -> Rows:
    """Select rows of ``time.messages[i]``, largest ``by`` first."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        frame, entry = analysis.collectives, find_entry(analysis.time.messages, at)
        if entry is None:
            return pd.DataFrame()
        size = frame["bytes"].to_numpy(np.int64)
        same_group = equals_text(frame["kind"], entry.kind) & equals_text(frame["group"], entry.group)
        return _pick_top(
            frame[same_group & (size >= entry.at_least_bytes) & (size < entry.below_bytes)], columns, by
        )

    return rows


def _select_fit_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the data points of ``time.fits[i]``: number and median time of messages by size."""
    frame, entry = analysis.collectives, find_entry(analysis.time.fits, at)
    if entry is None:
        return pd.DataFrame()
    same_group = equals_text(frame["kind"], entry.kind) & equals_text(frame["group"], entry.group)
    is_usable = ~frame["first_of_window"].to_numpy(bool) & (frame["instance"].to_numpy() >= 0)
    messages = frame[same_group & is_usable].drop_duplicates("instance")
    sizes: pd.DataFrame = messages.groupby("bytes")["intrinsic_ns"].agg(["count", "median"]).reset_index()
    sizes.columns = pd.Index(["bytes", "messages", "intrinsic_ns"])
    return sizes.tail(_MAX_ROWS)


def _select_volume_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return counts and bytes per step of the kinds and groups with the most bytes."""
    entries = sorted(analysis.time.collectives, key=lambda entry: -entry.bytes)[:_MAX_ROWS]
    rows = [{name: getattr(entry, name) for name in _VOLUME_COLUMNS} for entry in entries]
    factors = [2 if entry.kind == CollectiveKind.ALL_REDUCE else 1 for entry in entries]
    return pd.DataFrame(rows, columns=list(_VOLUME_COLUMNS)).assign(counted_times=factors)


def _select_clock_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return each rank's offset to the common clock, the most uncertain first."""
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
            for rank in ranks[:_MAX_ROWS]
        ]
    )


def _select_matching_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the number of collectives that each matching method matched across ranks."""
    alignment = analysis.time.alignment
    rungs = alignment.rungs if alignment is not None else {}
    return pd.DataFrame([{"matched by": rung, "collectives": count} for rung, count in rungs.items()])


def _pick_top(rows: pd.DataFrame, columns: Sequence[str], by: str) -> pd.DataFrame:
    if not len(rows):
        return pd.DataFrame()
    full = rows.assign(
        duration_ns=rows["end_ns"] - rows["start_ns"],
        launch_delay_ns=rows["start_ns"] - rows["launch_start_ns"],
        exposed_ns=rows["exposed_wait_ns"] + rows["exposed_transfer_ns"],
    )
    if by == "exposed_ns":
        top_rows = pick_most_exposed(full, _MAX_ROWS)
    else:
        order = np.argsort(-full[by].fillna(-1).to_numpy(np.float64), kind="stable")
        top_rows = full.iloc[order[:_MAX_ROWS]]
    return top_rows[[*_ID_COLUMNS, *(name for name in columns if name not in _ID_COLUMNS)]]


_SPLIT = ("exposed_wait_ns", "exposed_transfer_ns")
_WAIT = ("lateness_ns", "last_rank", "late_reason")
_SIZES = _make_message_rows(("bytes", "duration_ns", *_SPLIT), "exposed_ns")
#: Columns of the rows of a collective, and the column whose largest values come first.
_COLLECTIVES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "count": (("bytes", "duration_ns"), "duration_ns"),
    "bytes": (("bytes", "dtype", "duration_ns"), "bytes"),
    "total_ns": (("duration_ns", "wait_ns", "transfer_ns", *_SPLIT), "duration_ns"),
    "exposed_ns": ((*_SPLIT, "hidden_ns", "duration_ns"), "exposed_ns"),
    "exposed_wait_ns": (("exposed_wait_ns", "wait_ns", *_WAIT), "exposed_wait_ns"),
    "exposed_transfer_ns": (
        ("exposed_transfer_ns", "transfer_ns", "bytes", "hidden_ns"),
        "exposed_transfer_ns",
    ),
    "wait_ns": (("wait_ns", "duration_ns", *_WAIT), "wait_ns"),
    "transfer_ns": (("transfer_ns", "bytes", "duration_ns", "intrinsic_ns"), "transfer_ns"),
    "launch_delay_ns": (("launch_delay_ns", "dependency_ns"), "launch_delay_ns"),
    "dependency_ns": (("dependency_ns", "launch_delay_ns"), "dependency_ns"),
    "tail_ns": (("tail_ns", "duration_ns"), "tail_ns"),
    "intrinsic_ns": (("intrinsic_ns", "bytes", "duration_ns"), "intrinsic_ns"),
    "algbw_bytes_per_s": (("bytes", "intrinsic_ns"), "bytes"),
    "busbw_bytes_per_s": (("bytes", "intrinsic_ns"), "bytes"),
}
_MESSAGES: Mapping[str, Rows] = {
    **dict.fromkeys(("at_least_bytes", "below_bytes", "count", "exposed_ns"), _SIZES),
    "busbw_bytes_per_s": _make_message_rows(("bytes", "intrinsic_ns"), "bytes"),
}
_UNITS: Mapping[str, Rows] = {
    "count": _make_unit_rows(("bytes", "duration_ns"), "duration_ns"),
    "bytes": _make_unit_rows(("bytes", "duration_ns"), "bytes"),
    "exposed_wait_ns": _make_unit_rows(
        ("exposed_wait_ns", "wait_ns", "last_rank", "late_reason"), "exposed_wait_ns"
    ),
    "exposed_transfer_ns": _make_unit_rows(
        ("exposed_transfer_ns", "transfer_ns", "bytes"), "exposed_transfer_ns"
    ),
}
_FITS = (
    "messages", "sizes", "latency_ns", "algbw_bytes_per_s", "busbw_bytes_per_s", "latency_share_ratio",
    "residual_ratio",
)  # fmt: skip
COMMUNICATION_ROWS: Mapping[str, Rows] = {
    **{f"time.collectives[].{name}": _make_collective_rows(*wanted) for name, wanted in _COLLECTIVES.items()},
    **{f"time.messages[].{name}": rows for name, rows in _MESSAGES.items()},
    **{f"time.units[].{name}": rows for name, rows in _UNITS.items()},
    **{f"time.fits[].{name}": _select_fit_rows for name in _FITS},
    **{f"volume.{name}": _select_volume_rows for name in ("seen_bytes", "expected_bytes", "ratio")},
    "time.exposed_in_collectives.wait_ns": _make_collective_rows(
        ("group", "exposed_wait_ns", "last_rank", "late_reason"), "exposed_wait_ns"
    ),
    "time.exposed_in_collectives.transfer_ns": _make_collective_rows(
        ("group", "exposed_transfer_ns", "bytes"), "exposed_transfer_ns"
    ),
    "time.alignment.uncertainty_ns": _select_clock_rows,
    "time.alignment.matched": _select_matching_rows,
    "time.alignment.unmatched": _select_matching_rows,
}
