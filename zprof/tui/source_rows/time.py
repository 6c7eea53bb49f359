"""Select the source rows of a time metric: steps, collectives, or what the host did."""

from collections.abc import Mapping, Sequence

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.time import LEDGER_TERMS
from zprof.tui.source_rows.selection import MAX_ROWS, Indices, Rows, find_entry, pick_top_rows

_COLLECTIVE_COLUMNS = (
    "step", "rank", "kind", "unit", "bytes", "exposed_wait_ns", "exposed_transfer_ns", "hidden_ns", "group",
)  # fmt: skip
_HOST_COLUMNS = (
    "step", "rank", "idle_ns", "launch_ns", "unseen_ns", "loader_ns", "allocator_ns", "limiter_ns", "sync_ns",
    "optimizer_ns", "copy_ns", "other_ns",
)  # fmt: skip


def _select_rank(rows: pd.DataFrame, analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the rows of the rank at this index of the report; all rows for ``[*]``."""
    entry = find_entry(analysis.time.per_rank, at)
    return rows if rows.empty or entry is None else rows[rows["rank"] == entry.rank]


def _make_step_rows(term: str) -> Rows:
    """Select the steps with the largest values of a term."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        names = tuple(dict.fromkeys(("step", "rank", term, "wall_ns", *LEDGER_TERMS)))
        return pick_top_rows(_select_rank(analysis.steps, analysis, at), names, term)

    return rows


def _make_collective_rows(column: str) -> Rows:
    """Select the collectives with the largest values of a column."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        return pick_top_rows(_select_rank(analysis.collectives, analysis, at), _COLLECTIVE_COLUMNS, column)

    return rows


def _select_host_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the host's activity during idle time, or the steps if host activity was not recorded."""
    rows = _select_rank(analysis.host, analysis, at)
    return (
        pick_top_rows(rows, _HOST_COLUMNS, "idle_ns")
        if len(rows)
        else _make_step_rows("idle_ns")(analysis, at)
    )


_STEP_COLLECTIVE_COLUMNS = ["kind", "unit", "bytes", "last_rank"]


def _select_step(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the row of this step in the table of steps."""
    rows, entry = analysis.steps, find_entry(analysis.time.steps, at)
    if entry is None:
        return rows.head(MAX_ROWS)
    return rows[(rows["rank"] == entry.rank) & (rows["step"] == entry.step)]


def _make_step_collectives(by: Sequence[str]) -> Rows:
    """Select this rank's collectives of this step, largest value of ``by[0]`` first."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        frame, entry = analysis.collectives, find_entry(analysis.time.steps, at)
        if entry is None:
            return frame.head(0)
        own_rows = frame[(frame["rank"] == entry.rank) & (frame["step"] == entry.step)]
        return pick_top_rows(own_rows, (*by, *_STEP_COLLECTIVE_COLUMNS), by[0])

    return rows


_LEDGER: Mapping[str, Rows] = {
    **{term: _make_step_rows(term) for term in ("wall_ns", *LEDGER_TERMS, "collective_ns", "memcpy_ns")},
    **dict.fromkeys(("wall_median_ns", "steps"), _make_step_rows("wall_ns")),
    **{term: _make_collective_rows(term) for term in ("exposed_wait_ns", "exposed_transfer_ns")},
    **dict.fromkeys(("overlapped_ns", "overlap_ratio"), _make_collective_rows("hidden_ns")),
    "first_wait_ns": _make_collective_rows("exposed_wait_ns"),
    "unsplit_ns": _make_collective_rows("exposed_transfer_ns"),
    "idle_ns": _select_host_rows,
}
_LOST: Mapping[str, Rows] = {
    term: _select_host_rows if term == "idle_ns" else _make_step_rows(term) for term in LEDGER_TERMS
}
_STEPS: Mapping[str, Rows] = {
    **dict.fromkeys(("wall_ns", *LEDGER_TERMS), _select_step),
    "exposed_transfer_ns": _make_step_collectives(("exposed_transfer_ns", "transfer_ns", "hidden_ns")),
    "exposed_wait_ns": _make_step_collectives(("exposed_wait_ns", "wait_ns")),
    "overlapped_ns": _make_step_collectives(("hidden_ns", "exposed_transfer_ns", "exposed_wait_ns")),
}
_STEP_TIMES = ("time.step_noise_ns", "comparison.step_time.b_ns", "comparison.step_time.ci95[]")
TIME_ROWS: Mapping[str, Rows] = {
    **{
        f"{stem}.{name}": rows
        for stem in ("time.per_rank[]", "comparison.baseline_time[]")
        for name, rows in _LEDGER.items()
    },
    **{f"time.steps[].{name}": rows for name, rows in _STEPS.items()},
    **{f"unclaimed.{term}": rows for term, rows in _LOST.items() if term != "compute_ns"},
    **{f"comparison.ledger_delta.{term}": rows for term, rows in _LOST.items()},
    **dict.fromkeys(_STEP_TIMES, _make_step_rows("wall_ns")),
}
