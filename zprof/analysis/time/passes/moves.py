"""Which collectives gather parameters and which reduce gradients.

An all_gather or a reduction (reduce_scatter, all_reduce) of data-parallel ranks.  Those of a group that
also reduces within the forward carry activations (tensor and sequence parallelism); what is smaller than a
hundredth of the largest of its kind is a norm, a flag or a loss.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.time.transfer.texts import codes_of
from zprof.model.collectives import CollectiveKind
from zprof.model.phases import Phase

Mask = npt.NDArray[np.bool_]
GATHER = CollectiveKind.ALL_GATHER.value
REDUCTIONS = (CollectiveKind.REDUCE_SCATTER.value, CollectiveKind.ALL_REDUCE.value)
_SMALL_RATIO = 0.01
#: Tensor parallelism reduces in a forward as often as in a backward.  Gradients never do, but the last of a
#: backward, launched behind its end, look as if they were of the next forward: one of at least three.
_FORWARD_RATIO = 0.4
_MICRO_BATCH = ["rank", "step", "micro_batch"]


def candidates(frame: pd.DataFrame) -> Mask:
    """Rows that may be either, by kind and size."""
    kind = frame["kind"].astype(str)
    wanted = kind.isin([GATHER, *REDUCTIONS]) & (frame["group_size"] != 1)
    sizes = frame["bytes"].where(wanted, 0)
    largest = sizes.groupby(kind == GATHER).transform("max")
    mask: Mask = (wanted & (sizes >= _SMALL_RATIO * largest)).to_numpy(bool)
    return mask


def _before_backward(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Rows launched before the first reduction in the backward of their micro-batch."""
    reduces = frame["kind"].isin(REDUCTIONS)
    begun = frame["launched_ns"].where(reduces & (frame["phase"] == Phase.BACKWARD.value))
    begun = begun.groupby([frame[name] for name in _MICRO_BATCH], dropna=False).transform("min")
    return frame["launched_ns"] < begun.fillna(frame["launched_ns"] + 1)


def of_parameters(frame: pd.DataFrame) -> pd.DataFrame:
    """Of candidates with their ``phase``: without the groups that carry activations.

    What is left of the reductions belongs to a backward, also where an engine launches it behind that.
    """
    reduces = frame["kind"].astype(str).isin(REDUCTIONS)
    forward = ((frame["phase"] == Phase.FORWARD.value) & _before_backward(frame)).where(reduces)
    share = forward.astype(float).groupby(codes_of(frame["group"])[0]).transform("mean").fillna(0.0)
    kept = frame[share <= _FORWARD_RATIO]
    behind = kept["kind"].isin(REDUCTIONS) & (kept["phase"] == Phase.FORWARD.value)
    return kept.assign(phase=kept["phase"].mask(behind, Phase.BACKWARD.value))
