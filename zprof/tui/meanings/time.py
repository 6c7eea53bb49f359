"""Leaves of time: the step ledger of a rank."""

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.tui.meanings.meaning import Meaning

_MOST_ROWS = 20


def _steps(analysis: RunAnalysis, at: tuple[int | None, ...]) -> pd.DataFrame:
    rows = analysis.steps
    if at and at[0] is not None and at[0] < len(analysis.time.per_rank):
        rows = rows[rows["rank"] == analysis.time.per_rank[at[0]].rank]
    return rows.head(_MOST_ROWS)


TIME: tuple[Meaning, ...] = (
    Meaning(
        leaf="time.per_rank[].wall_ns",
        title="step time of a rank",
        says="From the begin of a step to the begin of the next, mean over the steps of the window.",
        formula="wall = compute + exposed transfer + exposed wait + exposed copies + idle + unexplained",
        inputs=(
            "compute_ns",
            "exposed_transfer_ns",
            "exposed_wait_ns",
            "exposed_memcpy_ns",
            "idle_ns",
            "unexplained_ns",
        ),
        rows=_steps,
    ),
)
