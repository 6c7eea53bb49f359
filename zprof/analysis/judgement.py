"""Judge the change of one number between two runs: better, worse, noise, or not judged.

Bytes and counts are exact, so a difference of one byte counts. Times vary from step to step: the step time
has its own interval; any other time must change by more than the uncertainty of the step time (half its
interval, or the noise floor if that is larger). The hidden share has its own bootstrap interval. Fits,
samples, bounds and rates have no interval and are not judged.
"""

from enum import StrEnum

from msgspec import Struct

from zprof.model.gaps import GapKind
from zprof.model.metrics.catalogue import find_metric
from zprof.model.metrics.metric import Better
from zprof.model.paths import parse_path
from zprof.model.quantities import Unit
from zprof.model.report import WORK_SETTINGS, Report
from zprof.model.side_by_side import ComparedRow

Interval = tuple[float, float]


class Judgement(StrEnum):
    """Verdict on a row.

    ``EXACT`` and ``DIFFERS``: the value changed, but neither side is better. ``UNKNOWN``: one side's value is
    unknown. ``UNJUDGED``: both are known, but it is unknown whether the change is significant.
    """

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    EXACT = "exact"
    DIFFERS = "differs"
    NOISE = "noise"
    UNKNOWN = "unknown"
    UNJUDGED = "not judged"


class Uncertainty(Struct, frozen=True, kw_only=True):
    """Uncertainty of step times: the largest difference that noise explains.

    ``times_ns``: None if unknown, with the reason in ``reason``.
    """

    times_ns: float | None
    reason: str = ""


def judge_row(
    row: ComparedRow, uncertainty: Uncertainty, *, own: Interval | None = None, is_bound: bool = False
) -> Judgement:
    """Judge a row: b compared with a.

    Args:
        row: The row with both values.
        uncertainty: Uncertainty of the step times.
        own: The 95 % interval of b minus a, if this row has its own.
        is_bound: True if one of the values is a lower or upper bound.
    """
    if row.a is None or row.b is None:
        return Judgement.UNKNOWN
    if isinstance(row.a, str) or isinstance(row.b, str):
        return Judgement.SAME if row.a == row.b else Judgement.DIFFERS
    change, better = row.b - row.a, find_better(row)
    if own is not None:
        if uncertainty.times_ns is None:
            return Judgement.UNJUDGED
        if own[0] <= 0 <= own[1]:
            return Judgement.NOISE
        return _rank_change(own[0], better)
    if row.unit not in (Unit.NS, Unit.BYTES, Unit.COUNT) or not has_interval(row) or is_bound:
        return Judgement.UNJUDGED
    if not change:
        return Judgement.SAME
    if row.unit != Unit.NS:
        return Judgement.EXACT if better is Better.NEITHER else _rank_change(change, better)
    if uncertainty.times_ns is None:
        return Judgement.UNJUDGED
    return Judgement.NOISE if abs(change) <= uncertainty.times_ns else _rank_change(change, better)


def _rank_change(change: float, better: Better) -> Judgement:
    if better is Better.NEITHER:
        return Judgement.DIFFERS
    return Judgement.BETTER if (change < 0) == (better is Better.LESS) else Judgement.WORSE


def find_better(row: ComparedRow) -> Better:
    """Return which direction of a change is an improvement; a row without a leaf is a kernel's time."""
    metric = find_metric(parse_path(row.leaf))
    return metric.better if metric else Better.NEITHER if row.leaf else Better.LESS


def has_interval(row: ComparedRow) -> bool:
    """Return False if a change of this number cannot be told from noise."""
    metric = find_metric(parse_path(row.leaf))
    return metric is None or metric.has_interval


def find_uncertainty(report: Report, *, per_token: bool = False) -> Uncertainty:
    """Return the uncertainty of the step times of this report and its baseline.

    ``per_token``: return the uncertainty of times at equal work instead.
    """
    comparison = report.comparison
    if comparison is None or comparison.step_time is None:
        return Uncertainty(times_ns=None, reason="the step times of both runs are not known")
    interval_gap = next((gap for gap in report.gaps if gap.kind is GapKind.NO_INTERVAL), None)
    if interval_gap is not None:
        return Uncertainty(times_ns=None, reason=interval_gap.reason)
    work, times = comparison.equal_work, comparison.step_time
    if work is None and any(entry.key in WORK_SETTINGS for entry in comparison.differences):
        return Uncertainty(times_ns=None, reason="the jobs differ, and their work per step is unknown")
    if work is not None and not per_token and work.b_ns != times.b_ns:
        return Uncertainty(
            times_ns=None,
            reason=f"work per step differs; press n for rank times per {work.unit.value.removesuffix('s')}",
        )
    if any(finding.invalidates_times for finding in report.findings):
        return Uncertainty(times_ns=None, reason="the recordings of the ranks are inconsistent")
    low, high = work.ci95 if work is not None and per_token else times.ci95
    noise_ns = [rank.noise_floor_ns for rank in (*report.time.per_rank, *comparison.baseline_time)]
    return Uncertainty(times_ns=max((high - low) / 2, *noise_ns))
