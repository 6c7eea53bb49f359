"""Leaves of a single step: its ledger, with the collectives behind its exposed terms."""

from collections.abc import Sequence

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.tui.meanings.meaning import Meaning, Rows

_MOST_ROWS = 20
_TERMS = (
    "compute_ns", "exposed_transfer_ns", "exposed_wait_ns", "exposed_memcpy_ns", "idle_ns", "unexplained_ns",
)  # fmt: skip
_SUM = "wall = compute + exposed transfer + exposed wait + exposed copies + idle + unexplained"
_NAMES = ["kind", "unit", "bytes", "last_rank"]


def _step_row(analysis: RunAnalysis, at: tuple[int | None, ...]) -> pd.DataFrame:
    """The row of this step in the table of steps."""
    rows, place = analysis.steps, at[0] if at else None
    if place is None or place >= len(analysis.time.steps):
        return rows.head(_MOST_ROWS)
    entry = analysis.time.steps[place]
    return rows[(rows["rank"] == entry.rank) & (rows["step"] == entry.step)]


def _collectives(by: Sequence[str]) -> Rows:
    """The collectives that this rank launched in this step, those with most of the first of ``by`` first."""

    def rows(analysis: RunAnalysis, at: tuple[int | None, ...]) -> pd.DataFrame:
        place, frame = at[0] if at else None, analysis.collectives
        if place is None or place >= len(analysis.time.steps):
            return frame.head(0)
        entry = analysis.time.steps[place]
        mine = frame[(frame["rank"] == entry.rank) & (frame["step"] == entry.step)]
        ordered = mine.sort_values(by[0], ascending=False, kind="stable")
        return ordered[[*by, *_NAMES]].head(_MOST_ROWS)

    return rows


def _step(leaf: str, title: str, says: str, *, rows: Rows = _step_row) -> Meaning:
    inputs = _TERMS if leaf == "wall_ns" else ("wall_ns",)
    formula = _SUM if leaf in ("wall_ns", *_TERMS) else ""
    return Meaning(
        leaf=f"time.steps[].{leaf}", title=title, says=says, formula=formula, inputs=inputs, rows=rows
    )


STEP_LEAVES: tuple[Meaning, ...] = (
    _step("wall_ns", "step time", "From the begin of this step to the begin of the next, on this rank."),
    _step(
        "compute_ns",
        "compute of a step",
        "Union of all kernels that are no collective; on a CPU rank, of the operators of the main thread.",
    ),
    _step(
        "exposed_transfer_ns",
        "exposed transfer of a step",
        "Collectives run, all ranks are there, and this rank is held up: it computes nothing.",
        rows=_collectives(("exposed_transfer_ns", "transfer_ns", "hidden_ns")),
    ),
    _step(
        "exposed_wait_ns",
        "exposed wait of a step",
        "A collective of this rank waits for the last rank to come, and this rank is held up.",
        rows=_collectives(("exposed_wait_ns", "wait_ns")),
    ),
    _step(
        "exposed_memcpy_ns",
        "exposed copies of a step",
        "Copies and fills run, and neither compute nor a collective does.",
    ),
    _step(
        "idle_ns",
        "idle time of a step",
        "The rest: the device has nothing to run, or the main thread runs no operator and waits for nothing.",
    ),
    _step(
        "unexplained_ns",
        "unexplained time of a step",
        "The trace is silent there, or the rank waits and no collective is seen to run.",
    ),
    _step(
        "overlapped_ns",
        "hidden communication of a step",
        "Collectives run and hold nothing up. It is part of the collectives' time, not of the sum.",
        rows=_collectives(("hidden_ns", "exposed_transfer_ns", "exposed_wait_ns")),
    ),
)
