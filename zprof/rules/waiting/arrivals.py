"""Who arrived last at each collective, and how late: last start minus the median start of the others."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.rules.rows import INSTANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """One row for each collective: INSTANCE, step, last_rank, late_ns."""

    table: pd.DataFrame
    ranks: tuple[int, ...]

    def worst_per_step(self) -> pd.DataFrame:
        """Steps by ranks: the largest lateness of the rank as the last one; 0 where it never was."""
        worst = self.table.pivot_table(index="step", columns="last_rank", values="late_ns", aggfunc="max")
        return worst.reindex(columns=list(self.ranks)).fillna(0.0)


def arrivals(matched: pd.DataFrame) -> Arrivals:
    """Arrivals at collectives that all ranks of their group took part in (starts on the common clock)."""
    if matched.empty:
        return Arrivals(table=pd.DataFrame(columns=[INSTANCE, "step", "last_rank", "late_ns"]), ranks=())
    rows = matched.assign(late_ns=matched["start_ns"] - matched["start_ns"].min())
    starts = rows.pivot_table(index=INSTANCE, columns="rank", values="late_ns", aggfunc="min")
    starts = starts[starts.notna().sum(axis=1) >= 2]
    values = starts.to_numpy(dtype=np.float64)
    last = np.nanargmax(values, axis=1)
    row = np.arange(len(values))
    latest = values[row, last]
    others = values.copy()
    others[row, last] = np.nan
    table = starts.index.to_frame(index=False)
    table["step"] = rows.groupby(INSTANCE)["step"].min().reindex(starts.index).to_numpy()
    table["last_rank"] = starts.columns.to_numpy()[last]
    table["late_ns"] = latest - np.nanmedian(others, axis=1)
    return Arrivals(table=table, ranks=tuple(int(rank) for rank in starts.columns))
