"""How long each rank is busy with itself in a step, and how much longer than the others.

    own = wall - exposed wait - exposed transfer          longer = own - median own of the other ranks

Ranks that meet in collectives end a step together: what one of them is busy longer, the others are held up,
as wait, or as transfer where the waiting hides under their compute.  The sum says it either way, and needs
no common clock.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.transfer.instances import Instances

Table = npt.NDArray[np.float64]
_HELD_UP = ["exposed_wait_ns", "exposed_transfer_ns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTime:
    """Tables of steps by ``ranks``: own time, and how much longer that is than the median of the others.

    ``compute``, ``copies``, ``idle``: the part of ``longer`` that is each; they sum to about that.
    """

    ranks: tuple[int, ...]
    own: Table
    longer: Table
    compute: Table
    copies: Table
    idle: Table

    @property
    def steps(self) -> int:
        """Steps that all ranks have."""
        return len(self.own)

    def beyond(self, chosen: "npt.NDArray[np.bool_]") -> Table:
        """Of each step the longest of the chosen ranks minus the longest of all others; at least 0."""
        longest, next_longest = self.own[:, chosen].max(axis=1), self.own[:, ~chosen].max(axis=1)
        beyond: Table = np.clip(longest - next_longest, 0.0, None)
        return beyond


def own_time(analysis: RunAnalysis) -> OwnTime:
    """Own time in the steps that all ranks have."""
    rows = analysis.steps.assign(own_ns=analysis.steps["wall_ns"] - analysis.steps[_HELD_UP].sum(axis=1))
    rows["rest_ns"] = rows["idle_ns"] + rows["unexplained_ns"]
    ranks = np.unique(rows["rank"].to_numpy(np.int64))
    whole = rows.groupby("step")["rank"].transform("nunique") == len(ranks)
    rows = rows[whole].sort_values(["step", "rank"], kind="stable")
    return OwnTime(
        ranks=tuple(ranks.tolist()),
        own=_table(rows["own_ns"], len(ranks)),
        longer=_longer(rows, "own_ns", len(ranks)),
        compute=_longer(rows, "compute_ns", len(ranks)),
        copies=_longer(rows, "exposed_memcpy_ns", len(ranks)),
        idle=_longer(rows, "rest_ns", len(ranks)),
    )


def _longer(rows: pd.DataFrame, column: str, ranks: int) -> Table:
    values = rows[column].to_numpy(np.float64)
    others = Instances(rows["step"].to_numpy(np.int64)).median_of_others(values)
    return _table(pd.Series(values - np.nan_to_num(others)), ranks)


def _table(values: "pd.Series[float]", ranks: int) -> Table:
    return np.asarray(values, dtype=np.float64).reshape(-1, max(1, ranks))
