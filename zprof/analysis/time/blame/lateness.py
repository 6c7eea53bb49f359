"""How late each rank came to the collectives of each step: its start minus the first start of the group.

Of collectives in which all wait for all, seen on all their ranks.  Left out is the first of a window: the
profilers did not start at once.
"""

import pandas as pd

from zprof.model.collectives import FULL_SYNC
from zprof.model.time import StepLateness

_KINDS = [str(kind) for kind in FULL_SYNC]


def lateness(frame: pd.DataFrame) -> tuple[StepLateness, ...]:
    """An entry a rank and step that has such a collective, by rank and step.

    Args:
        frame: Collectives of all ranks with rank, step, kind, judged, lateness_ns.
    """
    rows = frame[frame["judged"].to_numpy(bool) & frame["kind"].isin(_KINDS).to_numpy(bool)]
    if not len(rows):
        return ()
    sums = rows.groupby(["rank", "step"])["lateness_ns"].agg(["size", "sum", "max"]).reset_index()
    columns = [sums[name].tolist() for name in ("rank", "step", "size", "sum", "max")]
    return tuple(
        StepLateness(rank=rank, step=step, collectives=count, mean_ns=total // count, largest_ns=largest)
        for rank, step, count, total, largest in zip(*columns, strict=True)
    )
