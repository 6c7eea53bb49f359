"""Select the source rows of lateness and blame: the collectives that ranks waited in."""

from collections.abc import Mapping

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.time import LateReason
from zprof.tui.source_rows.selection import Indices, Rows, find_entry, pick_top_rows

_COLUMNS = (
    "step",
    "kind",
    "group",
    "unit",
    "rank",
    "lateness_ns",
    "wait_ns",
    "exposed_wait_ns",
    "late_reason",
)


def _select_late_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the matched collectives of this rank and step, the largest lateness first."""
    rows, entry = analysis.collectives, find_entry(analysis.time.lateness, at)
    if entry is not None:
        rows = rows[(rows["rank"] == entry.rank) & (rows["step"] == entry.step)]
    return pick_top_rows(rows[rows["matched"].astype(bool)], _COLUMNS, "lateness_ns")


def _select_caused_waits(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the waits that this rank caused, longest first."""
    rows, rank = analysis.collectives, _find_blamed_rank(analysis, at)
    rows = rows[rows["blamed_rank"] == rank] if rank is not None else rows[rows["blamed_rank"] >= 0]
    return _pick_longest(rows)


def _select_suffered_waits(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the waits that this rank suffered, longest first."""
    rows, rank = analysis.collectives, _find_blamed_rank(analysis, at)
    return _pick_longest(rows if rank is None else rows[rows["rank"] == rank])


def _pick_longest(rows: pd.DataFrame) -> pd.DataFrame:
    return pick_top_rows(rows, (*_COLUMNS, "blamed_rank", "origin_rank"), "exposed_wait_ns")


def _find_blamed_rank(analysis: RunAnalysis, at: Indices) -> int | None:
    blame = analysis.time.blame
    entry = find_entry(blame.per_rank, at) if blame is not None else None
    return entry.rank if entry is not None else None


_CAUSED = (
    "wait_ns", "exposed_wait_ns", "exposed_wait_per_rank_ns", "wait_per_rank_ns", "waiting_ranks",
    "last_ratio", *(f"reasons.{reason.value}" for reason in LateReason),
)  # fmt: skip
RANK_ROWS: Mapping[str, Rows] = {
    **{f"time.lateness[].{name}": _select_late_rows for name in ("mean_ns", "largest_ns")},
    **{f"time.blame.per_rank[].{name}": _select_caused_waits for name in _CAUSED},
    "time.blame.per_rank[].own_wait_ns": _select_suffered_waits,
}
