"""What the late rank has more of than the median of the other ranks of its group."""

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.blame.cases import Cases
from zprof.analysis.time.blame.stretches import Stretches
from zprof.analysis.time.transfer.instances import Floats

_NOTHING = -np.inf


class Excess:
    """The blamed rank's value minus the median of the others, of one value a stretch, for each case."""

    def __init__(self, cases: Cases, stretches: Stretches) -> None:
        self._cases = len(cases)
        self._case = stretches.case
        self._mine = stretches.rank == cases.blamed[stretches.case]

    def of(self, values: Int64s) -> Floats:
        """The excess; -inf where the blamed rank or all others have no stretch."""
        mine = np.full(self._cases, np.nan)
        mine[self._case[self._mine]] = values[self._mine]
        others = pd.Series(values[~self._mine]).groupby(self._case[~self._mine]).median()
        median = np.full(self._cases, np.nan)
        median[others.index.to_numpy(np.int64)] = others.to_numpy(np.float64)
        excess: Floats = np.nan_to_num(mine - median, nan=_NOTHING)
        return excess


def by_rank(ranks: Int64s) -> list[tuple[int, Int64s]]:
    """Each rank with the positions of its entries."""
    if not len(ranks):
        return []
    order = np.argsort(ranks, kind="stable")
    numbers, first = np.unique(ranks[order], return_index=True)
    return list(zip(numbers.tolist(), np.split(order, first[1:]), strict=True))
