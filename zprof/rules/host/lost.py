"""What the hosts of most ranks did with the idle time of a step: the table ``host``, summed up for rules.

One late host is the business of the rules about late ranks.  So a number is what at least three quarters of
the ranks lose in the same step (of up to four ranks: what all of them lose), as the mean over the steps.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.findings import Confidence
from zprof.model.gaps import Gap
from zprof.rules.rule import not_tested

#: Share of the ranks that may lose less.
_FEW_RATIO = 0.25
#: In each direction, of a step; less is no state that was moved out.
_LEAST_BYTES = 1 << 20


def of_most(analysis: RunAnalysis, *columns: str) -> float:
    """The sum of ``columns`` that most ranks have in a step: mean over the steps."""
    each = _of_each_step(analysis, columns)
    return float(each.mean()) if len(each) else 0.0


def typical(analysis: RunAnalysis, *columns: str) -> float:
    """The same of the step in the middle: what happens once in a while is not in it."""
    each = _of_each_step(analysis, columns)
    return float(each.median()) if len(each) else 0.0


def _of_each_step(analysis: RunAnalysis, columns: Sequence[str]) -> "pd.Series[float]":
    rows = analysis.host
    summed = rows[list(columns)].sum(axis=1)
    by_step = summed.groupby(rows["step"])
    return by_step.quantile(_FEW_RATIO, interpolation="lower").astype(np.float64)


def of_worst(analysis: RunAnalysis, *columns: str) -> tuple[int, float]:
    """The rank with the largest mean of a step, and that mean."""
    rows = analysis.host
    means = rows[list(columns)].sum(axis=1).groupby(rows["rank"]).mean()
    return int(str(means.idxmax())), float(means.max())


def on_device(analysis: RunAnalysis) -> bool:
    """Whether the ranks compute on devices."""
    return bool(analysis.host["on_device"].any())


def moves_state(analysis: RunAnalysis) -> bool:
    """Whether devices send their host as much as a shard in a step, and get as much back."""
    return all(of_most(analysis, name) >= _LEAST_BYTES for name in ("to_host_bytes", "to_device_bytes"))


def by_size(analysis: RunAnalysis, share: float, sure: float, likely: float) -> Confidence:
    """High from one share of the step on, medium from another, else a note; one step alone is never sure."""
    if share >= sure and analysis.host["step"].nunique() > 1:
        return Confidence.HIGH
    return Confidence.MEDIUM if share >= likely else Confidence.LOW


def no_host(analysis: RunAnalysis, cause: Cause) -> Gap | None:
    """The gap of a rule where nothing is known of hosts, or of when they launched."""
    if analysis.host.empty:
        reason = "what the hosts did meanwhile was not recorded"
        return not_tested(cause, reason, "record with zprof, or profile the CPU too")
    if not analysis.host["launches_seen"].all():
        return not_tested(
            cause,
            "the trace does not show when the host launched its kernels",
            "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    return None
