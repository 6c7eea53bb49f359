"""How long the others wait for certain ranks: all waiting, hidden under compute or exposed."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.rules.rows import INSTANCE

_SUMS = ["wait_ns", "exposed_wait_ns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Of a step, the median of the ranks that wait.

    ``wait_ns`` is hidden waiting, too: the median over steps, or their mean without the first collective of
    the window if that is more.  ``exposed_ns``: the part of that mean which holds them up.
    """

    wait_ns: float
    exposed_ns: float


def waits_for(analysis: RunAnalysis, late: tuple[int, ...]) -> Waits:
    """Waiting in collectives to which one of the ranks came last.

    Of many groups few have a late rank: those without one wait for ranks that it has made late.
    """
    rows = analysis.collectives
    rows = rows[rows["matched"].astype(bool) & (rows["group_size"] > 1)]
    last = rows.loc[rows.groupby(INSTANCE)["start_ns"].idxmax()].set_index(INSTANCE)["rank"]
    blamed = last[last.isin(late)].index
    met = rows.loc[rows["rank"].isin(late), INSTANCE]
    passed_on = rows["origin_rank"].isin(late) & ~rows[INSTANCE].isin(met)
    waiting = rows[(rows[INSTANCE].isin(blamed) | passed_on) & ~rows["rank"].isin(late)]
    steady = waiting[~waiting["first_of_window"].astype(bool)]
    steps = max(1, analysis.steps["step"].nunique())
    each, rest = _of_step(waiting)["wait_ns"], _of_step(steady)
    typical = float(np.median([*each, *[0.0] * (steps - len(each))])) if len(each) else 0.0
    return Waits(
        wait_ns=max(typical, float(rest["wait_ns"].sum()) / steps),
        exposed_ns=float(rest["exposed_wait_ns"].sum()) / steps,
    )


def _of_step(rows: pd.DataFrame) -> pd.DataFrame:
    """By step the median of the ranks that wait."""
    return rows.groupby(["step", "rank"])[_SUMS].sum().groupby("step").median()
