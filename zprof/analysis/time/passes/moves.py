"""Which collectives gather parameters and which reduce gradients.

An all_gather or a reduction (reduce_scatter, all_reduce) of data-parallel ranks.  Those of a group that
also reduces within the forward carry activations (tensor and sequence parallelism); what is smaller than a
hundredth of the largest of its kind is a norm, a flag or a loss.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.model.collectives import CollectiveKind
from zprof.model.phases import Phase

Mask = npt.NDArray[np.bool_]
GATHER = CollectiveKind.ALL_GATHER.value
REDUCTIONS = (CollectiveKind.REDUCE_SCATTER.value, CollectiveKind.ALL_REDUCE.value)
_SMALL_RATIO = 0.01
#: Reductions that an engine launches behind its backward look as if they were of the next forward.
_FORWARD_RATIO = 0.2


def candidates(frame: pd.DataFrame) -> Mask:
    """Rows that may be either, by kind and size."""
    kind = frame["kind"].astype(str)
    wanted = kind.isin([GATHER, *REDUCTIONS]) & (frame["group_size"] != 1)
    sizes = frame["bytes"].where(wanted, 0)
    largest = sizes.groupby(kind == GATHER).transform("max")
    mask: Mask = (wanted & (sizes >= _SMALL_RATIO * largest)).to_numpy(bool)
    return mask


def of_parameters(frame: pd.DataFrame) -> pd.DataFrame:
    """Of candidates with their ``phase``: without the groups that carry activations.

    What is left of the reductions belongs to a backward, also where an engine launches it behind that.
    """
    reduces = frame["kind"].astype(str).isin(REDUCTIONS)
    forward = (frame["phase"] == Phase.FORWARD.value).where(reduces)
    share = forward.astype(float).groupby(frame["group"].astype(str)).transform("mean").fillna(0.0)
    kept = frame[share <= _FORWARD_RATIO]
    behind = kept["kind"].isin(REDUCTIONS) & (kept["phase"] == Phase.FORWARD.value)
    return kept.assign(phase=kept["phase"].mask(behind, Phase.BACKWARD.value))
