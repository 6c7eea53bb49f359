"""Leaves of a single step: its ledger, with the collectives behind its exposed terms."""

from collections.abc import Sequence

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.tui.meanings.behind import MOST_ROWS, decisive, entry_at
from zprof.tui.meanings.meaning import Indices, Meaning, Rows

_TERMS = (
    "compute_ns", "exposed_transfer_ns", "exposed_wait_ns", "exposed_memcpy_ns", "idle_ns", "unexplained_ns",
)  # fmt: skip
_SUM = "wall = compute + exposed transfer + exposed wait + exposed copies + idle + unexplained"
_NAMES = ["kind", "unit", "bytes", "last_rank"]


def _step_row(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """The row of this step in the table of steps."""
    rows, entry = analysis.steps, entry_at(analysis.time.steps, at)
    if entry is None:
        return rows.head(MOST_ROWS)
    return rows[(rows["rank"] == entry.rank) & (rows["step"] == entry.step)]


def _collectives(by: Sequence[str]) -> Rows:
    """The collectives that this rank launched in this step, those with most of the first of ``by`` first."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        frame, entry = analysis.collectives, entry_at(analysis.time.steps, at)
        if entry is None:
            return frame.head(0)
        mine = frame[(frame["rank"] == entry.rank) & (frame["step"] == entry.step)]
        return decisive(mine, (*by, *_NAMES), by[0])

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
