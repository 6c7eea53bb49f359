"""How long the others wait for certain ranks: all waiting, hidden under compute or exposed."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.rules.rows import INSTANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """``bound_ns``: the most that the median waiting rank can win a step without the late ones.

    That is hidden waiting, too: the median over steps, or their mean without the first collective of the
    window if that is more.  ``caused_ns``: wait caused, as everywhere in the report (``Blame`` of
    :mod:`zprof.model.time`): exposed, of a step, the mean of the ``ranks`` that waited;
    ``caused_hidden_too_ns`` with what compute hid.
    """

    bound_ns: float
    caused_ns: float
    caused_hidden_too_ns: float
    ranks: int


def waits_for(analysis: RunAnalysis, late: tuple[int, ...]) -> Waits:
    """Waiting in collectives to which one of the ranks came last.

    Of many groups few have a late rank: those without one wait for ranks that it has made late.
    """
    rows = analysis.collectives
    rows = rows[rows["matched"].astype(bool) & (rows["group_size"] != 1)]
    last = rows.loc[rows.groupby(INSTANCE)["start_ns"].idxmax()].set_index(INSTANCE)["rank"]
    blamed = last[last.isin(late)].index
    met = rows.loc[rows["rank"].isin(late), INSTANCE]
    passed_on = rows["origin_rank"].isin(late) & ~rows[INSTANCE].isin(met)
    waiting = rows[(rows[INSTANCE].isin(blamed) | passed_on) & ~rows["rank"].isin(late)]
    steady = waiting[~waiting["first_of_window"].astype(bool)]
    steps = max(1, analysis.steps["step"].nunique())
    each, rest = _of_step(waiting), _of_step(steady)
    typical = float(np.median([*each, *[0.0] * (steps - len(each))])) if len(each) else 0.0
    caused = analysis.collectives
    caused = caused[caused["blamed_rank"].isin(late) & ~caused["rank"].isin(late) & (caused["wait_ns"] > 0)]
    ranks = caused["rank"].nunique()
    return Waits(
        bound_ns=max(typical, float(rest.sum()) / steps),
        caused_ns=float(caused["exposed_wait_ns"].sum()) / (steps * max(1, ranks)),
        caused_hidden_too_ns=float(caused["wait_ns"].sum()) / (steps * max(1, ranks)),
        ranks=ranks,
    )


def _of_step(rows: pd.DataFrame) -> "pd.Series[float]":
    """By step the median of the ranks that wait."""
    return rows.groupby(["step", "rank"])["wait_ns"].sum().groupby("step").median()
