"""What the exposed time of all single collectives sums to, to be held against the step ledger.

    sum = 1/R  sum over ranks r of  (1/steps of r)  sum over collectives of r's steps  exposed_i

A group's own sums are means over its ranks, so those of several groups do not add up; this sum weighs each
collective with its rank.  It differs from the ledger's terms by what runs across the ends of the window: a
collective belongs whole to the step that launched it, the ledger cuts time at the steps.
"""

import numpy as np
import pandas as pd

from zprof.analysis.time.transfer.members import Steps
from zprof.model.time import ExposedInCollectives


def exposed_in_collectives(frame: pd.DataFrame, steps: Steps) -> ExposedInCollectives | None:
    """Means of a step over the loaded ranks; None where no collective was seen.

    Args:
        frame: Collectives of the window's steps.
        steps: Steps of the window by rank.
    """
    counted = {rank: count for rank, count in steps.of_rank.items() if count > 0}
    if not len(frame) or not counted:
        return None
    rank = frame["rank"].to_numpy(np.int64)
    weight = np.zeros(max(int(rank.max()), *counted) + 1)
    weight[list(counted)] = [1 / (count * len(counted)) for count in counted.values()]
    waits, transfers = (
        float(weight[rank] @ frame[name].to_numpy(np.float64))
        for name in ("exposed_wait_ns", "exposed_transfer_ns")
    )
    return ExposedInCollectives(wait_ns=round(waits), transfer_ns=round(transfers))
