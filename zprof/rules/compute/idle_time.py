"""Sum up what hosts did in the idle time of a step (the table ``host``), per rank and for most ranks.

One late host belongs to the rules about late ranks. So a value here is what at least three quarters of the
ranks lose in the same step (with up to four ranks: what all of them lose), as the mean over the steps. Only
what recurs counts: what happened once is not what happens per step.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.rules.rule import untested_gap, wall_ns

#: Share of the ranks that may lose less.
FEW_RATIO = 0.25
#: Maximum multiple of the typical step: a larger mean comes from few steps.
_MAX_OVER_MEDIAN = 2.0
#: Columns that count waits: the longest wait is one of them.
_COUNT_COLUMNS = ("dry_syncs", "held_reads")
#: Minimum bytes per step in each direction to count as moved state.
_MIN_STATE_BYTES = 1 << 20


def most_ranks_mean(analysis: RunAnalysis, *columns: str) -> float:
    """Return the sum of ``columns`` that most ranks have in a step, as the mean of what recurs."""
    return recurring_mean(_most_ranks_per_step(analysis, columns))


def recurring_mean(each: "pd.Series[float]") -> float:
    """Return the mean cost over the steps, without what happened once.

    The largest step may contain a profiler that starts, a first batch or a first call into a library, so it
    counts only as much as the second largest. A cost that most steps do not have, or that is far lower in the
    typical one, does not recur.
    """
    if len(each) < 2:
        return float(each.sum())
    second = each.nlargest(2).iloc[1]
    return min(float(each.clip(upper=second).mean()), _MAX_OVER_MEDIAN * float(each.median()))


def single_occurrence_ns(analysis: RunAnalysis, column: str) -> float:
    """Return the mean per step of what most ranks have in ``column`` and does not recur."""
    rows = analysis.host
    each = rows[column].groupby(rows["step"]).quantile(FEW_RATIO, interpolation="lower")
    return max(0.0, float(each.mean()) - most_ranks_mean(analysis, column)) if len(each) else 0.0


def most_ranks_median(analysis: RunAnalysis, *columns: str) -> float:
    """Return the same for the median step, without what happens only now and then."""
    each = _most_ranks_per_step(analysis, columns)
    return float(each.median()) if len(each) else 0.0


def _most_ranks_per_step(analysis: RunAnalysis, columns: Sequence[str]) -> "pd.Series[float]":
    """Return what most ranks have; for a single step without its longest occurrence, which may be all of it.

    One step cannot show that something recurs from step to step, only that it recurs within the step.
    """
    rows = analysis.host
    summed = rows[list(columns)].sum(axis=1)
    if rows["step"].nunique() == 1:
        summed -= _longest_occurrence(rows, columns)
    by_step = summed.groupby(rows["step"])
    return by_step.quantile(FEW_RATIO, interpolation="lower").astype(np.float64)


def _longest_occurrence(rows: pd.DataFrame, columns: Sequence[str]) -> "pd.Series[float]":
    """Return the longest occurrence of any of these parts; for counted waits it is one."""
    parts = [name.removesuffix("_ns") + "_largest_ns" for name in columns]
    known = rows[[name for name in parts if name in rows]].max(axis=1).fillna(0)
    counted = sum((rows[name] > 0).astype(np.int64) for name in columns if name in _COUNT_COLUMNS)
    return known + counted


def worst_rank_mean(analysis: RunAnalysis, *columns: str) -> tuple[int, float]:
    """Return the rank with the largest mean per step, and that mean."""
    rows = analysis.host
    means = rows[list(columns)].sum(axis=1).groupby(rows["rank"]).mean()
    return int(str(means.idxmax())), float(means.max())


def on_device(analysis: RunAnalysis) -> bool:
    """Return whether the ranks compute on devices."""
    return bool(analysis.host["on_device"].any())


def is_inference(analysis: RunAnalysis) -> bool:
    """Return whether no rank shows a backward or an optimizer: advice about training does not apply."""
    return bool(analysis.host["is_inference"].all())


def moves_state(analysis: RunAnalysis) -> bool:
    """Return whether devices and hosts exchange at least 1 MiB per step in each direction."""
    return all(
        most_ranks_mean(analysis, name) >= _MIN_STATE_BYTES for name in ("to_host_bytes", "to_device_bytes")
    )


def single_occurrence_gap(
    analysis: RunAnalysis, cause: Cause, worth_ratio: float, *columns: str
) -> Gap | None:
    """Return the gap of a rule whose cost occurs once in a window of one step, None if it is too small."""
    lost = sum(single_occurrence_ns(analysis, column) for column in columns)
    if analysis.host["step"].nunique() > 1 or lost < worth_ratio * wall_ns(analysis):
        return None
    return untested_gap(
        cause,
        f"the window has one step, and {format_ns(lost)} of its idle time is one occurrence: whether that "
        "comes back in each step is unknown",
        "time three steps or more",
    )


def rate_confidence(analysis: RunAnalysis, share: float, sure: float, likely: float) -> Confidence:
    """Return HIGH from the share ``sure``, MEDIUM from ``likely``, else LOW; never HIGH for one step."""
    if share >= sure and analysis.host["step"].nunique() > 1:
        return Confidence.HIGH
    return Confidence.MEDIUM if share >= likely else Confidence.LOW


def missing_host_gap(analysis: RunAnalysis, cause: Cause) -> Gap | None:
    """Return the gap of a rule if nothing is known about hosts or their launches, else None."""
    if analysis.host.empty:
        reason = "what the hosts did meanwhile was not recorded"
        return untested_gap(cause, reason, "record with zprof, or profile the CPU too")
    if not analysis.host["launches_seen"].all():
        return untested_gap(
            cause,
            "the trace does not show when the host launched its kernels",
            "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    return None
