"""The gathers that end a step: new parameters, from those who updated them to all (ZeRO stages 1 and 2).

What tells them from the gathers of stage 3, on one rank and without clocks: in their step all large gathers
begin after its last reduction of gradients.  Programs that send new parameters by broadcasts (PyTorch's
ZeroRedundancyOptimizer) are seen alike.

Stages 1 and 2 need no more than data parallelism: a reduce-scatter of gradients (psi) and this gather (psi).
Where gradients are all-reduced in full (2 psi) and parameters gathered on top, it is 3 psi.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.rules.volume.element_bytes import elements
from zprof.rules.volume.traffic import large, of_known_size, sizes_of

_SHARING = (CollectiveKind.ALL_GATHER.value, CollectiveKind.BROADCAST.value)
_SCATTERING = CollectiveKind.REDUCE_SCATTER.value
_REDUCING = (_SCATTERING, CollectiveKind.ALL_REDUCE.value)
#: Of the bytes gathered in all steps: those of a program that also gathers before (stage 3) are less.
_ALL_RATIO = 0.95
#: Of what is reduced in a step: less (predictions, metrics) are no parameters, however often is reduced.
_PART_RATIO = 0.10
#: Gradients all-reduced are as many elements as parameters gathered, but for padding and what is frozen.
_SAME_RATIO = 0.10
#: Method of collectives whose launches were not seen: gloo runs a reduce-scatter as an all-reduce.
_WITHOUT_LAUNCH = "gloo_execution"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingGathers:
    """Rows of the collectives' table: what shares new parameters, and what reduced gradients before it."""

    gathers: pd.DataFrame
    reductions: pd.DataFrame
    three_psi: bool


def closing_gathers(analysis: RunAnalysis) -> ClosingGathers | None:
    """None where parameters are not shared at the end of steps."""
    rows = large(analysis.collectives)
    kinds = rows["kind"].astype(str)
    reductions, gathers = rows[kinds.isin(_REDUCING)], rows[kinds.isin(_SHARING)]
    if gathers.empty or reductions.empty:
        return None
    closing = gathers[_behind(gathers, reductions)]
    if sizes_of(closing).sum() < _ALL_RATIO * sizes_of(gathers).sum():
        return None
    if sizes_of(closing).sum() < _PART_RATIO * sizes_of(reductions).sum():
        return None
    return ClosingGathers(
        gathers=closing,
        reductions=reductions,
        three_psi=of_known_size(rows) and _in_full(reductions, closing) and not _hides_scatters(analysis),
    )


def _behind(gathers: pd.DataFrame, reductions: pd.DataFrame) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Whether each gather began after the last reduction of its rank and step."""
    last = reductions.groupby(["rank", "step"], observed=True)["start_ns"].max().rename("last_ns")
    joined = gathers[["rank", "step", "start_ns"]].join(last, on=["rank", "step"])
    behind: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        (joined["start_ns"] > joined["last_ns"]).fillna(False).to_numpy(bool)
    )
    return behind


def _in_full(reductions: pd.DataFrame, gathers: pd.DataFrame) -> bool:
    """Whether what is gathered was all-reduced before, at least once, and nothing was scattered."""
    scattered = reductions["kind"].astype(str) == _SCATTERING
    if reductions.loc[scattered, "bytes"].sum() > _SAME_RATIO * reductions["bytes"].sum():
        return False
    return elements(reductions[~scattered]) >= (1 - _SAME_RATIO) * elements(gathers)


def _hides_scatters(analysis: RunAnalysis) -> bool:
    return any(_WITHOUT_LAUNCH in entry.method for entry in analysis.time.collectives)
